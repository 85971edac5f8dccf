/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Prints the traces by which a program can find out how it was started, and the checksum of a large text; with the
   argument "wait" it then waits for a line. */
#define _GNU_SOURCE
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

unsigned long big_sum(unsigned long x);
extern char **environ;
extern const char __ehdr_start __attribute__((visibility("hidden")));

static void print_lines(const char *path, const char *const *without) {
    char line[4096];
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        int skipped = 0;
        for (int i = 0; without[i] != NULL; i++)
            skipped |= strncmp(line, without[i], strlen(without[i])) == 0;
        if (!skipped)
            printf("%s: %s", path, line);
    }
    if (file != NULL)
        fclose(file);
}

static void print_link(const char *path) {
    char to[4096] = "";
    ssize_t bytes = readlink(path, to, sizeof to - 1);
    printf("%s -> %s\n", path, bytes >= 0 ? to : strerror(errno));
}

static void print_folder(const char *path) {
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder))
            printf("%s flags %d\n", entry->d_name, 0), print_link(name);
    }
    if (folder != NULL)
        closedir(folder);
}

static void print_signals(void) {
    sigset_t pending, blocked;
    stack_t stack;
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    sigaltstack(NULL, &stack);
    printf("stack %p %d %zu\n", stack.ss_sp, stack.ss_flags, stack.ss_size);
    for (int i = 1; i < NSIG; i++) {
        struct sigaction action;
        if (sigaction(i, NULL, &action) == 0)
            printf("signal %d: %p flags %x pending %d blocked %d\n", i, (void *)action.sa_handler,
                   action.sa_flags, sigismember(&pending, i), sigismember(&blocked, i));
    }
}

static void print_controls(void) {
    static const int get[] = {
        PR_GET_DUMPABLE,   PR_GET_KEEPCAPS, PR_GET_NO_NEW_PRIVS, PR_GET_SECCOMP,       PR_GET_SECUREBITS,
        PR_GET_TIMERSLACK, PR_GET_TIMING,   PR_GET_THP_DISABLE,  66 /* PR_GET_MDWE */, PR_GET_IO_FLUSHER};
    for (size_t i = 0; i < sizeof get / sizeof get[0]; i++)
        printf("prctl %d: %d\n", get[i], prctl(get[i], 0, 0, 0, 0));
    int reaper = -1, death = -1;
    prctl(PR_GET_CHILD_SUBREAPER, &reaper);
    prctl(PR_GET_PDEATHSIG, &death);
    printf("reaper %d death %d\n", reaper, death);
}

/* Prints the auxiliary vector's values that are no addresses, and the program's own addresses relative to its start. */
static void print_vector(void) {
    char **at = environ;
    while (*at++ != NULL)
        ;
    for (const ElfW(auxv_t) *v = (const ElfW(auxv_t) *)at; v->a_type != AT_NULL; v++) {
        int is_address = v->a_type == AT_SYSINFO_EHDR || v->a_type == AT_BASE || v->a_type == AT_RANDOM ||
                         v->a_type == AT_PLATFORM || v->a_type == 27 /* AT_RSEQ_FEATURE_SIZE */;
        if (v->a_type == AT_PHDR || v->a_type == AT_ENTRY)
            printf("auxv %lu %lx\n", (unsigned long)v->a_type,
                   (unsigned long)(v->a_un.a_val - (uintptr_t)&__ehdr_start));
        else if (v->a_type == AT_EXECFN)
            printf("auxv execfn %s\n", (const char *)v->a_un.a_val);
        else if (!is_address)
            printf("auxv %lu %lx\n", (unsigned long)v->a_type, (unsigned long)v->a_un.a_val);
    }
}

/* As gdb and crash handlers read it. */
static int print_header(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    for (int i = 0; i < info->dlpi_phnum && info->dlpi_name[0] == '\0'; i++)
        printf("header %d %x %lx %lx %lx %lx %lx\n", info->dlpi_phdr[i].p_type, info->dlpi_phdr[i].p_flags,
               (unsigned long)info->dlpi_phdr[i].p_offset, (unsigned long)info->dlpi_phdr[i].p_vaddr,
               (unsigned long)info->dlpi_phdr[i].p_filesz, (unsigned long)info->dlpi_phdr[i].p_memsz,
               (unsigned long)info->dlpi_phdr[i].p_align);
    return 1;
}

static void print_children(void) {
    struct rusage usage;
    errno = 0;
    int usual = waitpid(-1, NULL, WNOHANG);
    printf("usual wait %d errno %d\n", usual, errno);
    errno = 0;
    int child = waitpid(-1, NULL, __WALL | WNOHANG);
    printf("wait %d errno %d\n", child, errno);
    getrusage(RUSAGE_CHILDREN, &usage);
    if (getenv("T_NO_USAGE") == NULL)
        printf("children %ld.%06ld %ld.%06ld\n", usage.ru_utime.tv_sec, usage.ru_utime.tv_usec,
               usage.ru_stime.tv_sec, usage.ru_stime.tv_usec);
}

int main(int argc, char **argv) {
    static const char *const changing[] = {"Pid:",   "Tgid:",  "Ngid:", "NSpid:",  "NStgid:", "Vm", "Rss",
                                           "nonvol", "volunt", "SigQ:", "Hugetlb", "Mems",    NULL};
    static const char *const none[] = {NULL};
    print_children(); /* before anything else could have one */
    print_signals();
    print_controls();
    print_vector();
    dl_iterate_phdr(print_header, NULL);
    print_lines("/proc/self/status", changing);
    print_lines("/proc/self/limits", none);
    print_lines("/proc/self/cgroup", none);
    print_lines("/proc/self/personality", none);
    print_lines("/proc/self/coredump_filter", none);
    print_lines("/proc/self/oom_score_adj", none);
    print_lines("/proc/self/task/self/children", none);
    print_folder("/proc/self/fd");
    print_folder("/proc/self/ns");
    print_link("/proc/self/exe");
    print_link("/proc/self/cwd");
    print_link("/proc/self/root");
    for (char **variable = environ; *variable != NULL; variable++)
        printf("env %s\n", *variable);
    for (int i = 0; i < argc; i++)
        printf("argv[%d] %s\n", i, argv[i]);
    printf("user %d %d group %d %d session %d process group %d\n", getuid(), geteuid(), getgid(), getegid(),
           getsid(0), getpgrp());
    printf("sum %lx\n", big_sum(argc > 0));
    fflush(stdout);
    if (argc > 1 && strcmp(argv[1], "wait") == 0) {
        puts("waits");
        fflush(stdout);
        while (getchar() != EOF)
            ;
    }
    return 3;
}
