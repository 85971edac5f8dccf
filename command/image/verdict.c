/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What hugeld can do for an object, and what it has done.

   The code of each way judges it: image/in-place.c for in place, layout.c and the check that a process makes for the image, the
   planner for a copy.  Then one rule chooses.  In place is taken where it reaches three quarters of the text, because it costs
   no memory and nothing of hugeld is in any process.  Else it is the image, of which all processes share one copy, unless a
   private copy reaches clearly more.  A file or image that is made already stays, since `hugeld run` takes it (hl_find_made). */
#include "command/image/verdict.h"
#include "command/lib/local.h"
#include "command/image/find.h"
#include "command/lib/file-plan.h"
#include "command/lib/launcher.h"
#include "command/image/in-place.h"
#include "elf/kernel.h"
#include "command/image/layout.h"
#include "command/lib/libraries.h"
#include "elf/plan.h"
#include "elf/pool.h"
#include "elf/thp.h"
#include "command/lib/program.h"
#include "command/image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

/* The next way has to cover this much more to replace a milder one. */
#define CLEARLY_MORE 1.25

static const char *const way_names[HL_WAYS] = {"nothing", "in-place", "image", "preload", "ldso"};
static const char *const now_names[HL_NOWS] = {"unknown", "small",  "cached",  "moved",
                                               "copied",  "mapped", "executed"};
static const char *const now_sentences[HL_NOWS] = {
    "unknown",
    "on small pages",
    "on huge pages in the page cache",
    "moved at startup",
    "on a copy that attach made for it",
    "on its image",
    "executed from its image",
};

const char *hl_way_name(enum hl_way way) { return way_names[way]; }

char *hl_describe_now(const struct hl_verdict *verdict) {
    char *text = hl_xasprintf("%s", now_sentences[verdict->now]);
    for (unsigned now = verdict->now; now-- > HL_NOW_SMALL + 1;)
        if (verdict->now_parts & 1u << now)
            hl_append(&text, ", and %s", now_sentences[now]);
    return text;
}

/* --- the ways --- */

/* The judgement in progress. */
struct judging {
    struct hl_verdict *verdict;
    const struct hl_elf_file *file;
    const struct hl_options *options;
    struct hl_file_plan file_plan; /* at 0, or where the kernel puts the file */
    struct hl_geometry geometry;   /* of images and the page cache; hugetlb's may differ (hl_fit_geometry) */
    bool is_known;                 /* it is known that the kernel puts it there */
};

/* Why a process started from here gets no private copy of anything: no THP, and an empty pool (as doctor has it); or HL_MOVED. */
static enum hl_reason find_lack(const struct judging *judging) {
    const struct hl_geometry *geometry = &judging->file_plan.geometry;
    struct hl_status status;
    struct hl_placement placement;
    struct hl_pool pool;
    hl_read_status(&status, &hl_system_roots);
    if (hl_check_thp_policy(&hl_system_roots, geometry, &status) == 0)
        return HL_MOVED;
    hl_read_placement(&placement, &status, HL_NUMA_ANY);
    int reason = hl_read_pool(&pool, &hl_system_roots, geometry, &placement);
    if (reason != 0)
        return (enum hl_reason)reason;
    return hl_pool_available(&pool, 0) > 0 ? HL_MOVED : HL_REASON_POOL_SHORT;
}

/* A private copy, wherever the kernel puts the object. */
static void consider_copy(struct judging *judging) {
    struct hl_verdict *verdict = judging->verdict;
    struct hl_starts starts;
    verdict->lack = find_lack(judging);
    if (verdict->lack != HL_MOVED)
        return;
    hl_measure_starts(&starts, &judging->file_plan, judging->options);
    bool is_known = judging->is_known;
    verdict->covered[HL_WAY_PRELOAD] =
        is_known ? judging->file_plan.plan.text_covered_bytes : starts.covered_sum / starts.starts;
    verdict->pages[HL_WAY_PRELOAD] = is_known ? hl_count_pages(&judging->file_plan.plan) : starts.pages_max;
    if (verdict->is_main)
        return;
    verdict->covered[HL_WAY_LDSO] = starts.covered_max;
    verdict->pages[HL_WAY_LDSO] = starts.pages_max;
}

static uint64_t count_huge_pages(const struct hl_geometry *geometry, uint64_t bytes) {
    return hl_round_up(bytes, geometry->huge_page_bytes) / geometry->huge_page_bytes;
}

/* Considers the image that exists, or could be made. */
static void consider_image(struct judging *judging, bool *is_there) {
    struct hl_file_plan file_plan = judging->file_plan;
    file_plan.geometry = judging->geometry;
    struct hl_verdict *verdict = judging->verdict;
    struct hl_found_image found;
    struct hl_coverage coverage;
    hl_find_image(&found, &file_plan, judging->options, judging->is_known);
    bool can_be = found.path != NULL || found.needed_pages > 0;
    bool is_refused = found.path != NULL && found.reason != HL_MOVED && found.reason != HL_REASON_IMAGE_PLACE;
    verdict->image_reason = can_be && !is_refused ? HL_MOVED : found.reason;
    *is_there = found.path != NULL;
    const struct hl_geometry *geometry = &judging->file_plan.geometry;
    bool fits_address =
        !hl_gets_any_address(judging->file, geometry) ||
        (judging->is_known && judging->file_plan.object.load_bias % geometry->huge_page_bytes == 0);
    bool is_placed = found.is_placed_anywhere && hl_check_exec_stop_machine() == 0;
    if (can_be && !is_refused && hl_find_coverage(&coverage, judging->file, &file_plan.geometry) == 0) {
        verdict->covered[HL_WAY_IMAGE] = is_placed || fits_address ? coverage.mapped_bytes : 0;
        verdict->pages[HL_WAY_IMAGE] =
            found.path != NULL ? count_huge_pages(&file_plan.geometry, found.bytes) : found.needed_pages;
        if (verdict->covered[HL_WAY_IMAGE] == 0)
            verdict->image_reason = HL_REASON_IMAGE_USELESS;
    }
    free(found.path);
}

/* Considers in place, if the file is so already, or this user may do it. */
static void consider_in_place(struct judging *judging, bool is_made) {
    struct hl_verdict *verdict = judging->verdict;
    struct hl_chunks chunks;
    struct statfs fs;
    char *path = hl_find_file_path(judging->file->fd), *refusal = NULL;
    int result = hl_is_native(judging->file) ? hl_examine_chunks(&chunks, judging->file, &judging->geometry)
                                             : HL_REASON_FOREIGN;
    if (result == 0 || result == -EPERM) {
        uint64_t bytes = chunks.n_chunks * chunks.chunk_bytes;
        if (!is_made)
            refusal = path != NULL ? hl_explain_not_in_place(judging->file, path) : hl_xasprintf("%s", "");
        verdict->covered[HL_WAY_IN_PLACE] = refusal == NULL ? bytes : 0;
        verdict->pages[HL_WAY_IN_PLACE] = refusal == NULL ? chunks.n_chunks : 0;
        verdict->is_layer = refusal != NULL && hl_covers_enough(bytes, chunks.text_bytes) &&
                            (!hl_is_outermost() ||
                             (fstatfs(judging->file->fd, &fs) == 0 && fs.f_type == OVERLAYFS_SUPER_MAGIC));
        hl_free_chunks(&chunks);
    }
    free(refusal);
    free(path);
}

/* --- the choice --- */

enum hl_way hl_shared_way(const struct hl_verdict *verdict) {
    if (verdict->is_made)
        return verdict->best;
    if (hl_covers_enough(verdict->covered[HL_WAY_IN_PLACE], verdict->text_bytes))
        return HL_WAY_IN_PLACE;
    return verdict->covered[HL_WAY_IMAGE] > 0 ? HL_WAY_IMAGE : HL_WAY_NOTHING;
}

/* What is MADE stays.  Else in place, where it reaches enough, or the mildest of the other ways such that no other of them covers
   clearly more. */
static void choose(struct hl_verdict *verdict, enum hl_way made) {
    double most = 0;
    verdict->is_made = made != HL_WAY_NOTHING && verdict->covered[made] > 0;
    verdict->best = verdict->is_made ? made : HL_WAY_NOTHING;
    if (!verdict->is_made && hl_shared_way(verdict) == HL_WAY_IN_PLACE)
        verdict->best = HL_WAY_IN_PLACE;
    for (unsigned way = HL_WAY_IMAGE; way < HL_WAYS; way++)
        most = (double)verdict->covered[way] > most ? (double)verdict->covered[way] : most;
    for (unsigned way = HL_WAY_IMAGE; verdict->best == HL_WAY_NOTHING && most > 0 && way < HL_WAYS; way++)
        if ((double)verdict->covered[way] * CLEARLY_MORE >= most)
            verdict->best = (enum hl_way)way;
}

/* Why no text of FILE_PLAN's object moves. */
static enum hl_reason find_reason_of_plan(const struct hl_file_plan *file_plan) {
    if (file_plan->reason != 0)
        return (enum hl_reason)file_plan->reason;
    for (unsigned i = 0; i < file_plan->object.n_segments; i++)
        if (file_plan->object.segment[i].flags & PF_X && file_plan->plan.covered_bytes[i] == 0 &&
            file_plan->plan.reason[i] != HL_MOVED)
            return file_plan->plan.reason[i];
    return HL_REASON_TOO_SMALL;
}

/* Why the text is on small pages where the object is started as it is. */
static enum hl_reason find_reason(const struct hl_verdict *verdict, const struct hl_file_plan *file_plan) {
    enum hl_reason image = verdict->image_reason;
    switch (verdict->best) {
    case HL_WAY_IN_PLACE:
        return verdict->is_made ? HL_REASON_IN_PLACE : HL_REASON_NOT_IN_PLACE;
    case HL_WAY_IMAGE:
        return verdict->is_made ? HL_REASON_NOT_STARTED : HL_REASON_NO_IMAGE;
    case HL_WAY_NOTHING:
        if (verdict->plain_reason != HL_MOVED)
            return image == HL_REASON_IMAGE_INELIGIBLE || image == HL_REASON_STORE_FOREIGN
                       ? image
                       : verdict->plain_reason;
        if (verdict->lack != HL_MOVED && file_plan->plan.text_covered_bytes > 0)
            return verdict->lack;
        return image == HL_REASON_SPARSE_TEXT ? image : find_reason_of_plan(file_plan);
    default:
        return verdict->is_layer                  ? HL_REASON_LAYER
               : image == HL_REASON_STORE_FOREIGN ? image
                                                  : HL_REASON_NO_COPY;
    }
}

void hl_judge_file(struct hl_verdict *verdict, const char *path, const struct hl_elf_file *file, bool is_main,
                   const struct hl_options *options) {
    struct hl_options of_text = *options;
    struct judging judging = {.verdict = verdict, .file = file, .options = &of_text};
    enum hl_way made = hl_find_made(file->fd, options);
    uint64_t tried = 0;
    bool is_image_there = false;
    of_text.data = HL_DATA_OFF; /* the question is about text only */
    of_text.bss = HL_BSS_OFF;
    *verdict = (struct hl_verdict){.path = hl_xasprintf("%s", path),
                                   .is_main = is_main,
                                   .is_library = strcmp(hl_elf_type(file), "dso") == 0};
    if (options->store.bytes > 0)
        verdict->store = hl_xasprintf("%.*s", (int)options->store.bytes, options->store.at);
    hl_plan_file(&judging.file_plan, path, file, &of_text, 0);
    if (hl_is_position_independent(file))
        judging.is_known =
            hl_try_load_bias(&tried, file, &judging.file_plan.object, &judging.file_plan.geometry);
    else
        judging.is_known = true;
    if (tried != 0)
        hl_plan_file(&judging.file_plan, path, file, &of_text, tried);
    judging.geometry = judging.file_plan.geometry;
    if (hl_is_native(file))
        hl_set_geometry(&judging.geometry, judging.geometry.page_bytes);
    verdict->text_bytes = judging.file_plan.plan.text_bytes;
    verdict->plain_reason = is_main ? hl_check_file(file) : HL_MOVED;
    if (judging.file_plan.object.n_segments > 0) {
        if (verdict->plain_reason == HL_MOVED && hl_is_native(file))
            consider_copy(&judging);
        consider_image(&judging, &is_image_there);
        consider_in_place(&judging, made == HL_WAY_IN_PLACE);
    }
    /* A library with less text than one huge page holds gains nothing that is worth an image or copies. */
    if (verdict->is_library && verdict->text_bytes < judging.geometry.huge_page_bytes) {
        verdict->covered[HL_WAY_PRELOAD] = verdict->covered[HL_WAY_LDSO] = 0;
        if (!is_image_there)
            verdict->covered[HL_WAY_IMAGE] = 0;
    }
    verdict->has_image = is_image_there;
    choose(verdict, made == HL_WAY_IMAGE && !is_image_there ? HL_WAY_NOTHING : made);
    verdict->reason = find_reason(verdict, &judging.file_plan);
    if (verdict->reason == HL_REASON_IN_PLACE && !hl_has_huge_text(file, &judging.geometry))
        verdict->reason = HL_REASON_PLACE_LOST;
    if (is_main && faccessat(file->fd, "", X_OK, AT_EMPTY_PATH) != 0 && errno == EACCES) {
        verdict->best = HL_WAY_NOTHING;
        verdict->reason = HL_REASON_NOT_EXECUTABLE;
    }
}

/* The bytes of text of FILE at PATH.  Only its headers are read: reading the padding to judge an image would cache it in small
   pages. */
static uint64_t count_text_bytes(const char *path, const struct hl_elf_file *file,
                                 const struct hl_options *options) {
    struct hl_file_plan file_plan;
    hl_plan_file(&file_plan, path, file, options, 0);
    return file_plan.plan.text_bytes;
}

bool hl_judge_larger_library(struct hl_verdict *verdict, const char *executable,
                             const struct hl_elf_file *file, const struct hl_options *options) {
    struct hl_texts libraries;
    struct hl_elf_file library;
    const char *larger = NULL;
    uint64_t most = count_text_bytes(executable, file, options);
    free(hl_list_libraries(&libraries, executable, file, true));
    for (size_t i = 0; i < libraries.n; i++) {
        if (hl_open_elf(&library, AT_FDCWD, libraries.text[i]) != HL_ELF_FINE)
            continue;
        uint64_t bytes = count_text_bytes(libraries.text[i], &library, options);
        hl_close_elf(&library);
        larger = bytes > most ? libraries.text[i] : larger;
        most = bytes > most ? bytes : most;
    }
    bool is_judged = larger != NULL && hl_open_elf(&library, AT_FDCWD, larger) == HL_ELF_FINE;
    if (is_judged) {
        hl_judge_file(verdict, larger, &library, false, options);
        if (access(executable, X_OK) == 0)
            hl_replace_text(&verdict->program, executable);
        hl_close_elf(&library);
    }
    hl_free_texts(&libraries);
    bool is_worth_it = is_judged && verdict->best != HL_WAY_NOTHING;
    if (is_judged && !is_worth_it)
        hl_free_verdict(verdict);
    return is_worth_it;
}

/* Whether TARGET is a script, itself or by way of env(1), that starts an unknown program, or env or a dynamic linker with options
   that are not read.  Any other launcher is judged as a program of its own. */
static bool is_start_unknown(const struct hl_target *target) {
    const char *name = hl_base_name(target->program->executable);
    return target->is_unknown && (target->program->is_script || target->followed ||
                                  strcmp(name, "env") == 0 || strncmp(name, "ld", 2) == 0);
}

enum hl_reason hl_judge_program(struct hl_verdict *verdict, struct hl_program *program, char *const *argv,
                                const struct hl_options *options) {
    const struct hl_target *target = hl_follow_launchers(program, argv);
    struct hl_program *last = target->program;
    struct hl_verdict library;
    struct hl_geometry geometry = hl_read_geometry();
    *verdict = (struct hl_verdict){0};
    if (!hl_read_program(last) || hl_is_privileged(last)) {
        enum hl_reason reason = hl_check_preload(last);
        return reason != HL_MOVED ? reason : HL_REASON_LAUNCHER;
    }
    if (is_start_unknown(target))
        return HL_REASON_LAUNCHER;
    hl_judge_file(verdict, last->executable, &last->file, true, options);
    /* A program that "ld.so PROGRAM" runs has no exec stop: the library maps its image, if that fits its address. */
    if (verdict->best != HL_WAY_NOTHING && verdict->best != HL_WAY_IN_PLACE && hl_is_linker_called(program) &&
        hl_gets_any_address(&last->file, &geometry))
        return HL_REASON_NO_COPY;
    bool is_small = verdict->reason == HL_REASON_TOO_SMALL || verdict->reason == HL_REASON_SPARSE_TEXT;
    if (is_small && hl_judge_larger_library(&library, last->executable, &last->file, options)) {
        hl_free_verdict(verdict);
        *verdict = library;
        return !library.is_made                  ? HL_REASON_TEXT_IN_LIBRARY
               : library.best == HL_WAY_IN_PLACE ? library.reason
                                                 : HL_REASON_LIBRARY_UNNAMED;
    }
    return verdict->reason;
}

/* --- a process --- */

/* Where REGION, in LOADED's text, is now. */
static enum hl_now find_now_of(const struct hl_region *region, const struct hl_loaded *loaded) {
    uint64_t cached = region->file_pmd_bytes + region->shmem_pmd_bytes;
    if (region->of_image)
        return hl_is_own_image(region) ? HL_NOW_COPIED : HL_NOW_MAPPED;
    if (region->inode == loaded->inode && region->device == loaded->device)
        return cached > 0 ? HL_NOW_CACHED : HL_NOW_SMALL;
    return region->anon_huge_bytes + hl_hugetlb_bytes(region) > 0 ? HL_NOW_MOVED : HL_NOW_SMALL;
}

enum hl_now hl_find_now(const struct hl_process *process, const struct hl_loaded *loaded, unsigned *parts) {
    enum hl_now now = HL_NOW_SMALL;
    unsigned all = 0;
    for (size_t i = 0; i < process->n_regions; i++) {
        const struct hl_region *region = &process->region[i];
        if (!(region->flags & PF_X) ||
            hl_count_segment_bytes(&loaded->object, region->start, region->end, PF_X) == 0)
            continue;
        enum hl_now of_region = find_now_of(region, loaded);
        now = of_region > now ? of_region : now;
        all |= 1u << of_region;
    }
    now = loaded->is_image ? HL_NOW_EXECUTED : now;
    if (parts != NULL)
        *parts = loaded->is_image || all == 0 ? 1u << now : all;
    return now;
}

/* Linux maps no file by huge entries into a process with PR_SET_THP_DISABLE, and MADV_COLLAPSE is EINVAL; huge entries that it
   had before stay (6.18). */
enum hl_reason hl_find_obstacle(const struct hl_process *process) {
    struct hl_task_status status;
    hl_read_task_status(&status, process->folder, "status");
    return status.thp_enabled ? HL_MOVED : HL_REASON_ATTACH_THP_DISABLED;
}

/* LOADED's file is the image itself; other ways for the original are not considered. */
static void judge_image(struct hl_verdict *verdict, const struct hl_loaded *loaded) {
    struct hl_geometry geometry = hl_read_geometry();
    struct hl_coverage coverage = {0};
    bool is_main = loaded->object.is_main;
    *verdict = (struct hl_verdict){.path = hl_xasprintf("%s", loaded->object.path),
                                   .is_main = is_main,
                                   .is_library = !is_main,
                                   .best = HL_WAY_IMAGE,
                                   .is_made = true};
    hl_find_coverage(&coverage, loaded->file, &geometry);
    verdict->text_bytes = coverage.text_bytes;
    verdict->covered[HL_WAY_IMAGE] = is_main ? coverage.executed_bytes : coverage.mapped_bytes;
    verdict->pages[HL_WAY_IMAGE] = count_huge_pages(&geometry, (uint64_t)loaded->file->stat.st_size);
    if (verdict->covered[HL_WAY_IMAGE] > 0)
        return;
    verdict->best = HL_WAY_NOTHING;
    verdict->reason = HL_REASON_IMAGE_USELESS;
}

/* Whether the path of LOADED leads to another file from here, as a path of another mount namespace may, or to none; no image's
   does.  If a file system on the way may not answer, it is not asked, and the result is false. */
static bool is_elsewhere(const struct hl_loaded *loaded) {
    const struct stat *own = &loaded->file->stat;
    struct hl_local local = {0};
    struct stat found;
    if (loaded->is_image)
        return false;
    int result = hl_stat_local(&local, loaded->object.path, true, &found);
    hl_close_local(&local);
    return result != -EREMOTE && (result != 0 || found.st_dev != own->st_dev || found.st_ino != own->st_ino);
}

void hl_judge_loaded(struct hl_verdict *verdict, const struct hl_process *process,
                     const struct hl_loaded *loaded, enum hl_reason obstacle,
                     const struct hl_options *options) {
    if (loaded->is_image)
        judge_image(verdict, loaded);
    else
        hl_judge_file(verdict, loaded->object.path, loaded->file, loaded->object.is_main, options);
    bool is_program_here =
        process->n_loaded > 0 && process->loaded[0].object.is_main && !is_elsewhere(&process->loaded[0]);
    free(verdict->program);
    verdict->program =
        is_program_here && process->executable != NULL ? hl_xasprintf("%s", process->executable) : NULL;
    verdict->now = hl_find_now(process, loaded, &verdict->now_parts);
    verdict->obstacle = verdict->best != HL_WAY_NOTHING ? obstacle : HL_MOVED;
    verdict->is_gone = loaded->file->stat.st_nlink == 0 || is_elsewhere(loaded);
}

void hl_free_verdict(struct hl_verdict *verdict) {
    free(verdict->path);
    free(verdict->store);
    free(verdict->program);
    verdict->path = verdict->store = verdict->program = NULL;
}

/* --- in words --- */

/* "an image, 98.1 % of its text on 6 huge pages for all processes together"; the caller frees it. */
static char *describe(const struct hl_verdict *verdict) {
    static const char *const names[HL_WAYS] = {"", "in place", "an image", "a private copy",
                                               "a private copy"};
    static const char *const costs[HL_WAYS] = {"", " of the page cache", " for all processes together",
                                               " in each process", " in each process"};
    unsigned share = hl_permille(verdict->covered[verdict->best], verdict->text_bytes);
    unsigned long long pages = verdict->pages[verdict->best];
    bool is_shared = verdict->best == HL_WAY_IN_PLACE || verdict->best == HL_WAY_IMAGE;
    char *own = hl_default_store();
    bool is_there = verdict->is_made && verdict->reason != HL_REASON_PLACE_LOST;
    bool needs_store = is_shared && !verdict->is_made && verdict->store == NULL && own == NULL;
    free(own);
    if (verdict->best == HL_WAY_NOTHING)
        return hl_xasprintf("leave it as it is: %s", hl_reason_sentence(verdict->reason));
    return hl_xasprintf("%s%s%s: %u.%u %% of its text on %llu huge page%s%s%s",
                        verdict->is_layer ? "in place, by root of the host; here " : "", names[verdict->best],
                        is_there ? ", which is there" : "", share / 10, share % 10, pages, hl_plural(pages),
                        costs[verdict->best],
                        needs_store ? " (root can make it, or a user with XDG_RUNTIME_DIR set)" : "");
}

/* "hugeld run --copy -- /bin/x", where COMMAND is hugeld run; NULL: it runs on huge pages by itself. */
static char *format_run(const struct hl_verdict *verdict, const char *command) {
    if (verdict->best == HL_WAY_IN_PLACE)
        return NULL;
    char *text = hl_xasprintf("%s", command);
    if (verdict->best == HL_WAY_LDSO)
        hl_add_word(&text, "--via=ldso");
    if (verdict->best == HL_WAY_PRELOAD)
        hl_add_word(&text, "--copy");
    if (verdict->best == HL_WAY_IMAGE)
        hl_add_option(&text, "-ostore=", verdict->store);
    if (verdict->is_library) {
        char *patterns = hl_xasprintf("main:%s", hl_base_name(verdict->path));
        hl_add_word(&text, "-p");
        hl_add_word(&text, patterns);
        free(patterns);
    }
    hl_add_word(&text, "--");
    hl_add_word(&text, !verdict->is_library       ? verdict->path
                       : verdict->program != NULL ? verdict->program
                                                  : "PROGRAM");
    return text;
}

/* The commands for the best way, "hugeld enable /bin/x, then hugeld run -- /bin/x"; NULL: nothing is to be done.  The caller
   frees it. */
static char *format_commands(const struct hl_verdict *verdict) {
    bool is_added = (verdict->best == HL_WAY_IN_PLACE || verdict->best == HL_WAY_IMAGE) && !verdict->is_made;
    if (verdict->best == HL_WAY_NOTHING || verdict->is_gone)
        return NULL;
    char *run = format_run(verdict, "hugeld run");
    if (!is_added)
        return run;
    char *add = hl_xasprintf("hugeld enable");
    hl_add_word(&add, verdict->path);
    if (run != NULL)
        hl_append(&add, ", then %s", run);
    free(run);
    return add;
}

char *hl_format_verdict(const struct hl_verdict *verdict) {
    char *line = describe(verdict), *commands = format_commands(verdict);
    if (commands != NULL)
        hl_append(&line, "; %s", commands);
    free(commands);
    if (verdict->best == HL_WAY_NOTHING || verdict->best == HL_WAY_IN_PLACE || verdict->is_gone ||
        !verdict->is_main) /* in place, runs without hugeld are on huge pages, too */
        return line;
    char *bench = format_run(verdict, "hugeld bench");
    bool is_next = verdict->best == HL_WAY_IMAGE && !verdict->is_made;
    hl_append(&line, " (%smeasure it: %s)", is_next ? "then " : "", bench);
    free(bench);
    return line;
}

json_t *hl_json_verdict(const struct hl_verdict *verdict) {
    char *commands = format_commands(verdict), *words = describe(verdict);
    json_t *json =
        json_pack("{s:s, s:o, s:I, s:b, s:o, s:s, s:s}", "way", hl_way_name(verdict->best), "text_share",
                  hl_json_share(verdict->covered[verdict->best], verdict->text_bytes), "pages",
                  (json_int_t)verdict->pages[verdict->best], "is_made", verdict->is_made, "commands",
                  hl_json_text(commands), "now", now_names[verdict->now], "sentence", words);
    json_t *parts = json_array();
    for (unsigned now = HL_NOW_SMALL; now < HL_NOWS; now++)
        if (verdict->now_parts & 1u << now)
            json_array_append_new(parts, json_string(now_names[now]));
    json_object_set_new(json, "now_parts", parts);
    json_object_set_new(json, "reason",
                        verdict->reason != HL_MOVED ? json_string(hl_reason_name(verdict->reason))
                                                    : json_null());
    json_object_set_new(json, "obstacle",
                        verdict->obstacle != HL_MOVED ? json_string(hl_reason_name(verdict->obstacle))
                                                      : json_null());
    free(words);
    free(commands);
    return json;
}
