/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* libhugeld.so: LD_PRELOAD=libhugeld.so PROGRAM.

   Its constructor finds the objects that are loaded and gives them to the core.  Linked with -z initfirst it runs before every
   other constructor, libc's included (unless another such object comes later).  Its only calls into libc are getauxval and
   dl_iterate_phdr, before anything moves; both work by then.

   musl gives constructors no arguments, but has set __environ.  If libc has not, it is glibc, whose dynamic linker gives the
   environment to constructors as their third argument. */
#include "dl-object.h"
#include "dlopen.h"
#include "elf/line.h"
#include "elf/move.h"
#include "perf-maps/in-process.h"
#include "elf/report.h"
#include "elf/sys.h"

#include <linux/limits.h>
#include <sys/auxv.h>
#include <unistd.h>

struct finder {
    struct hl_context *context;
    const char *executable;
    bool seen_main;
    unsigned n_first; /* objects that are linked with -z initfirst, as this one is */
};

static bool is_first(const struct dl_phdr_info *info) {
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; dynamic->d_tag != DT_NULL; dynamic++)
            if (dynamic->d_tag == DT_FLAGS_1)
                return (dynamic->d_un.d_val & DF_1_INITFIRST) != 0;
    }
    return false;
}

static int add_object(struct dl_phdr_info *info, size_t size, void *data) {
    struct finder *finder = data;
    bool is_main = !finder->seen_main; /* dl_iterate_phdr(3): the executable comes first */
    (void)size;
    finder->seen_main = true;
    finder->n_first += is_first(info);
    hl_add_linked(finder->context, info, is_main, is_main ? finder->executable : info->dlpi_name);
    return 0;
}

/* Whether FUNCTION is the executable's own.  A sanitizer's runtime that is linked into it stands in for
   functions of libc, and is not ready before its own constructor: ThreadSanitizer's dl_iterate_phdr would
   jump to address 0. */
static bool is_of_executable(uintptr_t function) {
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    size_t n = header != NULL ? getauxval(AT_PHNUM) : 0;
    uintptr_t bias = 0;
    for (size_t i = 0; i < n; i++)
        if (header[i].p_type == PT_PHDR)
            bias = (uintptr_t)header - header[i].p_vaddr;
    for (size_t i = 0; i < n; i++)
        if (header[i].p_type == PT_LOAD && function - (bias + header[i].p_vaddr) < header[i].p_memsz)
            return true;
    return false;
}

static int find_first_name(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    *(const char **)data = info->dlpi_name;
    return 1;
}

/* The other loaded objects are not known, so the executable stands for every named object. */
static void drop_executable(struct hl_context *context, const char *path) {
    struct hl_string patterns = context->config->options.objects;
    struct hl_pattern pattern;
    struct hl_object object;
    object.path = path;
    hl_report_dropped(context, &object, HL_REASON_OWN_ITERATE);
    while (hl_next_pattern(&patterns, &pattern))
        context->dropped_named = context->dropped_named || (!pattern.excludes && hl_is_name(&pattern));
}

/* The program's path, which may be in BUFFER.  If it was started as "ld.so PROGRAM", when there is no AT_BASE, /proc/self/exe is
   ld.so; musl then names the program in its list, and glibc in the auxiliary vector.  CAN_ITERATE: dl_iterate_phdr can be
   called. */
static const char *find_executable(char *buffer, bool can_iterate) {
    long bytes = HL_CALL(__NR_readlinkat, -100 /* AT_FDCWD */, "/proc/self/exe", buffer, PATH_MAX - 1, 0, 0);
    const char *name = "";
    if (!hl_is_error(bytes) && getauxval(AT_BASE) != 0) {
        buffer[bytes] = '\0';
        return buffer;
    }
    if (can_iterate)
        dl_iterate_phdr(find_first_name, &name);
    if (name[0] == '\0' && getauxval(AT_EXECFN) != 0)
        name = (const char *)getauxval(AT_EXECFN);
    return name[0] != '\0' ? name : "main";
}

struct start {
    struct hl_config config;
    struct hl_context context;
    bool is_ready; /* dl_iterate_phdr can be called */
    int status;
};

/* Finds and plans the objects.  It makes no system call, unless a path is needed. */
static bool find_objects(struct start *start, const char *const *envp) {
    static char path[PATH_MAX];
    struct hl_context *context = &start->context;
    struct finder finder = {context, (const char *)getauxval(AT_EXECFN), false, 0};
    start->is_ready = !is_of_executable((uintptr_t)dl_iterate_phdr);
    if (finder.executable == NULL || hl_needs_path(envp))
        finder.executable = find_executable(path, start->is_ready);
    if (!hl_begin(context, &start->config, envp, finder.executable, HL_PRELOADER, getauxval(AT_PAGESZ)))
        return false;
    hl_use_room(context, hl_first_work, HL_FIRST_WORKS);
    if (start->is_ready)
        dl_iterate_phdr(add_object, &finder);
    else
        drop_executable(context, finder.executable);
    /* glibc has not set it: the first constructor but ours does that */
    context->others_ran = __environ != NULL || finder.n_first != 1;
    return true;
}

static void move_objects(void *data) {
    struct start *start = data;
    start->status = hl_move_objects(&start->context);
    if (start->is_ready && start->status == 0)
        start->status = hl_end_startup(&start->context);
    hl_write_own_map(&start->context);
}

/* The program's headers are those of the auxiliary vector, unless it was started as "ld.so PROGRAM". */
static bool has_nothing_to_do(const char *const *envp) {
    return getauxval(AT_BASE) != 0 &&
           hl_has_nothing_to_do(envp, (const Elf64_Phdr *)getauxval(AT_PHDR), getauxval(AT_PHNUM));
}

/* Little of the stack may be left: RLIMIT_STACK holds arguments and environment too.  Not inlined, so that a start with nothing
   to do does not touch a page for START either. */
__attribute__((noinline)) static void begin_at(const char *const *envp) {
    struct start start;
    start.status = 0;
    if (!find_objects(&start, envp))
        return;
    if (!start.is_ready || hl_is_anything_to_do(&start.context))
        hl_call_on_stack(move_objects, &start, hl_move_stack + sizeof hl_move_stack);
    hl_end(&start.context);
    if (start.is_ready)
        hl_watch_for_objects(&start.context);
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
    if (getauxval(AT_SECURE) != 0)
        forget_variables(envp);
    else if (!has_nothing_to_do((const char *const *)envp))
        begin_at((const char *const *)envp);
}
