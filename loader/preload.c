/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* libhugeld.so: LD_PRELOAD=libhugeld.so PROGRAM.

   Its constructor finds the objects that are loaded and gives them to the core.  Linked with -z initfirst it
   runs before every other constructor, libc's included (unless another such object comes later): environ is
   not set yet, so the environment is the constructor's third argument.  Of libc are called getauxval and
   dl_iterate_phdr before anything moves, pthread_atfork and brk after; all four work by then. */
#include "heap.h"
#include "sys.h"
#include "text.h"

#include <linux/limits.h>
#include <link.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <unistd.h>

/* A function of ld.so's.  (AT_BASE does not find it when it was started as "ld.so PROGRAM".) */
extern void *__tls_get_addr(void *);

struct finder {
    struct hl_process *process;
    const char *executable;
    bool seen_main;
};

/* Whether ADDRESS lies in a PT_LOAD. */
static bool contains(const struct dl_phdr_info *info, uint64_t address) {
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        if (ph->p_type == PT_LOAD && address - (info->dlpi_addr + ph->p_vaddr) < ph->p_memsz)
            return true;
    }
    return false;
}

/* ld.so, the vdso and this object are never touched. */
static bool is_off_limits(const struct dl_phdr_info *info) {
    static const char own;
    unsigned long vdso = getauxval(AT_SYSINFO_EHDR);
    return contains(info, (uint64_t)&own) || contains(info, (uint64_t)&__tls_get_addr) ||
           (vdso != 0 && contains(info, vdso));
}

/* DT_SONAME's string.  The dynamic linker may have relocated DT_STRTAB in place, or not. */
static const char *find_soname(const struct dl_phdr_info *info, uint64_t strtab, uint64_t soname_offset) {
    uint64_t address = strtab + soname_offset;
    if (strtab == 0 || soname_offset == 0)
        return NULL;
    if (contains(info, address))
        return (const char *)address;
    return contains(info, info->dlpi_addr + address) ? (const char *)(info->dlpi_addr + address) : NULL;
}

static int add_object(struct dl_phdr_info *info, size_t size, void *data) {
    struct finder *finder = data;
    struct hl_object object;
    uint64_t strtab = 0, soname_offset = 0;
    (void)size;

    object.is_main = !finder->seen_main; /* dl_iterate_phdr(3): the executable comes first */
    object.path = object.is_main ? finder->executable : info->dlpi_name;
    object.load_bias = info->dlpi_addr;
    object.text_relocations = false;
    finder->seen_main = true;
    if (is_off_limits(info))
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        if (ph->p_type == PT_DYNAMIC)
            hl_read_dynamic(&object, (const ElfW(Dyn) *)(info->dlpi_addr + ph->p_vaddr),
                            ph->p_memsz / sizeof(ElfW(Dyn)), &strtab, &soname_offset);
    }
    object.soname = find_soname(info, strtab, soname_offset);
    hl_add_object(finder->process, &object, info->dlpi_phdr, info->dlpi_phnum);
    return 0;
}

/* The program's path in BUFFER.  Started as "ld.so PROGRAM", when there is no AT_BASE, /proc/self/exe is
 * ld.so. */
static const char *find_executable(char *buffer, char *const *argv) {
    long bytes = HL_CALL(__NR_readlinkat, -100 /* AT_FDCWD */, "/proc/self/exe", buffer, PATH_MAX - 1, 0, 0);
    if (!hl_is_error(bytes) && getauxval(AT_BASE) != 0) {
        buffer[bytes] = '\0';
        return buffer;
    }
    return argv != NULL && argv[0] != NULL ? argv[0] : "main";
}

/* Writable hugetlb spans of this process, until its first fork. */
static struct hl_range writable[16];
static unsigned n_writable;
static struct hl_geometry geometry;
static bool verbose;

static void say(const char *line) {
    if (verbose)
        hl_write(2, line, hl_text_bytes(line));
}

/* After fork a write to a writable hugetlb page needs a new one.  Where the pool is empty the kernel takes
   the child's and kills it with SIGBUS, so the spans go back to small pages first.  Other threads could write
   meanwhile: then there is no safe way. */
static void before_fork(void) {
    if (n_writable == 0)
        return;
    if (!hl_is_single_threaded()) {
        say("hugeld: fork with threads: data stays on hugetlb, and a child may die when the pool is empty; "
            "use data=thp\n");
        return;
    }
    uint64_t signals = hl_block_signals();
    while (n_writable > 0 && hl_move_back(&writable[n_writable - 1], &geometry) == 0)
        n_writable--;
    hl_restore_signals(signals);
    say(n_writable == 0 ? "hugeld: fork: data is back on small pages\n"
                        : "hugeld: fork: data stays on hugetlb, there is no memory for a copy\n");
}

/* Notes one for the first fork; one too many goes back to small pages at once. */
static void note_range(struct hl_range range) {
    if (n_writable < sizeof writable / sizeof writable[0]) {
        writable[n_writable++] = range;
        return;
    }
    uint64_t signals = hl_block_signals();
    hl_move_back(&range, &geometry);
    hl_restore_signals(signals);
}

/* Notes the writable hugetlb spans that have come into place. */
static void note_writable(const struct hl_process *process) {
    geometry = process->geometry;
    verbose = process->options.verbose >= 1;
    for (size_t i = 0; i < process->n_work; i++) {
        const struct hl_work *work = &process->work[i];
        for (unsigned j = 0; j < work->plan.n_spans; j++) {
            const struct hl_span *span = &work->plan.span[j];
            if (hl_is_writable(span) && work->move[j].placed && work->move[j].backend == HL_HUGETLB)
                note_range((struct hl_range){span->start, span->end});
        }
    }
    if (n_writable > 0)
        pthread_atfork(before_fork, NULL, NULL);
}

__attribute__((constructor)) static void start(int argc, char **argv, char **envp) {
    char path[PATH_MAX];
    struct hl_process process;
    (void)argc;
    if (getauxval(AT_SECURE) != 0)
        return;
    struct finder finder = {&process, find_executable(path, argv), false};
    if (!hl_begin(&process, (const char *const *)envp, finder.executable, "main", getauxval(AT_PAGESZ)))
        return;
    dl_iterate_phdr(add_object, &finder);
    int status = hl_move_objects(&process);
    note_writable(&process);
    if (process.old_break != 0)
        brk((void *)process.heap.end); /* libc keeps a break of its own, and malloc believes it */
    hl_end(&process);
    if (status != 0)
        HL_CALL(__NR_exit_group, status, 0, 0, 0, 0, 0);
}
