/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld doctor -- PROGRAM: can the pool serve this program now?

   The answer is for `hugeld run`, which takes pages of the pool only for private copies, made if --copy or a backend asks for them.
   libhugeld.so, preloaded by hand, makes them, too.

   hugeld comes first in a process, so a program that insists on huge pages (postgres with huge_pages=on does not start without)
   would find them taken.  The sum has two parts: the planner's pages for the objects that the preloader would select, at the load
   address that takes most, and the program's own pages, or reserve_pages= if that is more.  It is compared with the pages available
   to this process, whose cpuset, memory policy and cgroup the program inherits: in a unit, ExecStartPre= runs in the service's.

   The objects are the executable and, if the patterns can mean others, the libraries that the dynamic linker lists.

   An object with an image takes nothing from the pool.  For each other one the answer says whether an image would fit into the
   store, and names the command that makes it.

   The exit code is 0 if the pool has enough, 1 if not (or if that can't be determined), 2 if there is no such program. */
#include "command/doctor/program.h"
#include "command/file/elf-file.h"
#include "command/file/file-plan.h"
#include "command/file/libraries.h"
#include "command/proc/process.h"
#include "command/run/run.h"
#include "elf/reason.h"
#include "command/image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the objects --- */

/* Takes IMAGE and VERDICT over. */
static void add_object(struct hl_needs *needs, const char *path, const struct hl_starts *starts,
                       const struct hl_found_image *image, const struct hl_verdict *verdict) {
    struct hl_need *need;
    bool can_be_copied = verdict->plain_reason == HL_MOVED;
    bool takes_pool = needs->makes_copy && can_be_copied && image->use != HL_IMAGE_USED &&
                      needs->options.backend != HL_BACKEND_IMAGE;
    needs->object = hl_xrealloc(needs->object, (needs->n_objects + 1) * sizeof *needs->object);
    need = &needs->object[needs->n_objects++];
    *need = (struct hl_need){hl_xasprintf("%s", path), takes_pool ? starts->pages_min : 0,
                             takes_pool ? starts->pages_max : 0, *image, *verdict};
    if (takes_pool && image->use == HL_IMAGE_DEPENDS)
        need->pages_min = 0;
    needs->fits = needs->fits || (can_be_copied && starts->pages_max > 0) || verdict->best != HL_WAY_NOTHING;
    needs->our_pages_min += need->pages_min;
    needs->our_pages_max += need->pages_max;
    needs->image_pages += image->use == HL_IMAGE_USED ? hl_count_pages(&image->plan) : 0;
}

/* OPTIONS without data and bss, so that only pages of hugetlb are planned. */
static struct hl_options plan_hugetlb_only(const struct hl_options *options) {
    struct hl_options only = *options;
    only.data = HL_DATA_OFF;
    only.bss = HL_BSS_OFF;
    return only;
}

/* Counts the object FILE at PATH if it is selected. */
static void count_object(struct hl_needs *needs, const char *path, const struct hl_elf_file *file,
                         bool is_main) {
    struct hl_file_plan file_plan;
    struct hl_starts starts;
    struct hl_found_image image;
    struct hl_verdict verdict;
    uint64_t tried = 0;
    const struct hl_options options = plan_hugetlb_only(&needs->options);
    hl_plan_file(&file_plan, path, file, &options, 0);
    file_plan.object.is_main = is_main;
    if (hl_select_object(options.objects, &file_plan.object) != HL_NOT_SELECTED) {
        hl_measure_starts(&starts, &file_plan, &options);
        bool is_known = !hl_is_position_independent(file) ||
                        hl_try_load_bias(&tried, file, &file_plan.object, &file_plan.geometry);
        if (is_known && hl_is_position_independent(file))
            hl_plan_file(&file_plan, path, file, &options, tried);
        hl_find_image(&image, &file_plan, &options, is_known);
        hl_judge_file(&verdict, path, file, is_main, &options);
        hl_set_program(&verdict, needs->executable);
        add_object(needs, path, &starts, &image, &verdict);
    }
}

static void count_libraries(struct hl_needs *needs) {
    struct hl_texts libraries;
    char *problem =
        hl_list_libraries(&libraries, needs->executable, &needs->target.program->file, !needs->is_running);
    if (problem != NULL)
        needs->reason = hl_xasprintf("%s, so only the executable is counted", problem);
    free(problem);
    for (size_t i = 0; i < libraries.n; i++) {
        struct hl_elf_file file;
        if (hl_open_elf(&file, AT_FDCWD, libraries.text[i]) != HL_ELF_FINE)
            continue;
        count_object(needs, libraries.text[i], &file, false);
        hl_close_elf(&file);
    }
    hl_free_texts(&libraries);
}

/* Why hugeld does nothing in this program; NULL if it may. */
static const char *explain_idleness(const struct hl_needs *needs) {
    if (needs->options.objects.bytes == 0)
        return "LD_HUGEPAGES selects nothing";
    return hl_acts_in(&needs->options, needs->executable) ? NULL : "exe= does not match it";
}

static bool selects_just_main(const struct hl_needs *needs) {
    const struct hl_string *objects = &needs->options.objects;
    return objects->bytes == strlen("main") && memcmp(objects->at, "main", objects->bytes) == 0;
}

static void be_idle(struct hl_needs *needs, const char *before, const char *reason) {
    needs->idle = true;
    needs->reason = hl_xasprintf("%s%s", before, reason);
}

static void count_our_pages(struct hl_needs *needs) {
    const struct hl_program *program = needs->target.program;
    const char *idleness = explain_idleness(needs), *plain = NULL;
    enum hl_reason reason = hl_check_file(program->problem, &program->file);
    if (reason != HL_MOVED)
        plain = hl_reason_sentence(reason);
    if (idleness != NULL) {
        be_idle(needs, "", idleness);
        return;
    }
    if (needs->options.backend == HL_BACKEND_THP && plain == NULL) {
        needs->reason = hl_xasprintf("backend=thp takes nothing from the pool");
        return;
    }
    if (program->problem == HL_ELF_FINE)
        count_object(needs, needs->executable, &program->file, true);
    if (plain != NULL && !needs->fits) {
        be_idle(needs, "", plain);
        return;
    }
    if (plain != NULL)
        needs->reason = hl_xasprintf("there can be no private copy, because %s", plain);
    else if (!selects_just_main(needs))
        count_libraries(needs);
    if (needs->options.backend == HL_BACKEND_IMAGE && needs->reason == NULL)
        needs->reason = hl_xasprintf("backend=image takes nothing from the pool");
    if (!needs->makes_copy && needs->fits && needs->reason == NULL)
        needs->reason = hl_xasprintf("hugeld run makes no private copy without --copy");
}

/* The store that `hugeld share` would put images into. */
static void look_at_store(struct hl_needs *needs) {
    char *path = hl_choose_store(&needs->options);
    hl_examine_store(&needs->store, path != NULL ? path : HL_SYSTEM_STORE, &needs->geometry);
    free(path);
}

/* --- the pool --- */

static char *format_remedy(const struct hl_needs *needs) {
    const struct hl_pool *pool = &needs->pool;
    const struct hl_pool_node *node = hl_find_node_to_fill(pool);
    uint64_t missing = needs->needed_pages - needs->available_pages;
    /* Surplus pages are in use, and a larger pool takes them in first (set_max_huge_pages, Linux, mm/hugetlb.c). */
    if (node == NULL)
        return hl_xasprintf("sysctl vm.nr_hugepages=%" PRIu64, pool->total_pages + missing);
    return hl_xasprintf("echo %" PRIu64 " > /sys/devices/system/node/node%u/hugepages/hugepages-%" PRIu64
                        "kB/nr_hugepages",
                        node->total_pages + missing, node->node, needs->geometry.huge_page_bytes / 1024);
}

static void compare_with_pool(struct hl_needs *needs) {
    struct hl_placement placement;
    struct hl_status status;
    uint64_t own = needs->own.pages, reserve = needs->options.reserve_pages;
    hl_read_status(&status, &hl_system_roots);
    hl_read_placement(&placement, &status, needs->options.numa);
    int reason = hl_read_pool(&needs->pool, &hl_system_roots, &needs->geometry, &placement);
    needs->available_pages = reason == 0 ? hl_pool_available(&needs->pool, 0) : 0;
    needs->needed_pages = needs->our_pages_max + (own > reserve ? own : reserve);
    /* By default hugeld leaves reserved pages alone and takes other memory if the pool has too few, so only the program can be
       short of pages. */
    needs->falls_back =
        needs->options.backend == HL_BACKEND_AUTO && own <= reserve && reserve <= needs->available_pages;
    needs->enough =
        needs->own.problem == NULL && (needs->needed_pages <= needs->available_pages || needs->falls_back);
    if (needs->own.problem != NULL)
        needs->remedy = hl_xasprintf("--own-pages N");
    else if (!needs->enough)
        needs->remedy =
            reason != 0 ? hl_xasprintf("%s", hl_reason_remedy((enum hl_reason)reason)) : format_remedy(needs);
}

/* --- all of it --- */

/* Whether libhugeld.so is preloaded into programs started from here: it copies objects that are not shared. */
static bool is_preloaded(void) {
    const char *preload = getenv("LD_PRELOAD");
    return preload != NULL && strstr(preload, "libhugeld.so") != NULL;
}

/* The options as `run` would have them. */
static void read_options(struct hl_needs *needs, const struct hl_needs_request *request) {
    const char *objects = request->patterns != NULL ? request->patterns : getenv("LD_HUGEPAGES");
    objects = objects != NULL ? objects : "main";
    needs->options_text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), request->options);
    hl_default_options(&needs->options);
    hl_parse_options(&needs->options, needs->options_text,
                     NULL); /* libhugeld.so warns about mistakes in inherited options */
    needs->options.objects = (struct hl_string){objects, strlen(objects)};
    const struct hl_run run = {.copies = request->makes_copy};
    needs->makes_copy = is_preloaded() || !hl_shares_only(&run, &needs->options, needs->options_text);
}

/* 0, or -ESTALE: from here, the path of PID's executable leads to another file, or to none. */
static int compare_with_path(pid_t pid) {
    struct hl_geometry geometry;
    struct hl_process process = {0};
    int result = hl_open_process(&process, pid);
    if (result != 0)
        return 0;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    if (hl_read_process_map(&process) == 0 && hl_find_loaded(&process, &geometry) == 0 &&
        process.n_loaded > 0 && process.loaded[0].object.is_main && hl_is_elsewhere(&process.loaded[0]))
        result = -ESTALE;
    hl_close_process(&process);
    return result;
}

/* If NAME is the number of a process, opens its executable, which is judged as if it were started again.  0 or a negated errno;
   -ESTALE: its path leads elsewhere from here; -ESRCH: there is no such process; -ENODATA: it executes no file. */
static int find_process(struct hl_needs *needs, const char *name) {
    pid_t pid = hl_parse_pid(name);
    if (pid == 0)
        return -ENOENT;
    char *link = hl_xasprintf("/proc/%d/exe", pid), *path = hl_read_link(AT_FDCWD, link);
    int result = path != NULL ? compare_with_path(pid) : -errno;
    free(link);
    if (result == -ENOENT)
        result = kill(pid, 0) == 0 ? -ENODATA : errno == EPERM ? -EACCES : -ESRCH;
    needs->is_running = result == 0 && hl_open_program(&needs->program, path);
    free(path);
    return needs->is_running ? 0 : result != 0 ? result : -ESTALE;
}

/* Why PROGRAM has no executable; static. */
static const char *explain_no_program(const struct hl_program *program) {
    if (program->is_script || program->problem == HL_ELF_OTHER)
        return "neither an ELF file nor a script that names one as its interpreter";
    /* the sentence names errno */
    if (program->problem == HL_ELF_UNREADABLE && access(program->path, R_OK) == 0)
        errno = EIO;
    return hl_elf_problem_sentence(program->problem);
}

/* 0, or the exit code. */
static int find_executable(struct hl_needs *needs, char *const *program) {
    const char *name = program[0];
    if (!hl_open_program(&needs->program, name)) {
        int error = errno, result = find_process(needs, name);
        if (result == -ESTALE) {
            hl_warn(
                "%s: its executable is not found by its path from here: it was removed or replaced, or is "
                "in another mount namespace; start it anew, or ask hugeld there",
                name);
            return HL_EXIT_USAGE;
        }
        if (result != 0 && result != -ENOENT) {
            hl_say_unreadable(hl_parse_pid(name), result);
            return HL_EXIT_USAGE;
        }
        if (result != 0) {
            errno = error;
            hl_refuse_program(name);
            return HL_EXIT_USAGE;
        }
    }
    hl_read_program(&needs->program);
    needs->target = (struct hl_target){.program = &needs->program, .argv = program};
    if (!needs->is_running)
        needs->target = *hl_follow_launchers(&needs->program, program);
    needs->executable = needs->target.program->executable;
    if (needs->executable == NULL) {
        hl_warn("%s: %s", name, explain_no_program(needs->target.program));
        return HL_EXIT_USAGE;
    }
    return 0;
}

static void find_own_pages(struct hl_needs *needs, const struct hl_needs_request *request) {
    if (request->own_pages != HL_OWN_PAGES_UNKNOWN) {
        needs->own.pages = request->own_pages;
        needs->own.source = hl_xasprintf("--own-pages");
    } else if (needs->is_running) {
        needs->own.source = hl_xasprintf("not asked: a running process; --own-pages tells");
    } else if (hl_is_privileged(needs->target.program)) {
        needs->own.source = hl_xasprintf("not asked: a privileged program; --own-pages tells");
    } else {
        hl_find_own_pages(&needs->own, needs->executable, needs->target.argv, &needs->geometry);
    }
}

int hl_find_needs(struct hl_needs *needs, const struct hl_needs_request *request) {
    memset(needs, 0, sizeof *needs);
    int code = find_executable(needs, request->program);
    if (code != 0)
        return code;
    read_options(needs, request);
    hl_set_geometry(&needs->geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    hl_fit_geometry(&needs->geometry, &needs->options, &hl_system_roots);
    look_at_store(needs);
    count_our_pages(needs);
    find_own_pages(needs, request);
    compare_with_pool(needs);
    return 0;
}

static void free_need(struct hl_need *need) {
    free(need->path);
    hl_free_verdict(&need->verdict);
    hl_free_found_image(&need->image);
}

void hl_free_needs(struct hl_needs *needs) {
    for (size_t i = 0; i < needs->n_objects; i++)
        free_need(&needs->object[i]);
    free(needs->object);
    hl_free_store_state(&needs->store);
    hl_close_program(&needs->program);
    free(needs->reason);
    free(needs->options_text);
    free(needs->remedy);
    hl_free_own_pages(&needs->own);
}

/* --- the answer --- */

static void print_row(const char *name, uint64_t min, uint64_t max, const char *words) {
    char *least = min < max ? hl_xasprintf("%" PRIu64 " to ", min) : hl_xasprintf("%s", "");
    char *pages = hl_xasprintf("%s%" PRIu64, least, max);
    hl_print("  %-10s %12s page%-1s  %s", name, pages, hl_plural(max), words);
    free(pages);
    free(least);
}

/* Prints why hugeld does nothing, if that is the answer. */
static bool print_idleness(const struct hl_needs *needs) {
    if (needs->target.is_unknown)
        hl_print("which programs %s starts is not known; name one of them", needs->program.path);
    else if (needs->idle)
        hl_print("hugeld does nothing here, because %s", needs->reason);
    else if (!needs->fits && needs->reason == NULL)
        hl_print("hugeld moves no text here, because no whole huge page lies inside the selected objects%s",
                 selects_just_main(needs) ? "; see all of its libraries with -p '*'" : "");
    else
        return false;
    return true;
}

static void print_verdict(const struct hl_needs *needs) {
    uint64_t missing = hl_subtract(needs->needed_pages, needs->available_pages);
    if (print_idleness(needs) && needs->enough && needs->own.pages == 0)
        return;
    if (needs->enough && missing > 0)
        hl_print("yes: the pool has %" PRIu64
                 " page%s fewer than hugeld could take; it takes other memory, or leaves the text "
                 "where it is",
                 missing, hl_plural(missing));
    else if (needs->enough)
        hl_print("yes");
    else if (needs->own.problem != NULL)
        hl_print("no: the program's own huge pages are unknown; give them with %s", needs->remedy);
    else
        hl_print("no: %" PRIu64 " page%s missing; fix: %s", missing, hl_plural(missing), needs->remedy);
    if (needs->our_pages_max > 0 && needs->own.pages > needs->options.reserve_pages)
        hl_print("set reserve_pages=%" PRIu64 ", so that hugeld never takes the program's own",
                 needs->own.pages);
}

/* Whether an image of NEED, which has none, fits into the store as it is. */
static bool fits_store(const struct hl_needs *needs, const struct hl_need *need) {
    return needs->store.result == 0 &&
           need->image.needed_pages <= needs->store.free_bytes / needs->geometry.huge_page_bytes;
}

/* "; /run/hugeld has no room for it", or nothing.  The caller frees it. */
static char *explain_room(const struct hl_needs *needs, const struct hl_need *need) {
    const struct hl_store_state *store = &needs->store;
    if (need->verdict.best != HL_WAY_IMAGE || need->verdict.is_made || store->result == -ENOENT)
        return hl_xasprintf("%s", "");
    if (store->result != 0)
        return hl_xasprintf("; %s", hl_reason_sentence(HL_REASON_STORE_UNSAFE));
    if (fits_store(needs, need))
        return hl_xasprintf("; %s has room for it", store->path);
    return hl_xasprintf("; %s has no room for it; fix: hugeld share --store=%s remove --unused, or add "
                        "--size=BYTES",
                        store->path, store->path);
}

/* Prints the verdict on each object for which there is another way than the pool. */
static void print_images(const struct hl_needs *needs) {
    for (size_t i = 0; i < needs->n_objects; i++) {
        const struct hl_need *need = &needs->object[i];
        const struct hl_found_image *image = &need->image;
        if (image->is_unwanted || need->verdict.best == HL_WAY_NOTHING)
            continue;
        if (image->use == HL_IMAGE_USED) {
            char *words = hl_xasprintf("%s, from its image", need->path);
            print_row("image", hl_count_pages(&image->plan), hl_count_pages(&image->plan), words);
            free(words);
            continue;
        }
        char *words = hl_format_verdict(&need->verdict), *room = explain_room(needs, need);
        hl_print("  best for %s: %s%s", need->path, words, room);
        free(room);
        free(words);
    }
}

/* As `run` does at verbose=1. */
static void print_larger_library(const struct hl_needs *needs) {
    struct hl_verdict verdict;
    if (needs->target.is_unknown || needs->idle || !selects_just_main(needs) ||
        !hl_judge_larger_library(&verdict, needs->executable, &needs->target.program->file, &needs->options,
                                 !needs->is_running))
        return;
    char *words = hl_format_verdict(&verdict);
    hl_print("  best for %s, which has more text: %s", verdict.path, words);
    free(words);
    hl_free_verdict(&verdict);
}

void hl_print_needs(const struct hl_needs *needs) {
    if (needs->target.followed)
        hl_print("%s starts another program: %" PRIu64 " page%s for each process of it", needs->program.path,
                 needs->our_pages_max, hl_plural(needs->our_pages_max));
    hl_print("%s, huge pages of %" PRIu64 " KiB", needs->executable, needs->geometry.huge_page_bytes / 1024);
    for (size_t i = 0; i < needs->n_objects; i++)
        if (needs->object[i].pages_max > 0)
            print_row("hugeld", needs->object[i].pages_min, needs->object[i].pages_max,
                      needs->object[i].path);
    print_images(needs);
    print_larger_library(needs);
    if ((needs->our_pages_max == 0 && needs->image_pages == 0) || needs->reason != NULL)
        print_row("hugeld", needs->our_pages_min, needs->our_pages_max,
                  needs->reason != NULL ? needs->reason
                                        : "no whole huge page lies inside the selected objects");
    if (needs->own.problem != NULL)
        hl_print("  %-10s %12s %-5s  %s", "own", "?", "pages", needs->own.problem);
    else
        print_row("own", needs->own.pages, needs->own.pages, needs->own.source);
    if (needs->options.reserve_pages > needs->own.pages)
        print_row("reserved", needs->options.reserve_pages, needs->options.reserve_pages,
                  "reserve_pages, own included");
    if (needs->own.problem == NULL)
        print_row("needed", needs->needed_pages, needs->needed_pages, "at most");
    print_row("available", needs->available_pages, needs->available_pages, "for a process started from here");
    print_verdict(needs);
}

static json_t *make_json_image(const struct hl_needs *needs, const struct hl_need *need) {
    const struct hl_found_image *image = &need->image;
    char *remedy = hl_format_image_remedy(image, need->path);
    json_t *json =
        json_pack("{s:o, s:o, s:I, s:o, s:o, s:o}", "path", hl_json_text(image->path), "used",
                  image->use == HL_IMAGE_DEPENDS ? json_null() : json_boolean(image->use == HL_IMAGE_USED),
                  "needed_pages", (json_int_t)image->needed_pages, "fits",
                  image->needed_pages > 0 ? json_boolean(fits_store(needs, need)) : json_null(), "reason",
                  image->reason != HL_MOVED ? json_string(hl_reason_name(image->reason)) : json_null(),
                  "remedy", hl_json_text(remedy));
    free(remedy);
    return json;
}

json_t *hl_json_needs(const struct hl_needs *needs) {
    const struct hl_own_pages *own = &needs->own;
    json_t *objects = json_array();
    for (size_t i = 0; i < needs->n_objects; i++)
        json_array_append_new(objects, json_pack("{s:o, s:I, s:I, s:o, s:o}", "path",
                                                 hl_json_text(needs->object[i].path), "pages_min",
                                                 (json_int_t)needs->object[i].pages_min, "pages_max",
                                                 (json_int_t)needs->object[i].pages_max, "image",
                                                 make_json_image(needs, &needs->object[i]), "verdict",
                                                 hl_json_verdict(&needs->object[i].verdict)));
    json_t *json = json_pack(
        "{s:o, s:I, s:I, s:o, s:I, s:I, s:I, s:b}", "path", hl_json_text(needs->executable), "our_pages_min",
        (json_int_t)needs->our_pages_min, "our_pages_max", (json_int_t)needs->our_pages_max, "objects",
        objects, "reserve_pages", (json_int_t)own->pages, "needed_pages", (json_int_t)needs->needed_pages,
        "available_pages", (json_int_t)needs->available_pages, "enough", needs->enough);
    json_object_set_new(json, "own_pages",
                        own->problem != NULL ? json_null() : json_integer((json_int_t)own->pages));
    json_object_set_new(json, "own_source", hl_json_text(own->problem != NULL ? own->problem : own->source));
    json_object_set_new(json, "image_pages", json_integer((json_int_t)needs->image_pages));
    json_object_set_new(json, "store", hl_json_text(needs->store.path));
    json_object_set_new(json, "launcher",
                        needs->target.followed ? hl_json_text(needs->program.path) : json_null());
    json_object_set_new(json, "does_nothing", json_boolean(needs->idle));
    json_object_set_new(json, "starts_unknown", json_boolean(needs->target.is_unknown));
    json_object_set_new(json, "reason", hl_json_text(needs->reason));
    json_object_set_new(json, "remedy", hl_json_text(needs->remedy));
    return json;
}
