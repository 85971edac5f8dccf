/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rules for putting files in place: which page, when, and when again.

       window ended     the huge page of a file with most samples on small pages is taken, then the next one
       too much         the rate, a budget of memory, twenty times as long a rest as the last one took
       not now          the kill switch, pressure, little memory, the delay after a start and after an upgrade of the file (its
                        ctime, or since this process has seen that: a clock may be set back)
       in vain          the file is left alone for a minute, then two, up to a day; so are pages that were lost again

   If the kernel can join pages that processes map (collapse), the processes that map them are counted first (image/in-place.c).
   If it cannot, the file has to be unmapped at two looks, ten seconds apart, before it is read anew. */
#include "command/service/act.h"
#include "command/base/common.h"
#include "command/file/elf-file.h"
#include "command/image/in-place.h"
#include "elf/kernel.h"
#include "elf/line.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The samples on small pages that make a huge page worth it, those of earlier windows counting half with each. */
#define SAMPLES_MIN 4
#define DEEDS_MAX 1024
/* Milliseconds: without a process that maps the file; until a file is tried again, first and at last; until the machine is asked
   again; since a file was seen, after which it is forgotten. */
#define UNMAPPED_MS 10000
#define WAIT_MS 60000.0
#define WAIT_MAX_MS 86400000.0
#define BUSY_MS 60000
#define FORGOTTEN_MS 3600000
/* An act that takes longer than the first is not repeated soon; the rest after each act is this many times as long as the act. */
#define SLOW_MS 50
#define REST 20
#define COUNT_MS 250
/* Of /etc/machine-id (machine-id(5)). */
#define ID_DIGITS 32
/* The default budget: this part of the memory, and at most this. */
#define BUDGET_SHARE 0.02
#define BUDGET_MAX_KIB (UINT64_C(1) << 20)

/* The acts on one file. */
struct deed {
    struct hl_file_id id;
    size_t n_made;
    uint64_t *made;          /* offsets of huge pages that are in place */
    double unmapped;         /* hl_now_ms, since when no process is known to map it, or 0 */
    double not_before;       /* hl_now_ms */
    double wait_ms;          /* after the next failure */
    double seen;             /* hl_now_ms, when it was looked at last */
    struct timespec changed; /* the file's ctime at the last look */
    double changed_seen;     /* hl_now_ms, when it was first seen with that */
    char *said;              /* why not; printed once */
};

struct hl_actor {
    struct hl_geometry geometry;
    struct hl_placer placer;
    double next;              /* hl_now_ms; INFINITY: waits for the end of a window */
    double began, late_share; /* the latter: the drawn part of the delay */
    char *reason;             /* why nothing may be done now, or NULL */
    bool psi_said;
    struct hl_act_counts counts;
    size_t n;
    struct deed deed[DEEDS_MAX];
};

/* The next act. */
struct target {
    struct hl_observed_file *file;
    struct hl_observed_chunk *chunk;
    struct deed *deed;
};

/* --- may anything be done? --- */

/* FNV-1a. */
static uint64_t hash(const char *text) {
    uint64_t value = 0xcbf29ce484222325;
    for (; *text != '\0' && *text != '\n'; text++)
        value = (value ^ (unsigned char)*text) * 0x100000001b3;
    return value;
}

/* Why this machine is none of the PERCENT of all that begin; NULL: it is one. */
static char *explain_canary(double percent) {
    char id[64];
    if (percent >= 100)
        return NULL;
    /* A first boot has "uninitialized". */
    if (hl_read_file("/etc/machine-id", id, sizeof id) <= 0 || strspn(id, "0123456789abcdef") != ID_DIGITS)
        return hl_xasprintf("/etc/machine-id, which draws the %g %% of all machines that begin (canary), "
                            "cannot be read; mount the machine's",
                            percent);
    if ((double)(hash(id) % 10000) < 100 * percent)
        return NULL;
    return hl_xasprintf("this machine is none of the %g %% that begin (canary)", percent);
}

static double find_budget_kib(const struct hl_configuration *configuration) {
    char meminfo[8192];
    uint64_t total = 0;
    if (configuration->budget_mib > 0)
        return 1024 * configuration->budget_mib;
    if (hl_read_file("/proc/meminfo", meminfo, sizeof meminfo) > 0)
        hl_find_number(meminfo, "MemTotal:", &total);
    return fmin(BUDGET_SHARE * (double)total, (double)BUDGET_MAX_KIB);
}

/* Why there is no memory for another huge page; NULL: there is enough. */
static char *explain_memory(const struct hl_actor *actor, const struct hl_configuration *configuration) {
    double budget = find_budget_kib(configuration);
    if (!hl_leaves_margin(actor->geometry.huge_page_bytes))
        return hl_xasprintf("less than %d %% of the memory is available", HL_AVAILABLE_MIN);
    if ((double)((actor->counts.kept_bytes + actor->geometry.huge_page_bytes) >> 10) > budget)
        return hl_xasprintf("%" PRIu64 " MiB are in place, and the budget is %.0f MiB",
                            actor->counts.kept_bytes >> 20, budget / 1024);
    return NULL;
}

static double find_delay(const struct hl_actor *actor, const struct hl_configuration *configuration) {
    return 1e3 * configuration->delay_seconds * actor->late_share;
}

/* Why nothing may be done now, whatever was observed, and until when; NULL: it may. */
static char *explain_rest(struct hl_actor *actor, const struct hl_configuration *configuration, bool may,
                          double *until) {
    double begins = actor->began + find_delay(actor, configuration);
    char *sentence = explain_canary(configuration->canary_percent);
    *until = hl_now_ms() + BUSY_MS;
    if (sentence != NULL)
        return sentence;
    if (!may)
        return hl_xasprintf("the kill switch is there: " HL_SERVICE_STOP);
    const char *isolated = hl_explain_isolated();
    if (isolated != NULL)
        return hl_xasprintf("%s", isolated);
    if (hl_now_ms() < begins) {
        *until = begins;
        return hl_xasprintf("the service was started less than %.0f s ago (delay)",
                            configuration->delay_seconds);
    }
    sentence = hl_explain_busy(&actor->placer);
    if (actor->placer.is_pressure_unknown && !actor->psi_said)
        hl_warn("service: the kernel does not tell whether programs wait for memory or disks, so only free "
                "memory decides when files are put in place; boot with psi=1");
    actor->psi_said |= actor->placer.is_pressure_unknown;
    return sentence != NULL ? sentence : explain_memory(actor, configuration);
}

/* --- past acts --- */

static void forget(struct hl_actor *actor, struct deed *deed) {
    actor->counts.kept_bytes -= deed->n_made * actor->geometry.huge_page_bytes;
    free(deed->made);
    free(deed->said);
    *deed = actor->deed[--actor->n];
}

/* Forgets files that were not seen for long, and whose wait is over: the kernel may drop their huge pages. */
static void forget_old(struct hl_actor *actor) {
    double now = hl_now_ms();
    for (size_t i = actor->n; i-- > 0;)
        if (now - actor->deed[i].seen > FORGOTTEN_MS && now > actor->deed[i].not_before)
            forget(actor, &actor->deed[i]);
}

/* The entry for FILE, or NULL. */
static struct deed *look_up(struct hl_actor *actor, const struct hl_observed_file *file) {
    for (size_t i = 0; i < actor->n; i++) {
        struct deed *deed = &actor->deed[i];
        if (!hl_is_same_file_id(&deed->id, &file->id))
            continue;
        deed->seen = hl_now_ms();
        return deed;
    }
    return NULL;
}

/* The same, with a new one if it has none; NULL: there is no room. */
static struct deed *find_deed(struct hl_actor *actor, const struct hl_observed_file *file) {
    struct deed *deed = look_up(actor, file);
    if (deed != NULL || actor->n == DEEDS_MAX)
        return deed;
    deed = &actor->deed[actor->n++];
    *deed = (struct deed){.id = file->id, .seen = hl_now_ms(), .not_before = -INFINITY, .wait_ms = WAIT_MS};
    return deed;
}

/* Leaves the file of DEED alone, each time for twice as long, unless the last time was long ago. */
static void put_off(struct deed *deed) {
    double now = hl_now_ms();
    if (now - deed->not_before > WAIT_MAX_MS)
        deed->wait_ms = WAIT_MS;
    deed->not_before = now + deed->wait_ms;
    deed->wait_ms = fmin(2 * deed->wait_ms, WAIT_MAX_MS);
}

/* The Nth huge page that was put in place is small again. */
static void note_loss(struct hl_actor *actor, struct deed *deed, size_t n) {
    actor->counts.lost++;
    actor->counts.kept_bytes -= actor->geometry.huge_page_bytes;
    deed->made[n] = deed->made[--deed->n_made];
}

static void note_huge(struct hl_actor *actor, struct target *target) {
    struct deed *deed = target->deed;
    deed->made = hl_xrealloc(deed->made, (deed->n_made + 1) * sizeof *deed->made);
    deed->made[deed->n_made++] = target->chunk->offset;
    target->chunk->is_huge = true;
    actor->counts.huge++;
    actor->counts.kept_bytes += actor->geometry.huge_page_bytes;
}

/* Prints SENTENCE if it is new, keeps it, and puts the file off. */
static void note_failure(struct hl_actor *actor, struct target *target, char *sentence) {
    struct deed *deed = target->deed;
    if (deed->said == NULL || strcmp(deed->said, sentence) != 0)
        hl_warn("service: %s: not put in place: %s", target->file->path, sentence);
    free(deed->said);
    deed->said = sentence;
    actor->counts.failed++;
    put_off(deed);
}

/* --- the next act --- */

static bool is_wanted(const struct hl_observed_chunk *chunk) {
    return chunk->can_be_huge && !chunk->is_huge && chunk->samples - chunk->huge >= SAMPLES_MIN;
}

/* Looks for huge pages of FILE that were put in place and are small again. */
static void note_losses(struct hl_actor *actor, struct deed *deed, const struct hl_observed_file *file) {
    bool has_lost = false;
    for (size_t i = 0; i < file->n_chunks; i++)
        for (size_t j = deed->n_made; is_wanted(&file->chunk[i]) && j-- > 0;)
            if (deed->made[j] == file->chunk[i].offset) {
                note_loss(actor, deed, j);
                has_lost = true;
            }
    if (has_lost)
        put_off(deed);
}

/* Takes FILE's huge page with most samples on small pages, if that has more than TARGET's. */
static void consider(struct hl_actor *actor, struct hl_observed_file *file, struct target *target,
                     double *earliest) {
    struct hl_observed_chunk *best = target->chunk;
    struct deed *deed = look_up(actor, file);
    if (deed != NULL)
        note_losses(actor, deed, file);
    for (size_t i = 0; i < file->n_chunks; i++)
        if (is_wanted(&file->chunk[i]) &&
            (best == NULL || file->chunk[i].samples - file->chunk[i].huge > best->samples - best->huge))
            best = &file->chunk[i];
    deed = best != target->chunk ? find_deed(actor, file) : NULL;
    if (deed == NULL)
        return;
    if (deed->not_before <= hl_now_ms())
        *target = (struct target){file, best, deed};
    else
        *earliest = fmin(*earliest, deed->not_before);
}

/* False: no act is due before *EARLIEST. */
static bool find_target(struct hl_actor *actor, struct hl_observer *observer,
                        const struct hl_configuration *configuration, struct target *target,
                        double *earliest) {
    size_t n;
    struct hl_observed_file *file = hl_list_observed(observer, &n);
    *target = (struct target){0};
    *earliest = INFINITY;
    forget_old(actor);
    for (size_t i = 0; i < n; i++)
        if (file[i].is_examined && file[i].obstacle == NULL &&
            hl_is_eligible_path(configuration, file[i].path)) /* the configuration may have been read again */
            consider(actor, &file[i], target, earliest);
    return target->chunk != NULL;
}

/* --- the act --- */

/* Reduces PLACE to the huge page at OFFSET.  False: it has none there. */
static bool narrow(struct hl_place *place, uint64_t offset) {
    for (size_t i = 0; i < place->n_chunks; i++) {
        if (place->chunk[i].offset != offset)
            continue;
        place->chunk[0] = place->chunk[i];
        place->n_chunks = 1;
        return true;
    }
    return false;
}

/* If this kernel can only read the file anew: whether it may now.  NULL: it was unmapped for long enough, or *WAITS for that;
   else why not. */
static char *await_unmapped(struct hl_actor *actor, struct deed *deed, struct hl_place *place,
                            const struct hl_elf_file *file, char *sentence, bool *waits) {
    double now = hl_now_ms();
    int result = hl_find_mapped(&actor->placer, place, file);
    if (result != 0 || place->is_mapped)
        deed->unmapped = 0;
    if (result == 0 && place->is_mapped)
        return sentence;
    free(sentence);
    if (result != 0)
        return hl_xasprintf("it cannot be known which processes map the file, or to look takes too long");
    if (deed->unmapped == 0)
        deed->unmapped = now;
    *waits = now - deed->unmapped < UNMAPPED_MS;
    if (*waits)
        deed->not_before = deed->unmapped + UNMAPPED_MS;
    return NULL;
}

/* Makes the one huge page of PLACE.  NULL: it is huge, or *WAITS for another try; else why not. */
static char *make_huge(struct hl_actor *actor, const struct target *target, struct hl_place *place,
                       const struct hl_elf_file *file, bool *waits) {
    actor->placer.only_joins = true;
    actor->placer.cannot_join = false;
    char *sentence = hl_make_huge_in_place(&actor->placer, place, file, target->file->path);
    if (sentence == NULL || !actor->placer.cannot_join)
        return sentence;
    sentence = await_unmapped(actor, target->deed, place, file, sentence, waits);
    if (sentence != NULL || *waits)
        return sentence;
    actor->placer.only_joins = false;
    return hl_make_huge_in_place(&actor->placer, place, file, target->file->path);
}

/* Whether FILE was changed at least DELAY ms ago.  Its ctime may lie in the future of a clock that was set back: then its age is
   the time since it was first seen. */
static bool is_settled(struct deed *deed, const struct hl_elf_file *file, double delay) {
    const struct timespec *changed = &file->stat.st_ctim;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (deed->changed.tv_sec != changed->tv_sec || deed->changed.tv_nsec != changed->tv_nsec) {
        deed->changed = *changed;
        deed->changed_seen = hl_now_ms();
    }
    return 1e3 * difftime(now.tv_sec, changed->tv_sec) >= delay || hl_now_ms() - deed->changed_seen >= delay;
}

static void act_on_place(struct hl_actor *actor, struct target *target, struct hl_place *place,
                         const struct hl_elf_file *file) {
    bool waits = false;
    target->chunk->is_huge = place->chunk[0].is_huge;
    if (target->chunk->is_huge) /* another process has made it since the look */
        return;
    char *sentence = make_huge(actor, target, place, file, &waits);
    double took = place->made_ms;
    if (waits)
        return;
    if (sentence != NULL) {
        note_failure(actor, target, sentence);
        return;
    }
    note_huge(actor, target);
    hl_warn("service: %s: bytes %" PRIu64 " to %" PRIu64 " put in place in %.1f ms, mapped by %u process%s",
            target->file->path, target->chunk->offset, target->chunk->offset + place->chunk_bytes, took,
            place->chunk[0].mappers, place->chunk[0].mappers == 1 ? "" : "es");
    if (took > SLOW_MS)
        put_off(target->deed);
}

static void act_on_file(struct hl_actor *actor, struct target *target, const struct hl_elf_file *file,
                        double delay) {
    struct hl_place place;
    if (!hl_is_observed(target->file, file->fd)) {
        note_failure(actor, target, hl_xasprintf("it is another file now"));
        return;
    }
    if (!is_settled(target->deed, file, delay)) {
        target->deed->not_before = hl_now_ms() + fmin(delay, BUSY_MS);
        return;
    }
    int result = hl_look_in_place(&place, file, &actor->geometry);
    if (result == 0 && narrow(&place, target->chunk->offset))
        act_on_place(actor, target, &place, file);
    else
        note_failure(actor, target, hl_xasprintf("its text cannot be looked at any more"));
    if (result == 0 || result == -EPERM)
        hl_free_place(&place);
}

static void act_on(struct hl_actor *actor, struct target *target, double delay) {
    struct hl_elf_file file;
    if (hl_open_elf_soon(&file, target->file->path, false) != HL_ELF_FINE) {
        note_failure(actor, target, hl_xasprintf("it cannot be read any more"));
        return;
    }
    act_on_file(actor, target, &file, delay);
    hl_close_elf(&file);
}

/* --- the interface --- */

struct hl_actor *hl_start_acting(void) {
    struct hl_actor *actor = hl_xmalloc(sizeof *actor);
    hl_set_geometry(&actor->geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    actor->placer.count_ms_max = COUNT_MS;
    actor->next = INFINITY;
    actor->began = hl_now_ms();
    actor->late_share = hl_draw_share();
    return actor;
}

void hl_stop_acting(struct hl_actor *actor) {
    while (actor->n > 0)
        forget(actor, &actor->deed[actor->n - 1]);
    hl_free_placer(&actor->placer);
    free(actor->reason);
    free(actor);
}

int hl_actor_timeout(const struct hl_actor *actor, const struct hl_configuration *configuration) {
    double wait = actor->next - hl_now_ms();
    if (!configuration->acts || !isfinite(actor->next))
        return -1;
    return wait > 0 ? (int)fmin(wait, WAIT_MAX_MS) + 1 : 0;
}

void hl_look_for_acts(struct hl_actor *actor) {
    if (!isfinite(actor->next))
        actor->next = hl_now_ms();
}

void hl_act_anew(struct hl_actor *actor) { actor->next = hl_now_ms(); }

bool hl_act(struct hl_actor *actor, struct hl_observer *observer,
            const struct hl_configuration *configuration, bool may) {
    struct target target;
    double earliest, until;
    if (!configuration->acts || hl_now_ms() < actor->next || hl_is_observing(observer))
        return false;
    free(actor->reason);
    actor->reason = NULL;
    if (!find_target(actor, observer, configuration, &target, &earliest)) {
        actor->next = earliest;
        return false;
    }
    actor->reason = explain_rest(actor, configuration, may, &until);
    if (actor->reason != NULL) {
        actor->counts.put_off++;
        actor->next = until;
        return true;
    }
    double began = hl_now_ms();
    act_on(actor, &target, find_delay(actor, configuration));
    double took = hl_now_ms() - began;
    actor->next = began + took + fmax(60e3 / configuration->pages_per_minute, REST * took);
    return true;
}

const struct hl_act_counts *hl_read_acts(const struct hl_actor *actor) { return &actor->counts; }

json_t *hl_json_acts(const struct hl_actor *actor, const struct hl_configuration *configuration) {
    const struct hl_act_counts *c = &actor->counts;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "huge", (json_int_t)c->huge, "failed",
                     (json_int_t)c->failed, "lost", (json_int_t)c->lost, "put_off", (json_int_t)c->put_off,
                     "kept_bytes", (json_int_t)c->kept_bytes, "budget_bytes",
                     (json_int_t)find_budget_kib(configuration) << 10, "reason",
                     hl_json_text(configuration->acts ? actor->reason : NULL));
}
