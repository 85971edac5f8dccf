/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Starts a program without hugeld's code in it, in place or on its image at the exec stop, or with libhugeld.so. */
#include "command/run/start.h"
#include "command/base/basics.h"
#include "command/exec-stop/exec-stop.h"
#include "command/image/find.h"
#include "command/image/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct hl_string hl_find_patterns(const char *given) {
    const char *text = given != NULL ? given : getenv("LD_HUGEPAGES");
    text = text != NULL ? text : "main";
    return (struct hl_string){text, strlen(text)};
}

bool hl_selects_main(struct hl_string patterns, const char *path) {
    struct hl_object object = {.path = path, .is_main = true};
    return hl_select_object(patterns, &object) != HL_NOT_SELECTED;
}

static struct hl_exec_stop *start_exec_stop(const struct hl_program *program,
                                            const struct hl_options *options, const char *name) {
    struct hl_exec_stop *stop = NULL;
    if (options->bss != HL_BSS_OFF || hl_is_privileged(program))
        return NULL;
    char *reason = hl_start_exec_stop(&stop, program, options);
    if (reason != NULL && options->verbose >= 1)
        hl_warn("%s: not at the exec stop: %s", name, reason);
    free(reason);
    return stop;
}

char *hl_find_library(void) { return hl_find_part("libhugeld.so", NULL, R_OK); }

/* Why LIBRARY, as hl_find_library found it, can't be preloaded; NULL if it can. */
static const char *explain_no_library(const char *library) {
    if (library == NULL)
        return "libhugeld.so is neither beside this command nor in " HL_LIBDIR ", build it with 'make'";
    if (strpbrk(library, " :") != NULL)
        return "LD_PRELOAD cannot name libhugeld.so by a path with a space or a colon, move it elsewhere";
    return NULL;
}

/* Puts LIBRARY first in LD_PRELOAD.  Beside it may be a folder "preload" with one library for each kind of program, and each
   dynamic linker takes its own ($LIB), so that 32-bit children print no error. */
static void set_preload(const char *library) {
    const char *inherited = getenv("LD_PRELOAD");
    char *folder = hl_xasprintf("%.*spreload", (int)(hl_base_name(library) - library), library);
    char *name = access(folder, X_OK) == 0 ? hl_xasprintf("%s/$LIB/libhugeld.so", folder)
                                           : hl_xasprintf("%s", library);
    char *both = hl_xasprintf("%s%s%s", name, inherited != NULL && inherited[0] != '\0' ? ":" : "",
                              inherited != NULL ? inherited : "");
    setenv("LD_PRELOAD", both, 1);
    free(both);
    free(name);
    free(folder);
}

void hl_choose_preload(struct hl_start_plan *plan, struct hl_program *program) {
    plan->library = hl_find_library();
    plan->reason = hl_explain_plain_run(program);
    if (plan->reason == NULL)
        plan->reason = explain_no_library(plan->library);
    if (plan->reason == NULL)
        set_preload(plan->library);
}

void hl_exclude_main(struct hl_string patterns) {
    char *without = hl_xasprintf("%.*s:!main", (int)patterns.bytes, patterns.at);
    setenv("LD_HUGEPAGES", without, 1);
    free(without);
}

/* Whether a process of this user's would take the image of FILE, which a store has. */
static bool is_usable(const struct hl_elf_file *file, const struct hl_options *options) {
    struct hl_file_state state;
    struct hl_status status;
    hl_read_status(&status, &hl_system_roots);
    long image =
        hl_read_file_state(&state, file->fd) == 0 ? hl_open_image_as(&status, &state, options) : -ENOENT;
    if (image >= 0)
        close((int)image);
    return image >= 0;
}

/* A preloaded library takes some address space, which the program may lack in the end. */
static bool has_address_space(void) {
    struct rlimit all;
    return getrlimit(RLIMIT_AS, &all) == 0 && all.rlim_cur == RLIM_INFINITY;
}

/* Whether a store knows FILE, and libhugeld.so could map its image, since it is always at the same address.  If a reason would be
   printed or strict=on applies, true also if the library cannot be preloaded. */
static bool is_preloadable(const struct hl_elf_file *file, const struct hl_options *options) {
    struct hl_geometry geometry;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    bool is_quiet = options->verbose == 0 && options->strict == 0;
    return !hl_gets_any_address(file, &geometry) && hl_is_in_store(file->fd, options) &&
           (!is_quiet || (hl_explain_plain_file(HL_ELF_FINE, file) == NULL && has_address_space() &&
                          is_usable(file, options)));
}

/* Whether there is anything to be done for objects other than the executable: PATTERNS select some, and if only shared pages may be
   used (SHARES_ONLY), a store has the image of one. */
static bool takes_other_objects(struct hl_string patterns, bool shares_only,
                                const struct hl_options *options) {
    return hl_selects_other_objects(patterns) && (!shares_only || hl_has_image_of_library(patterns, options));
}

/* For a PROGRAM that is not bare: whether libhugeld.so may find an image of the executable, and PATTERNS select the executable. */
static bool may_preload_shared_main(const struct hl_start_plan *plan, struct hl_string patterns,
                                    const struct hl_options *options, struct hl_program *program) {
    return !plan->is_unknown && hl_read_program(program) && hl_selects_main(patterns, program->executable) &&
           is_preloadable(&program->file, options);
}

void hl_choose_bare(struct hl_start_plan *plan, const struct hl_run *run, const struct hl_options *options,
                    struct hl_program *program, const char *name) {
    if (run->via != HL_VIA_AUTO || !hl_uses_images(options->backend) || !hl_acts_in(options, program->path))
        return;
    enum hl_way made = program->fd >= 0 ? hl_find_made(program->fd, options) : HL_WAY_NOTHING;
    plan->is_unknown = made == HL_WAY_NOTHING || !hl_read_program(program);
    if (plan->is_unknown || !hl_selects_main(hl_find_patterns(run->patterns), program->executable))
        return;
    plan->is_in_place = made == HL_WAY_PLACE;
    if (made == HL_WAY_IMAGE)
        plan->stop = start_exec_stop(program, options, name);
}

/* Puts libhugeld.so into LD_PRELOAD for the objects other than the executable that PATTERNS select.  If that fails, plan->reason
   says why, unless the executable begins on its image all the same. */
static void preload_for_others(struct hl_start_plan *plan, struct hl_string patterns,
                               struct hl_program *program) {
    hl_exclude_main(patterns);
    hl_choose_preload(plan, program);
    if (plan->stop != NULL)
        plan->reason = NULL;
}

static bool names_option(const char *text, const char *name) {
    size_t bytes = strlen(name);
    for (const char *at = text; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, bytes) == 0 && at[bytes] == '=')
            return true;
    return false;
}

bool hl_shares_only(const struct hl_run *run, const struct hl_options *options, const char *text) {
    return run->makes_no_copy && run->via == HL_VIA_AUTO && options->bss == HL_BSS_OFF &&
           !names_option(text, "backend");
}

/* TEXT with store= for the store of this user, which no process looks into by default.  NULL: TEXT names another store, or this
   user has none; the caller frees it. */
static char *name_own_store(const struct hl_options *options, const char *text) {
    char *path = options->store.bytes == 0 ? hl_default_store() : NULL, *both = NULL;
    long store = path != NULL && strcmp(path, HL_SYSTEM_STORE) != 0 && strchr(path, ',') == NULL &&
                         strlen(path) < HL_FOLDER_BYTES
                     ? hl_open_store(path, hl_find_store_owner())
                     : -ENOENT;
    if (store >= 0) {
        char *option = hl_xasprintf("store=%s", path);
        both = hl_join_options(text, option);
        free(option);
        close((int)store);
    }
    free(path);
    return both;
}

/* Sets the variables that libhugeld.so reads, and that the program's children inherit.  OPTIONS were read from TEXT. */
static void set_variables(const struct hl_run *run, const struct hl_options *options, const char *text) {
    char *named = name_own_store(options, text);
    bool shares_only = hl_shares_only(run, options, text);
    if (shares_only) {
        char *both = hl_join_options(named != NULL ? named : text, "backend=image");
        free(named);
        named = both;
    }
    if (run->patterns != NULL)
        setenv("LD_HUGEPAGES", run->patterns, 1);
    if (run->options != NULL || named != NULL)
        setenv("LD_HUGEPAGES_OPTIONS", named != NULL ? named : text, 1);
    free(named);
}

enum hl_start hl_choose_start(struct hl_start_plan *plan, const struct hl_run *run,
                              const struct hl_options *options, const char *text,
                              struct hl_program *program) {
    struct hl_string patterns = hl_find_patterns(run->patterns);
    bool shares_only = hl_acts_in(options, program->path) && hl_shares_only(run, options, text);
    bool others = takes_other_objects(patterns, shares_only, options);
    bool is_bare = plan->is_in_place || plan->stop != NULL;

    /* Without hugeld's code in it a program needs no variables either.  libhugeld.so ends a strict one if the named objects stay on
       small pages. */
    if (is_bare && !others && !(options->strict && hl_selects_other_objects(patterns)))
        return HL_START_BARE;
    if (!is_bare && shares_only && !others && !may_preload_shared_main(plan, patterns, options, program))
        return HL_START_AS_IT_IS;
    set_variables(run, options, text);
    if (!is_bare)
        return HL_START_IN_PROCESS;
    preload_for_others(plan, patterns, program);
    return HL_START_BARE_MAIN;
}
