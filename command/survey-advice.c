/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: what hugeld would do for a program that runs.

   The plan is the one that `inspect --pid` prints, made for one of its processes, the busiest; the image is looked for as
   `doctor -- PROGRAM` does it.  Where images can be made they are recommended: all processes share them and nothing is
   copied.  Otherwise it is the preloader, and the patched linker where that covers clearly more of the libraries. */
#include "survey.h"
#include "find-image.h"
#include "forecast.h"
#include "plan.h"
#include "program.h"
#include "skip.h"
#include "tracee.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An object with a smaller part of the hot text is not worth naming. */
#define PART_MIN 0.05
/* The next way has to cover so much more of the hot text to be recommended in the place of a simpler one. */
#define CLEARLY_MORE 1.25
/* How many other processes are tried where one has ended. */
#define ATTEMPTS 4
/* Of what stays on small pages, a smaller gain is none. */
#define GAIN_MIN 0.002

static const char *const way_names[HL_WAYS] = {"nothing", "image", "preload", "ldso"};

const char *hl_way_of_survey(enum hl_way_name way) { return way_names[way]; }

/* What each way would do with one object. */
struct prospect {
    char *path;
    bool is_main, is_placed_anywhere, has_image, is_here; /* the last: at PATH as it is seen from here */
    double hot;                                           /* its part of the hot text */
    double covered[HL_WAYS];                              /* how much of its text each way covers, 0 to 1 */
    uint64_t pages[HL_WAYS];
    enum hl_skip skip, image_skip; /* why nothing of it moves, and why it has no image */
};

struct prospects {
    size_t n;
    struct prospect *prospect;
    const char *plain_reason; /* why neither the preloader nor the patched linker works in it; or NULL */
    double covered[HL_WAYS];  /* of the hot text */
};

static double share(uint64_t part, uint64_t whole) { return whole > 0 ? (double)part / (double)whole : 0; }

/* Whether a terminal shows PATH as what it is, so that a command with it can be copied. */
static bool can_be_copied(const char *path) {
    json_t *text = json_string(path); /* NULL: it is not UTF-8 */
    bool can = text != NULL;
    json_decref(text);
    for (const char *at = path; *at != '\0'; at++)
        can = can && hl_hidden_bytes(at) == 0;
    return can;
}

/* Whether the file DEVICE, INODE is what PATH leads to, and PATH can be copied. */
static bool is_at(const char *path, dev_t device, ino_t inode) {
    struct stat status;
    return can_be_copied(path) && stat(path, &status) == 0 && status.st_dev == device &&
           status.st_ino == inode;
}

/* The image, which is made or looked for at the address that the next process will have. */
static void consider_image(struct prospect *prospect, const struct hl_loaded *loaded,
                           const struct hl_options *options) {
    struct hl_forecast forecast;
    struct hl_found_image found;
    uint64_t tried = 0;
    const char *path = loaded->object.path;
    hl_forecast_file(&forecast, path, loaded->file, options, 0);
    bool is_known = !hl_is_position_independent(loaded->file) || hl_try_load_bias(&tried, &forecast);
    if (is_known && hl_is_position_independent(loaded->file))
        hl_forecast_file(&forecast, path, loaded->file, options, tried);
    hl_find_image(&found, &forecast, options, is_known);
    prospect->has_image = found.path != NULL;
    prospect->is_placed_anywhere = found.is_placed_anywhere;
    prospect->image_skip = found.skip;
    /* One that is executed from its image is there as a whole, wherever it is placed; a library may not be. */
    bool is_anywhere =
        !is_known && !found.is_placed_anywhere && hl_gets_any_address(loaded->file, &forecast.geometry);
    if (is_anywhere)
        found.use = HL_IMAGE_UNUSED;
    else if (found.needed_pages > 0 ||
             (found.path != NULL && (found.use != HL_IMAGE_UNUSED || found.is_placed_anywhere))) {
        prospect->pages[HL_WAY_IMAGE] = found.path != NULL ? 0 : found.needed_pages;
        prospect->covered[HL_WAY_IMAGE] = share(found.plan.text_covered_bytes, found.plan.text_bytes);
    }
    hl_free_found_image(&found);
}

/* The patched linker puts a library where most of its text is covered. */
static void consider_linker(struct prospect *prospect, const struct hl_loaded *loaded,
                            const struct hl_options *options) {
    struct hl_forecast forecast;
    struct hl_starts starts;
    hl_forecast_file(&forecast, loaded->object.path, loaded->file, options, loaded->object.load_bias);
    prospect->covered[HL_WAY_LDSO] = prospect->covered[HL_WAY_PRELOAD];
    prospect->pages[HL_WAY_LDSO] = prospect->pages[HL_WAY_PRELOAD];
    if (prospect->is_main || forecast.object.n_segments == 0)
        return;
    hl_measure_starts(&starts, &forecast, options);
    prospect->covered[HL_WAY_LDSO] = share(starts.covered_max, forecast.plan.text_bytes);
    prospect->pages[HL_WAY_LDSO] = starts.pages_max;
}

static void add_prospect(struct prospects *prospects, const struct hl_loaded *loaded, double hot,
                         const struct hl_geometry *geometry) {
    struct hl_options options;
    struct hl_plan plan;
    struct prospect prospect = {
        .path = hl_format("%s", loaded->object.path), .is_main = loaded->object.is_main, .hot = hot};
    prospect.is_here = is_at(prospect.path, loaded->file->stat.st_dev, loaded->file->stat.st_ino);
    hl_default_options(&options);
    options.data = HL_DATA_OFF; /* what is asked about is text */
    prospect.skip = (enum hl_skip)hl_plan_object(&plan, &loaded->object, &options, geometry);
    for (unsigned i = 0; prospect.skip == HL_MOVED && i < loaded->object.n_segments; i++)
        if (loaded->object.segment[i].flags & PF_X && plan.covered_bytes[i] == 0)
            prospect.skip = plan.skip[i];
    prospect.covered[HL_WAY_PRELOAD] = share(plan.text_covered_bytes, plan.text_bytes);
    prospect.pages[HL_WAY_PRELOAD] = hl_count_pages(&plan);
    consider_linker(&prospect, loaded, &options);
    consider_image(&prospect, loaded, &options);
    prospects->prospect = hl_resize(prospects->prospect, (prospects->n + 1) * sizeof prospect);
    prospects->prospect[prospects->n++] = prospect;
}

/* What each way does for the program as a whole.  Where nothing can be preloaded, only the executable itself can be on
   huge pages, executed from its image. */
static void sum_up(struct prospects *prospects) {
    for (size_t i = 0; i < prospects->n; i++) {
        struct prospect *prospect = &prospects->prospect[i];
        for (unsigned way = HL_WAY_IMAGE; way < HL_WAYS; way++) {
            bool works = prospects->plain_reason == NULL || (way == HL_WAY_IMAGE && prospect->is_main);
            if (!works)
                prospect->covered[way] = 0;
            if (prospect->covered[way] == 0)
                prospect->pages[way] = 0;
            prospects->covered[way] += prospect->hot * prospect->covered[way];
        }
    }
}

static enum hl_way_name choose_way(const double *covered) {
    double most = 0;
    for (unsigned way = HL_WAY_IMAGE; way < HL_WAYS; way++)
        most = covered[way] > most ? covered[way] : most;
    for (unsigned way = HL_WAY_IMAGE; most > 0 && way < HL_WAYS; way++)
        if (covered[way] * CLEARLY_MORE >= most)
            return (enum hl_way_name)way;
    return HL_WAY_NOTHING;
}

/* --- the command --- */

/* Adds WORD to *TEXT as a shell reads it, after a space if there is something before it. */
static void add_word(char **text, const char *word) {
    char *quoted = hl_allocate(2 * strlen(word) + 1), *to = quoted;
    for (; *word != '\0'; word++) {
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%", *word) ==
                NULL &&
            !((unsigned char)*word & 0x80))
            *to++ = '\\';
        *to++ = *word;
    }
    char *longer = hl_format("%s%s%s", *text, (*text)[0] != '\0' ? " " : "", quoted);
    free(quoted);
    free(*text);
    *text = longer;
}

/* Objects that are named: those whose share of the hot text counts. */
static bool is_named(const struct prospect *prospect, enum hl_way_name way) {
    return prospect->covered[way] * prospect->hot >= PART_MIN;
}

static char *format_share(const struct prospects *prospects) {
    char *text = hl_format("hugeld share add");
    bool any = false;
    for (size_t i = 0; i < prospects->n; i++) {
        const struct prospect *prospect = &prospects->prospect[i];
        if (!is_named(prospect, HL_WAY_IMAGE) || prospect->has_image)
            continue;
        add_word(&text, prospect->path);
        any = true;
    }
    if (any)
        return text;
    free(text);
    return NULL;
}

/* "hugeld run -p main:libLLVM-14.so.1 -- /usr/bin/clang": the arguments are the user's. */
static char *format_run(const struct prospects *prospects, const char *executable, enum hl_way_name way) {
    char *text = hl_format("hugeld run"), *patterns = hl_format("%s", "");
    bool executes_image = false;
    unsigned libraries = 0;
    for (size_t i = 0; i < prospects->n; i++) {
        const struct prospect *prospect = &prospects->prospect[i];
        if (!is_named(prospect, way))
            continue;
        executes_image |= way == HL_WAY_IMAGE && prospect->is_main && hl_check_live_machine() != 0 &&
                          (prospect->is_placed_anywhere || prospects->plain_reason != NULL);
        libraries += !prospect->is_main;
        char *longer = hl_format("%s%s%s", patterns, patterns[0] != '\0' ? ":" : "",
                                 prospect->is_main ? "main" : hl_base_name(prospect->path));
        free(patterns);
        patterns = longer;
    }
    if (executes_image)
        add_word(&text, "--via=image");
    if (way == HL_WAY_LDSO)
        add_word(&text, "--via=ldso");
    else if (way != HL_WAY_IMAGE)
        add_word(&text, "--copy");
    if (libraries > 0) {
        add_word(&text, "-p");
        add_word(&text, patterns);
    }
    add_word(&text, "--");
    add_word(&text, executable);
    free(patterns);
    return text;
}

/* --- all of it --- */

static double hot_of(const struct hl_surveyed *program, const struct hl_loaded *loaded) {
    for (size_t i = 0; i < program->n_objects; i++)
        if (program->object[i].id.inode == loaded->inode && program->object[i].id.device == loaded->device)
            return program->object[i].share;
    return 0;
}

/* False: the process has ended, or may not be read. */
static bool find_prospects(struct prospects *prospects, struct hl_surveyed *program) {
    struct hl_process process;
    struct hl_geometry geometry;
    if (hl_open_process(&process, program->pid) != 0)
        return false;
    struct stat executable;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    bool known = fstatat(process.folder, "exe", &executable, 0) == 0 &&
                 executable.st_ino == program->id.inode && executable.st_dev == program->id.device &&
                 hl_read_process_map(&process) == 0;
    if (known) {
        char *path = hl_format("/proc/%d/exe", program->pid);
        prospects->plain_reason = hl_explain_plain_run(path);
        free(path);
        hl_find_loaded(&process, &geometry);
        for (size_t i = 0; i < process.n_loaded; i++) {
            double hot = hot_of(program, &process.loaded[i]);
            if (hot > 0 && !process.loaded[i].is_image)
                add_prospect(prospects, &process.loaded[i], hot, &geometry);
        }
        sum_up(prospects);
    }
    hl_close_process(&process);
    return known;
}

/* Another process of PROGRAM, where the one that was watched has ended: compilers are run again and again.  False: there
   is none. */
static bool find_another(struct hl_surveyed *program) {
    DIR *folder = opendir("/proc");
    bool found = false;
    for (struct dirent *entry; !found && folder != NULL && (entry = readdir(folder)) != NULL;) {
        struct stat executable;
        pid_t pid = hl_parse_pid(entry->d_name);
        char *path = hl_format("/proc/%d/exe", pid);
        found = pid != 0 && pid != program->pid && stat(path, &executable) == 0 &&
                executable.st_dev == program->id.device && executable.st_ino == program->id.inode;
        free(path);
        if (found)
            program->pid = pid;
    }
    if (folder != NULL)
        closedir(folder);
    return found;
}

/* Why no way covers anything: what holds back the object that executes most. */
static char *explain_nothing(const struct prospects *prospects) {
    const struct prospect *most = NULL;
    if (prospects->plain_reason != NULL)
        return hl_format("it is %s", prospects->plain_reason);
    for (size_t i = 0; i < prospects->n; i++)
        if (most == NULL || prospects->prospect[i].hot > most->hot)
            most = &prospects->prospect[i];
    if (most == NULL)
        return hl_format("its text belongs to no file that can be planned");
    return hl_format("%s: %s", hl_base_name(most->path),
                     hl_skip_sentence(most->skip != HL_MOVED ? most->skip : HL_SKIP_TOO_SMALL));
}

/* Whether the commands would name the files that the process has. */
static bool is_here(const struct prospects *prospects, const struct hl_surveyed *program,
                    enum hl_way_name way) {
    for (size_t i = 0; i < prospects->n; i++)
        if (is_named(&prospects->prospect[i], way) && !prospects->prospect[i].is_here)
            return false;
    return is_at(program->path, program->id.device, program->id.inode);
}

static void take_way(struct hl_advice *advice, const struct prospects *prospects,
                     const struct hl_surveyed *program) {
    enum hl_way_name way = choose_way(prospects->covered);
    advice->way = way;
    advice->share = way != HL_WAY_NOTHING ? prospects->covered[way] : 0;
    if (way == HL_WAY_NOTHING) {
        advice->reason = explain_nothing(prospects);
        return;
    }
    for (size_t i = 0; i < prospects->n; i++)
        if (is_named(&prospects->prospect[i], way))
            advice->pages += prospects->prospect[i].pages[way];
    advice->all_pages = advice->pages * (way == HL_WAY_IMAGE ? 1 : program->processes);
    if (!is_here(prospects, program, way)) {
        advice->reason =
            hl_format(can_be_copied(program->path) ? "its files are not found by their paths from here: they "
                                                     "were replaced, or are in another mount "
                                                     "namespace; start it anew, or ask hugeld there"
                                                   : "its path holds characters that a terminal does not "
                                                     "show, so there is no command to copy; rename it");
        return;
    }
    if (prospects->plain_reason != NULL)
        advice->reason = hl_format("nothing can be preloaded: it is %s", prospects->plain_reason);
    char *share_command = way == HL_WAY_IMAGE ? format_share(prospects) : NULL;
    advice->command[0] = share_command != NULL ? share_command : format_run(prospects, program->path, way);
    if (share_command != NULL)
        advice->command[1] = format_run(prospects, program->path, way);
}

/* What the hot text that is on small pages costs, in the units of the estimate. */
static double estimate(struct hl_advice *advice, const struct hl_surveyed *program,
                       const struct hl_survey *survey, double covered) {
    const struct hl_event_counts *counts = &program->counts;
    advice->by_walks = counts->known && counts->has_walks && counts->cycles > 0;
    if (!survey->exact && program->samples > 0)
        covered *= share(program->samples - program->huge_samples, program->samples);
    if (advice->by_walks)
        return hl_estimate_from_walks(&survey->curve, (double)program->likely_bytes,
                                      counts->walk_cycles / counts->cycles, covered);
    return hl_estimate_gain(&survey->curve, (double)program->likely_bytes, covered);
}

void hl_advise(struct hl_surveyed *program, const struct hl_survey *survey) {
    struct hl_advice *advice = &program->advice;
    struct prospects prospects = {0};
    if (survey->undecided) {
        advice->reason = hl_format("too many samples were lost to decide anything");
        return;
    }
    if (program->likely_bytes <= survey->limit_bytes) {
        advice->already_huge = survey->exact ? program->huge_bytes > program->hot_bytes
                                             : 2 * program->huge_samples > program->samples;
        advice->reason = advice->already_huge ? hl_format("its text is on huge pages already")
                                              : hl_format("it executes no more text than the TLB reaches");
        return;
    }
    bool known = find_prospects(&prospects, program);
    for (unsigned i = 0; !known && i < ATTEMPTS && find_another(program); i++)
        known = find_prospects(&prospects, program);
    if (known)
        take_way(advice, &prospects, program);
    else
        advice->reason = hl_format("its processes have ended, or may not be read");
    advice->gain = estimate(advice, program, survey, advice->share);
    if (advice->way != HL_WAY_NOTHING && survey->curve.n > 0 && advice->gain < GAIN_MIN) {
        free(advice->reason);
        advice->reason = hl_format("little is to be gained on this machine");
    }
    for (size_t i = 0; i < prospects.n; i++)
        free(prospects.prospect[i].path);
    free(prospects.prospect);
}
