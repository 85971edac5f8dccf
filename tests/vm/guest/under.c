/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* under RULE... -- PROGRAM ARGUMENT...: becomes PROGRAM under these rules, which it inherits.

     cpu=N                   runs on this CPU alone
     bind=N  prefer=N        memory policy: this node, this node if it can be
     interleave=N            memory policy: over nodes 0 to N
     join=FOLDER             becomes a member of the cgroup FOLDER
     label=TEXT              for /proc/self/attr/exec: AppArmor's "exec PROFILE", a context of SELinux
     deny=NUMBER             this system call gives EPERM

   It is static, so that nothing is preloaded into it, and needs no library. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void check(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "under: %s: %s\n", what, strerror(errno));
        exit(99);
    }
}

static void set_cpu(const char *number) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(strtoul(number, NULL, 10), &set);
    check(sched_setaffinity(0, sizeof set, &set) != 0, "sched_setaffinity");
}

static void set_policy(int mode, unsigned long nodes) {
    check(syscall(SYS_set_mempolicy, mode, &nodes, 8 * sizeof nodes + 1) != 0, "set_mempolicy");
}

static void join_group(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cgroup.procs", folder);
    int fd = open(path, O_WRONLY);
    check(fd < 0 || write(fd, "0", 1) != 1, path);
    close(fd);
}

static void set_label(const char *text) {
    int fd = open("/proc/self/attr/exec", O_WRONLY);
    check(fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text), text);
    close(fd);
}

/* CALL gives EPERM. */
static void deny(unsigned call) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0, "PR_SET_NO_NEW_PRIVS");
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0, "PR_SET_SECCOMP");
}

static void set_rule(const char *rule) {
    const char *value = strchr(rule, '=');
    size_t name = value != NULL ? (size_t)(value++ - rule) : 0;
    unsigned long number = value != NULL ? strtoul(value, NULL, 10) : 0;
#define IS(text) (name == sizeof text - 1 && memcmp(rule, text, name) == 0)
    if (IS("cpu"))
        set_cpu(value);
    else if (IS("bind"))
        set_policy(MPOL_BIND, 1ul << number);
    else if (IS("prefer"))
        set_policy(MPOL_PREFERRED, 1ul << number);
    else if (IS("interleave"))
        set_policy(MPOL_INTERLEAVE, (2ul << number) - 1);
    else if (IS("join"))
        join_group(value);
    else if (IS("label"))
        set_label(value);
    else if (IS("deny"))
        deny((unsigned)number);
    else {
        errno = EINVAL;
        check(1, rule);
    }
}

int main(int argc, char **argv) {
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        set_rule(argv[i]);
    if (i + 1 < argc)
        execv(argv[i + 1], argv + i + 1);
    check(1, "exec");
}
