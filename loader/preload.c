/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* libhugeld.so: LD_PRELOAD=libhugeld.so PROGRAM.

   Its constructor finds the objects that are loaded and gives them to the core.  Linked with -z initfirst it runs before every
   other constructor, libc's included (unless another such object comes later).  Its only call into libc is getauxval, which
   works by then, before anything moves.

   musl gives constructors no arguments, but has set __environ.  If libc has not, it is glibc, whose dynamic linker gives the
   environment to constructors as their third argument. */
#include "dl-object.h"
#include "dlopen.h"
#include "elf/line.h"
#include "elf/move.h"
#include "perf-maps/in-process.h"
#include "elf/report.h"
#include "elf/stack.h"
#include "elf/sys.h"

#include <linux/limits.h>
#include <sys/auxv.h>
#include <unistd.h>

static bool is_first(const struct link_map *map) {
    for (const ElfW(Dyn) *dynamic = map->l_ld; dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_FLAGS_1)
            return (dynamic->d_un.d_val & DF_1_INITFIRST) != 0;
    return false;
}

/* Plans the objects of the list that begins with the executable, whose path is EXECUTABLE.  MEMORY as in hl_add_linked.  The number of
   them that are linked with -z initfirst, as this one is. */
static unsigned add_objects(struct hl_context *context, const struct link_map *map, const char *executable,
                            long *memory) {
    unsigned n_first = 0;
    for (; map != NULL; map = map->l_next) {
        n_first += is_first(map);
        hl_add_linked(context, map, executable, memory);
        executable = NULL;
    }
    return n_first;
}

/* The program's path, which may be in BUFFER.  If it was started as "ld.so PROGRAM", when there is no AT_BASE, /proc/self/exe is
   ld.so; musl then names the program in MAP, its list, and glibc in the auxiliary vector. */
static const char *find_executable(char *buffer, const struct link_map *map) {
    long bytes = HL_CALL(__NR_readlinkat, -100 /* AT_FDCWD */, "/proc/self/exe", buffer, PATH_MAX - 1, 0, 0);
    const char *name = map != NULL ? map->l_name : "";
    if (!hl_is_error(bytes) && getauxval(AT_BASE) != 0) {
        buffer[bytes] = '\0';
        return buffer;
    }
    if (name[0] == '\0' && getauxval(AT_EXECFN) != 0)
        name = (const char *)getauxval(AT_EXECFN);
    return name[0] != '\0' ? name : "main";
}

struct start {
    struct hl_config config;
    struct hl_context context;
    int status;
    long memory; /* /proc/self/mem, or negative */
};

/* Finds and plans the objects.  It makes no system call, unless a path or a library is needed. */
static bool find_objects(struct start *start, const char *const *envp) {
    static char path[PATH_MAX];
    struct hl_context *context = &start->context;
    const struct hl_debug *debug = hl_find_debug();
    const struct link_map *map = debug != NULL ? debug->base.r_map : NULL;
    const char *executable = (const char *)getauxval(AT_EXECFN);
    if (executable == NULL || hl_needs_path(envp))
        executable = find_executable(path, map);
    if (!hl_begin(context, &start->config, envp, executable, HL_PRELOADER, getauxval(AT_PAGESZ)))
        return false;
    hl_use_room(context, hl_first_work, HL_FIRST_WORKS);
    unsigned n_first = add_objects(context, map, executable, &start->memory);
    /* glibc has not set it: the first constructor but ours does that.  Auditors, in namespaces of their own, were there before. */
    context->is_executed = getauxval(AT_BASE) != 0;
    context->others_ran = __environ != NULL || n_first != 1 || hl_next_namespace(debug) != NULL;
    return true;
}

static void move_objects(void *data) {
    struct start *start = data;
    if (hl_is_anything_to_do(&start->context)) {
        start->status = hl_move_objects(&start->context);
        if (start->status == 0)
            start->status = hl_end_startup(&start->context);
        hl_write_own_map(&start->context);
    }
    hl_watch_for_objects(&start->context, &start->memory);
    hl_close_later(&start->context, start->memory);
    hl_close_files(&start->context);
}

/* There is no memory for a stack, or signals cannot be blocked: what was planned stays, and what comes later is not noticed. */
static int drop_objects(struct start *start) {
    struct hl_context *context = &start->context;
    hl_close_later(context, start->memory);
    for (size_t i = 0; i < context->n_work; i++)
        hl_report_dropped(context, context->work[i].object.path, HL_REASON_NO_MEMORY);
    if (context->config->options.verbose >= 1 && hl_selects_other_objects(context->config->options.objects))
        hl_report_unwatched(context, HL_REASON_NO_MEMORY);
    return hl_is_strict(context) ? 127 : 0;
}

/* The program's headers are those of the auxiliary vector, unless it was started as "ld.so PROGRAM". */
static bool has_nothing_to_do(const char *const *envp) {
    return getauxval(AT_BASE) != 0 &&
           hl_has_nothing_to_do(envp, (const Elf64_Phdr *)getauxval(AT_PHDR), getauxval(AT_PHNUM));
}

/* Little of the stack may be left: RLIMIT_STACK holds arguments and environment too.  Where others have run, their signal handlers
   would see our descriptors. */
static void begin_at(const char *const *envp) {
    static struct start start;
    start.memory = -1;
    if (!find_objects(&start, envp))
        return;
    bool is_idle = !hl_is_anything_to_do(&start.context);
    void *stack_end = is_idle ? NULL : hl_make_room(&start.context);
    if (is_idle)
        move_objects(&start);
    else if (stack_end != NULL && !start.context.others_ran)
        hl_switch_stack(move_objects, &start, stack_end);
    else if (stack_end == NULL || !hl_call_on_stack(move_objects, &start, stack_end))
        start.status = drop_objects(&start);
    hl_end(&start.context);
    if (start.status != 0)
        HL_CALL(__NR_exit_group, start.status, 0, 0, 0, 0, 0);
}

/* Takes each LD_HUGEPAGES* out of ENVP.  A set-user-ID program's children need not be secure any more, and would follow its
   caller's settings; glibc does the same with LD_PRELOAD. */
static void forget_variables(char **envp) {
    static const char name[] = "LD_HUGEPAGES";
    char **to = envp;
    for (char **from = envp; *from != NULL; from++)
        if (!hl_same_bytes(*from, name, sizeof name - 1))
            *to++ = *from;
    *to = NULL;
}

__attribute__((constructor)) static void begin(int argc, char **argv, char **envp) {
    (void)argc;
    (void)argv;
    if (__environ != NULL)
        envp = __environ;
    if (getauxval(AT_PAGESZ) == 0) /* the program defines a getauxval of its own, which knows nothing */
        return;
    if (getauxval(AT_SECURE) != 0)
        forget_variables(envp);
    else if (!has_nothing_to_do((const char *const *)envp))
        begin_at((const char *const *)envp);
}
