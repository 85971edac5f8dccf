/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: the best way for a running program.

   Each object that its busiest process has loaded is judged (verdict/verdict.c), and the coverage of each way is weighed by the
   object's share of the text that the program executes. */
#include "command/survey/survey.h"
#include "elf/kernel.h"
#include "command/file/program.h"
#include "elf/reason.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An object with a smaller part of the hot text is not named. */
#define PART_MIN 0.05
/* How many other processes are tried if one has ended. */
#define ATTEMPTS 4
/* A smaller gain from the text on small pages counts as none. */
#define GAIN_MIN 0.002

/* The effect of each way on one object. */
struct prospect {
    struct hl_verdict verdict;
    bool is_here;            /* found from here by its path */
    double hot;              /* its part of the hot text */
    double covered[HL_WAYS]; /* how much of its text each way covers, 0 to 1 */
};

struct prospects {
    size_t n;
    struct prospect *prospect;
    enum hl_reason
        plain_reason;        /* why neither the preloader nor the patched linker works in it; or HL_MOVED */
    double covered[HL_WAYS]; /* of the hot text */
};

static double share(uint64_t part, uint64_t whole) { return whole > 0 ? (double)part / (double)whole : 0; }

/* Whether a terminal shows PATH unchanged, so that a command with it can be copied. */
static bool can_be_copied(const char *path) {
    json_t *text = json_string(path); /* NULL: it is not UTF-8 */
    bool can = text != NULL;
    json_decref(text);
    for (const char *at = path; *at != '\0'; at++)
        can = can && hl_hidden_bytes(at) == 0;
    return can;
}

/* Whether PATH leads to the file DEVICE, INODE, and can be copied. */
static bool is_at(const char *path, dev_t device, ino_t inode) {
    struct stat status;
    return can_be_copied(path) && stat(path, &status) == 0 && status.st_dev == device &&
           status.st_ino == inode;
}

/* Whether an object is named: its share of the hot text counts. */
static bool is_named(const struct prospect *prospect, enum hl_way way) {
    return prospect->covered[way] * prospect->hot >= PART_MIN;
}

/* Adds VERDICT, which PROSPECTS own from now on. */
static void add_prospect(struct prospects *prospects, const struct hl_verdict *verdict, bool is_here,
                         double hot) {
    struct prospect prospect = {.verdict = *verdict, .is_here = is_here, .hot = hot};
    for (unsigned way = HL_WAY_PLACE; way < HL_WAYS; way++)
        prospect.covered[way] = share(prospect.verdict.covered[way], prospect.verdict.text_bytes);
    /* The two ways of hugeld share add count as one here; if nothing can be preloaded into a program, its executable is moved in
       no other way. */
    enum hl_way shared = hl_shared_way(&prospect.verdict);
    prospect.covered[HL_WAY_IMAGE] = prospect.covered[shared];
    prospect.covered[HL_WAY_PLACE] = 0;
    if (prospects->plain_reason != HL_MOVED && !prospect.verdict.is_main)
        memset(prospect.covered, 0, sizeof prospect.covered);
    if (prospect.verdict.is_main)
        prospect.covered[HL_WAY_LDSO] = prospect.covered[HL_WAY_PRELOAD];
    for (unsigned way = HL_WAY_IMAGE; way < HL_WAYS; way++)
        if (is_named(&prospect, (enum hl_way)way))
            prospects->covered[way] += hot * prospect.covered[way];
    prospects->prospect = hl_xrealloc(prospects->prospect, (prospects->n + 1) * sizeof prospect);
    prospects->prospect[prospects->n++] = prospect;
}

/* The huge pages that WAY takes for PROSPECT. */
static uint64_t count_pages(const struct prospect *prospect, enum hl_way way) {
    const struct hl_verdict *verdict = &prospect->verdict;
    if (way == HL_WAY_IMAGE)
        way = hl_shared_way(verdict);
    if (way == HL_WAY_LDSO && verdict->is_main)
        way = HL_WAY_PRELOAD;
    return verdict->pages[way];
}

/* --- the command --- */

static char *format_share(const struct prospects *prospects) {
    char *text = hl_xasprintf("hugeld share add");
    bool any = false;
    for (size_t i = 0; i < prospects->n; i++) {
        const struct prospect *prospect = &prospects->prospect[i];
        if (!is_named(prospect, HL_WAY_IMAGE) || prospect->verdict.is_made)
            continue;
        hl_add_word(&text, prospect->verdict.path);
        any = true;
    }
    if (any)
        return text;
    free(text);
    return NULL;
}

/* "hugeld run -p main:libLLVM-14.so.1 -- /usr/bin/clang": the arguments are the user's. */
static char *format_run(const struct prospects *prospects, const char *executable, enum hl_way way) {
    char *text = hl_xasprintf("hugeld run"), *patterns = hl_xasprintf("%s", "");
    unsigned libraries = 0;
    for (size_t i = 0; i < prospects->n; i++) {
        const struct prospect *prospect = &prospects->prospect[i];
        if (!is_named(prospect, way))
            continue;
        const struct hl_verdict *verdict = &prospect->verdict;
        libraries += !verdict->is_main;
        char *longer = hl_xasprintf("%s%s%s", patterns, patterns[0] != '\0' ? ":" : "",
                                    verdict->is_main ? "main" : hl_base_name(verdict->path));
        free(patterns);
        patterns = longer;
    }
    if (way == HL_WAY_LDSO)
        hl_add_word(&text, "--via=ldso");
    else if (way != HL_WAY_IMAGE)
        hl_add_word(&text, "--copy");
    if (libraries > 0) {
        hl_add_word(&text, "-p");
        hl_add_word(&text, patterns);
    }
    hl_add_word(&text, "--");
    hl_add_word(&text, executable);
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
    struct hl_options options;
    struct hl_verdict verdict;
    hl_default_options(&options);
    if (hl_open_process(&process, program->pid) != 0)
        return false;
    struct stat executable;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    bool known = fstatat(process.folder, "exe", &executable, 0) == 0 &&
                 executable.st_ino == program->id.inode && executable.st_dev == program->id.device &&
                 hl_read_process_map(&process) == 0 && hl_find_loaded(&process, &geometry) == 0;
    if (known) {
        struct hl_elf_file file;
        enum hl_elf_problem problem = hl_open_elf(&file, process.folder, "exe");
        prospects->plain_reason = hl_check_file(problem, &file);
        hl_close_elf(&file);
        enum hl_reason obstacle = hl_find_obstacle(&process);
        for (size_t i = 0; i < process.n_loaded; i++) {
            double hot = hot_of(program, &process.loaded[i]);
            const struct hl_loaded *loaded = &process.loaded[i];
            if (hot == 0 || loaded->is_image)
                continue;
            hl_judge_loaded(&verdict, &process, loaded, obstacle, &options);
            add_prospect(prospects, &verdict,
                         is_at(loaded->object.path, loaded->file->stat.st_dev, loaded->file->stat.st_ino),
                         hot);
        }
    }
    hl_close_process(&process);
    return known;
}

/* Opens the file ID, which was at PATH.  False: it is not there any more, or cannot be read. */
static bool open_seen_file(struct hl_elf_file *file, const char *path, const struct hl_file_id *id) {
    if (id->inode == 0 || !is_at(path, id->device, id->inode) ||
        hl_open_elf(file, AT_FDCWD, path) != HL_ELF_FINE)
        return false;
    bool is_same = file->stat.st_ino == id->inode && file->stat.st_dev == id->device;
    if (!is_same)
        hl_close_elf(file);
    return is_same;
}

/* The same by the paths of PROGRAM's files, once its processes have ended.  False: its executable is not there any more. */
static bool find_prospects_of_files(struct prospects *prospects, const struct hl_surveyed *program) {
    struct hl_options options;
    struct hl_verdict verdict;
    struct hl_elf_file file;
    hl_default_options(&options);
    if (!open_seen_file(&file, program->path, &program->id))
        return false;
    prospects->plain_reason = hl_check_file(HL_ELF_FINE, &file);
    hl_close_elf(&file);
    for (size_t i = 0; i < program->n_objects; i++) {
        const struct hl_hot_object *object = &program->object[i];
        if (object->share == 0 || !open_seen_file(&file, object->path, &object->id))
            continue;
        bool is_main = object->id.inode == program->id.inode && object->id.device == program->id.device;
        hl_judge_file(&verdict, object->path, &file, is_main, &options);
        hl_set_program(&verdict, program->path);
        add_prospect(prospects, &verdict, true, object->share);
        hl_close_elf(&file);
    }
    return true;
}

/* Finds another process of PROGRAM if the watched one has ended: compilers are run again and again.  False: there is none. */
static bool find_another(struct hl_surveyed *program) {
    DIR *proc = NULL;
    bool found = false;
    for (pid_t pid; !found && (pid = hl_next_process(&proc)) != 0;) {
        struct stat executable;
        char *path = hl_xasprintf("/proc/%d/exe", pid);
        found = pid != program->pid && stat(path, &executable) == 0 &&
                executable.st_dev == program->id.device && executable.st_ino == program->id.inode;
        free(path);
        if (found)
            program->pid = pid;
    }
    if (proc != NULL)
        closedir(proc);
    return found;
}

/* Why no way covers anything: the obstacle of the object that executes most. */
static char *explain_nothing(const struct prospects *prospects) {
    const struct prospect *most = NULL;
    if (prospects->plain_reason != HL_MOVED)
        return hl_xasprintf("%s", hl_reason_sentence(prospects->plain_reason));
    for (size_t i = 0; i < prospects->n; i++)
        if (most == NULL || prospects->prospect[i].hot > most->hot)
            most = &prospects->prospect[i];
    if (most == NULL)
        return hl_xasprintf("its text belongs to no file that can be planned");
    enum hl_reason reason = most->verdict.reason != HL_MOVED ? most->verdict.reason : HL_REASON_TOO_SMALL;
    return hl_xasprintf("%s: %s", hl_base_name(most->verdict.path), hl_reason_sentence(reason));
}

/* Whether the paths in the commands lead to the files that the process has. */
static bool is_here(const struct prospects *prospects, const struct hl_surveyed *program, enum hl_way way) {
    for (size_t i = 0; i < prospects->n; i++)
        if (is_named(&prospects->prospect[i], way) && !prospects->prospect[i].is_here)
            return false;
    return is_at(program->path, program->id.device, program->id.inode);
}

/* Whether all named objects are shared in place, so that any start of the program has them. */
static bool are_in_place(const struct prospects *prospects) {
    for (size_t i = 0; i < prospects->n; i++)
        if (is_named(&prospects->prospect[i], HL_WAY_IMAGE) &&
            hl_shared_way(&prospects->prospect[i].verdict) != HL_WAY_PLACE)
            return false;
    return true;
}

static void choose_way(struct hl_advice *advice, const struct prospects *prospects,
                       const struct hl_surveyed *program) {
    enum hl_way way = hl_choose_way(prospects->covered);
    advice->way = way;
    advice->share = way != HL_WAY_NOTHING ? prospects->covered[way] : 0;
    if (way == HL_WAY_NOTHING) {
        advice->reason = explain_nothing(prospects);
        return;
    }
    for (size_t i = 0; i < prospects->n; i++)
        if (is_named(&prospects->prospect[i], way))
            advice->pages += count_pages(&prospects->prospect[i], way);
    advice->all_pages = advice->pages * (way == HL_WAY_IMAGE ? 1 : program->processes);
    if (!is_here(prospects, program, way)) {
        advice->reason = hl_xasprintf(can_be_copied(program->path)
                                          ? "its files are not found by their paths from here: they "
                                            "were replaced, or are in another mount "
                                            "namespace; start it anew, or ask hugeld there"
                                          : "its path holds characters that a terminal does not "
                                            "show, so there is no command to copy; rename it");
        return;
    }
    if (way == HL_WAY_IMAGE && are_in_place(prospects))
        advice->way = HL_WAY_PLACE;
    if (prospects->plain_reason != HL_MOVED)
        advice->reason =
            hl_xasprintf("nothing can be preloaded: %s", hl_reason_sentence(prospects->plain_reason));
    char *share_command = way == HL_WAY_IMAGE ? format_share(prospects) : NULL;
    unsigned n = 0;
    if (share_command != NULL)
        advice->command[n++] = share_command;
    if (advice->way != HL_WAY_PLACE)
        advice->command[n++] = format_run(prospects, program->path, way);
    else if (share_command == NULL && advice->reason == NULL)
        advice->reason =
            hl_xasprintf("its files are kept in place; restart the processes that were started before that");
}

/* The cost of the hot text on small pages, in the units of the estimate. */
static double estimate(struct hl_advice *advice, const struct hl_surveyed *program,
                       const struct hl_survey *survey, double covered) {
    const struct hl_event_counts *counts = &program->counts;
    advice->by_walks = counts->known && counts->has_walks && counts->cycles > 0;
    if (!survey->exact && program->samples > 0)
        covered *= share(program->samples - program->huge_samples, program->samples);
    if (advice->by_walks)
        return hl_estimate_from_walks(&survey->jump_costs, (double)program->likely_bytes,
                                      counts->walk_cycles / counts->cycles, covered);
    return hl_estimate_gain(&survey->jump_costs, (double)program->likely_bytes, covered);
}

void hl_advise(struct hl_surveyed *program, const struct hl_survey *survey) {
    struct hl_advice *advice = &program->advice;
    struct prospects prospects = {0};
    if (survey->undecided) {
        advice->reason = hl_xasprintf("too many samples were lost to decide anything");
        return;
    }
    if (program->likely_bytes <= survey->limit_bytes) {
        advice->already_huge = survey->exact ? program->huge_bytes > program->hot_bytes
                                             : 2 * program->huge_samples > program->samples;
        advice->reason = advice->already_huge ? hl_xasprintf("its text is on huge pages already")
                                              : hl_xasprintf("it executes no more text than the TLB reaches");
        return;
    }
    bool known = find_prospects(&prospects, program);
    for (unsigned i = 0; !known && i < ATTEMPTS && find_another(program); i++)
        known = find_prospects(&prospects, program);
    known = known || find_prospects_of_files(&prospects, program);
    if (known)
        choose_way(advice, &prospects, program);
    else
        advice->reason = hl_xasprintf(
            "its processes have ended or may not be read, and its file is no longer at its path");
    advice->gain = estimate(advice, program, survey, advice->share);
    if (advice->way != HL_WAY_NOTHING && survey->jump_costs.n > 0 && advice->gain < GAIN_MIN) {
        free(advice->reason);
        advice->reason = hl_xasprintf("little is to be gained on this machine");
    }
    for (size_t i = 0; i < prospects.n; i++)
        hl_free_verdict(&prospects.prospect[i].verdict);
    free(prospects.prospect);
}
