/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Starts a program: in place or on its image at the exec stop, without hugeld's code in it; or with libhugeld.so or the patched
   dynamic linker, which read LD_HUGEPAGES and LD_HUGEPAGES_OPTIONS.

   The program's file is checked first, because in some programs a preloaded library never runs, and one kind (AddressSanitizer)
   refuses to start with any.  These run as without hugeld, with one line that says so; with strict=on they don't run.

   A program of which nothing is shared is started as it is.  If someone wants to know why, a child says it: judging a file takes
   libraries and time that this process does not have. */
#include "command/run/start.h"
#include "command/inject/exec-stop.h"
#include "command/lib/file-plan.h"
#include "command/lib/launcher.h"
#include "command/lib/remedy.h"
#include "command/image/find.h"
#include "command/image/store.h"
#include "command/run/ldso.h"
#include "elf/reason.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* A start in progress. */
struct start {
    const struct hl_request *request;
    const char *name; /* the program's, as given */
    struct hl_program program;
    char *text; /* from which OPTIONS were read */
    struct hl_options options;
    struct hl_string patterns;
    bool acts, is_strict; /* here: exe= may leave the program out */
    /* The choice: */
    bool is_known;             /* a store knows the program's file */
    bool is_in_place;          /* the file is on huge pages in place */
    struct hl_exec_stop *stop; /* the program begins on its image; or NULL */
    bool is_preloaded;         /* libhugeld.so is in LD_PRELOAD */
    bool is_as_it_is;          /* nothing of it is shared, and nothing else may be used */
    bool has_told;             /* a line has said why it has no image */
    enum hl_reason reason; /* why it, or with --children what it starts, runs on small pages; or HL_MOVED */
    char *pie;             /* with --children: an executable that has an image in vain; or NULL */
};

static bool wants_lines(const struct start *start) {
    return !hl_output.is_quiet && (start->options.verbose >= 1 || isatty(STDERR_FILENO));
}

static bool is_bare(const struct start *start) { return start->is_in_place || start->stop != NULL; }

/* --- without hugeld's code in it --- */

static bool selects_main(const struct start *start, const char *path) {
    struct hl_object object = {.path = path, .is_main = true};
    return hl_select_object(start->patterns, &object) != HL_NOT_SELECTED;
}

static void start_exec_stop(struct start *start) {
    if (start->options.bss != HL_BSS_OFF || hl_is_privileged(&start->program))
        return;
    char *reason = hl_start_exec_stop(&start->stop, &start->program, &start->options, NULL);
    start->has_told = reason != NULL && wants_lines(start);
    if (start->has_told)
        hl_note("%s: not at the exec stop: %s", start->name, reason);
    free(reason);
}

/* Puts the executable on huge pages without hugeld's code in it, if possible. */
static void choose_bare(struct start *start) {
    struct hl_program *program = &start->program;
    if (start->request->run.via != HL_VIA_AUTO || !hl_uses_images(start->options.backend) || !start->acts)
        return;
    enum hl_way made = program->fd >= 0 ? hl_find_made(program->fd, &start->options) : HL_WAY_NOTHING;
    start->is_known = made != HL_WAY_NOTHING && hl_read_program(program);
    if (!start->is_known || !selects_main(start, program->executable))
        return;
    start->is_in_place = made == HL_WAY_IN_PLACE;
    if (made == HL_WAY_IMAGE)
        start_exec_stop(start);
}

/* --- with libhugeld.so --- */

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

/* Puts libhugeld.so into LD_PRELOAD, or sets the reason why that cannot be. */
static void choose_preload(struct start *start) {
    char *library = hl_find_library();
    start->reason = hl_check_preload(&start->program);
    if (start->reason == HL_REASON_STATIC && start->request->run.children)
        start->reason = HL_MOVED; /* it passes the variables on */
    if (start->reason == HL_MOVED && library == NULL)
        start->reason = HL_REASON_NO_LIBRARY;
    else if (start->reason == HL_MOVED && strpbrk(library, " :") != NULL)
        start->reason = HL_REASON_LIBRARY_PATH;
    start->is_preloaded = start->reason == HL_MOVED;
    if (start->is_preloaded)
        set_preload(library);
    free(library);
}

/* Preloads for the objects other than the executable, which libhugeld.so would not recognise. */
static void preload_for_others(struct start *start) {
    char *without = hl_xasprintf("%.*s:!main", (int)start->patterns.bytes, start->patterns.at);
    setenv("LD_HUGEPAGES", without, 1);
    free(without);
    choose_preload(start);
    if (start->stop != NULL)
        start->reason = HL_MOVED; /* it begins on its image all the same */
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

/* Whether a store knows FILE, and libhugeld.so could map its image, since it is always at the same address.  If a reason would be
   printed or strict=on applies, true also if the library cannot be preloaded. */
static bool is_preloadable(const struct hl_elf_file *file, const struct hl_options *options) {
    struct hl_geometry geometry = hl_read_geometry();
    struct rlimit all; /* a preloaded library takes addresses, which the program may lack in the end */
    bool is_limited = getrlimit(RLIMIT_AS, &all) != 0 || all.rlim_cur != RLIM_INFINITY;
    bool is_quiet = options->verbose == 0 && options->strict == 0;
    return !hl_gets_any_address(file, &geometry) && hl_is_in_store(file->fd, options) &&
           (!is_quiet || (hl_check_file(file) == HL_MOVED && !is_limited && is_usable(file, options)));
}

/* For a program that is not bare: whether libhugeld.so may find an image of the executable, which "ld.so PROGRAM" names, and it is
   one of the objects. */
static bool may_preload_main(struct start *start) {
    struct hl_program *program = &start->program;
    bool is_argument = !program->is_script && hl_is_linker_called(program);
    if (is_argument)
        program = hl_follow_launchers(program, start->request->program)->program;
    return (start->is_known || is_argument) && hl_read_program(program) &&
           selects_main(start, program->executable) && is_preloadable(&program->file, &start->options);
}

/* --- the variables --- */

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

/* Sets the variables that libhugeld.so reads, and that the program's children inherit; MORE options, or NULL, come last. */
static void set_variables(const struct start *start, const char *more) {
    const struct hl_run *run = &start->request->run;
    char *named = name_own_store(&start->options, start->text);
    if (more != NULL) {
        char *both = hl_join_options(named != NULL ? named : start->text, more);
        free(named);
        named = both;
    }
    if (run->patterns != NULL)
        setenv("LD_HUGEPAGES", run->patterns, 1);
    if (run->options != NULL || named != NULL)
        setenv("LD_HUGEPAGES_OPTIONS", named != NULL ? named : start->text, 1);
    free(named);
}

/* --- with the patched linker --- */

/* Maps the patched linker in the place of the one that the program names.  Preloads if that is not possible. */
static void choose_linker(struct start *start) {
    struct hl_program *program = &start->program;
    const struct hl_run *run = &start->request->run;
    const char *objects = getenv("LD_HUGEPAGES");
    char *linker = run->linker != NULL ? realpath(run->linker, NULL) : hl_find_linker();
    const struct hl_elf_file *file = hl_read_program(program) ? &program->file : NULL;
    char *reason = hl_explain_no_linker(linker != NULL ? linker : run->linker, file, program->executable);
    if (reason == NULL)
        reason = hl_start_exec_stop(&start->stop, program, &start->options, linker);
    if (reason != NULL) {
        choose_preload(start);
        if (start->reason == HL_MOVED)
            hl_note("%s: %s; libhugeld.so is preloaded instead", start->name, reason);
    } else if (objects == NULL || objects[0] == '\0') {
        setenv("LD_HUGEPAGES", "main", 1); /* without this the linker moves nothing */
    }
    free(reason);
    free(linker);
}

/* --- the choice --- */

/* With strict=on: whether nothing of the program can be on huge pages, at any load address.  A program that has a whole huge page
   only at some addresses is not refused, nor is a small one that a launcher starts: both would end a service by chance. */
static bool can_never_move(struct start *start) {
    struct hl_file_plan file_plan;
    struct hl_starts starts = {.pages_max = 1};
    const struct hl_target *target = hl_follow_launchers(&start->program, start->request->program);
    const struct hl_program *last = target->program;
    bool is_known = !target->followed && !target->is_unknown;
    if (hl_read_program(target->program) && is_known && hl_acts_in(&start->options, last->executable)) {
        hl_plan_file(&file_plan, last->executable, &last->file, &start->options, 0);
        hl_measure_starts(&starts, &file_plan, &start->options);
    }
    return starts.pages_max == 0;
}

/* --children: libhugeld.so is preloaded into all that the program starts, and maps images there.  The program itself begins on its
   own without it, which serves a PIE as well.  strict=on is about this start: of any build, small programs are a part. */
static void choose_for_children(struct start *start) {
    const unsigned serving = HL_FIT_LIBRARY | HL_FIT_EXECUTABLE;
    unsigned fits =
        hl_find_fits(start->patterns, &start->options, serving | HL_FIT_PIE | HL_FIT_IN_PLACE, &start->pie);
    choose_bare(start);
    if (fits & serving)
        choose_preload(start);
    else if ((fits & HL_FIT_IN_PLACE) == 0)
        start->reason = start->pie != NULL ? HL_REASON_CHILD_PLACE : HL_REASON_NO_CHILD_IMAGE;
    if (start->is_preloaded)
        set_variables(start, "backend=image,strict=off");
}

static void choose(struct start *start) {
    const struct hl_run *run = &start->request->run;
    if (run->children) {
        choose_for_children(start);
        return;
    }
    bool shares_only = start->acts && hl_shares_only(run, &start->options, start->text);
    bool names_others = hl_selects_other_objects(start->patterns);
    bool takes_others = names_others && (!shares_only || hl_find_fits(start->patterns, &start->options,
                                                                      HL_FIT_LIBRARY, NULL) != 0);

    choose_bare(start);
    /* Without hugeld's code in it a program needs no variables either.  libhugeld.so ends a strict one if the named objects stay on
       small pages, or are not there. */
    bool needs_library = takes_others || (start->is_strict && names_others);
    if (is_bare(start) && !needs_library)
        return;
    start->is_as_it_is = !is_bare(start) && shares_only && !needs_library && !may_preload_main(start);
    if (start->is_as_it_is)
        return;
    set_variables(start, shares_only ? "backend=image" : NULL);
    if (is_bare(start))
        preload_for_others(start);
    else if (run->via == HL_VIA_LDSO && !hl_is_privileged(&start->program))
        choose_linker(start);
    else
        choose_preload(start);
    if (start->is_strict && !names_others && start->is_preloaded && !is_bare(start) && can_never_move(start))
        start->reason = HL_REASON_TOO_SMALL;
}

/* --- what is said --- */

void hl_become_command(char **words, char **variables, bool quiet) {
    char *command = hl_find_part("hugeld-command", NULL, X_OK);
    if (command != NULL)
        execve(command, words, variables);
    if (quiet)
        return;
    if (command == NULL)
        hl_warn("hugeld-command is neither beside this command nor in " HL_LIBDIR "; install hugeld again");
    else
        hl_warn("%s: %s; there is too much in its arguments and variables, or it cannot be executed", command,
                strerror(errno));
}

/* Lets a child say why nothing of the program is on huge pages, and what to do (run.c).  Whether all is as it should be: the
   program's file is in place. */
static bool explain_in_child(const struct start *start) {
    /* If it is inherited as ignored, waiting fails. */
    void (*inherited)(int) = signal(SIGCHLD, SIG_DFL);
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        hl_become_command(start->request->words, start->request->variables,
                          !start->is_strict && start->options.verbose == 0);
        _exit(HL_EXIT_NO);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    signal(SIGCHLD, inherited);
    return child > 0 && status == 0;
}

/* The same as say_result, with --children. */
static int say_of_children(const struct start *start) {
    bool is_refused = start->options.strict != 0 && start->reason != HL_MOVED;
    enum hl_reason reason = start->reason;
    if (reason == HL_MOVED && start->pie != NULL && wants_lines(start))
        reason = HL_REASON_CHILD_PLACE;
    if (reason == HL_MOVED)
        return 0;
    char *why = hl_explain_reason(reason, start->pie != NULL ? start->pie : start->program.path);
    if (is_refused)
        hl_warn("%s: %s; " HL_STRICT_SENTENCE, start->name, why);
    else
        hl_note("%s: %s stays as it is: %s", start->name,
                start->reason == HL_MOVED ? "some of what it starts" : "what it starts", why);
    free(why);
    return is_refused ? HL_EXIT_NOT_FOUND : 0;
}

/* Prints at most one line about a program that does not run as it should; returns the exit code. */
static int say_result(const struct start *start) {
    if (start->request->run.children)
        return say_of_children(start);
    bool names_others = hl_selects_other_objects(start->patterns), verbose = start->options.verbose >= 1;
    bool is_fine = start->reason == HL_MOVED && !start->is_as_it_is;
    if (start->reason != HL_MOVED && start->acts) {
        char *why = hl_explain_reason(start->reason, start->program.path);
        if (start->is_strict)
            hl_warn("%s: %s; " HL_STRICT_SENTENCE, start->name, why);
        else
            hl_note("%s: started as it is: %s", start->name, why);
        free(why);
    } else if (start->is_as_it_is && (start->is_strict || (!start->has_told && wants_lines(start)))) {
        explain_in_child(start);
    } else if (start->is_in_place && (start->is_strict || verbose)) {
        is_fine = explain_in_child(start);
    } else if (start->request->run.via == HL_VIA_AUTO && start->stop != NULL && names_others &&
               !start->is_preloaded && verbose &&
               hl_find_fits(start->patterns, &start->options, HL_FIT_IN_PLACE, NULL) == 0) {
        hl_note("%s: %s; %s", start->name, hl_reason_sentence(HL_REASON_NO_LIBRARY_IMAGE),
                hl_reason_remedy(HL_REASON_NO_LIBRARY_IMAGE));
    }
    return start->is_strict && !is_fine ? HL_EXIT_NOT_FOUND : 0;
}

/* --- the program --- */

/* Becomes the shell with the file at PATH, as glibc's execvp(3) does where the kernel cannot execute it, and musl's does not. */
static void become_shell(char *path, char **argv) {
    size_t n = 0;
    while (argv[n] != NULL)
        n++;
    char **arguments = hl_xmalloc((n + 2) * sizeof *arguments);
    memcpy(arguments + 1, argv, (n + 1) * sizeof *arguments);
    arguments[0] = (char *)"/bin/sh";
    arguments[1] = path;
    execv(arguments[0], arguments);
    free(arguments);
}

/* A file that the kernel cannot execute goes to the shell: this serves a script without "#!", but another machine's program would
   end in syntax errors.  The last resort is execvp(3) with the plain environment, since it also takes a later match in PATH. */
static int become_program(struct start *start) {
    struct hl_program *program = &start->program;
    char **argv = start->request->program;
    execv(program->path, argv);
    if (start->stop != NULL && !start->is_strict) { /* a security module may forbid tracing it */
        hl_cancel_exec_stop(start->stop);
        start->stop = NULL;
        execv(program->path, argv);
    }
    int error = errno;
    hl_read_program(program);
    bool is_text = program->is_script || program->problem == HL_ELF_EMPTY || program->problem == HL_ELF_OTHER;
    if (error == ENOEXEC && is_text)
        become_shell(program->path, argv);
    if (error != ENOEXEC && !start->is_strict) {
        environ = start->request->variables;
        execvp(argv[0], argv);
    } else {
        errno = error;
    }
    return hl_refuse_program(argv[0]);
}

int hl_start_program(const struct hl_request *request) {
    struct start start = {.request = request, .name = request->program[0]};
    int code;
    start.text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), request->run.options);
    hl_default_options(&start.options);
    hl_parse_options(&start.options, start.text,
                     NULL); /* libhugeld.so warns about mistakes in the variable */
    start.patterns = hl_find_patterns(request->run.patterns);
    if (hl_open_program(&start.program, start.name)) {
        start.acts = hl_acts_in(&start.options, start.program.path);
        start.is_strict = start.acts && start.options.strict != 0;
        choose(&start);
        code = say_result(&start);
        if (code == 0)
            hl_wait_at_gate(request->gate);
        if (code == 0)
            code = become_program(&start);
    } else {
        if (start.options.strict == 0)
            execvp(start.name, request->program); /* the kernel knows best which files may be executed */
        code = hl_refuse_program(start.name);
    }
    if (start.stop != NULL)
        hl_cancel_exec_stop(start.stop);
    return code;
}
