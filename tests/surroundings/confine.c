/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* confine RULE... -- PROGRAM: becomes PROGRAM under the policies that service managers and container engines
   set.

     mdwe               PR_SET_MDWE: written memory never becomes executable (Linux 6.3)
     no-thp             PR_SET_THP_DISABLE
     merge              PR_SET_MEMORY_MERGE: equal pages of all memory may be merged (Linux 6.4)
     no-populate        madvise(2) knows no MADV_POPULATE_READ and _WRITE
     one-huge-page      madvise(2) has no advice for huge pages, but MADV_COLLAPSE of a single one
     no-write-execute   systemd's MemoryDenyWriteExecute= as a seccomp filter: the same rules
     groups=N           N supplementary groups
     deny=CALL,...      these system calls give EPERM
     kill=CALL,...      these system calls kill the process
     pretend=CALL,...   these system calls do nothing and succeed
     only=CALL,...      every other system call kills */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

static void check(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "confine: %s: %s\n", what, strerror(failed < -1 ? -failed : errno));
        exit(99);
    }
}

static void add_calls(scmp_filter_ctx filter, uint32_t action, char *names) {
    for (char *name = strtok(names, ","); name != NULL; name = strtok(NULL, ",")) {
        int number = seccomp_syscall_resolve_name(name);
        if (number != __NR_SCMP_ERROR) /* this libseccomp knows no newer ones */
            check(seccomp_rule_add(filter, action, number, 0), name);
    }
}

static void deny_bits(scmp_filter_ctx filter, int call, scmp_datum_t bits) {
    struct scmp_arg_cmp bits_set = SCMP_A2(SCMP_CMP_MASKED_EQ, bits, bits);
    check(seccomp_rule_add_array(filter, SCMP_ACT_ERRNO(EPERM), call, 1, &bits_set),
          "MemoryDenyWriteExecute");
}

/* systemd, src/shared/seccomp-util.c, seccomp_memory_deny_write_execute */
static void deny_write_execute(scmp_filter_ctx filter) {
    deny_bits(filter, SCMP_SYS(mmap), PROT_EXEC | PROT_WRITE);
    deny_bits(filter, SCMP_SYS(mprotect), PROT_EXEC);
    deny_bits(filter, SCMP_SYS(pkey_mprotect), PROT_EXEC);
    deny_bits(filter, SCMP_SYS(shmat), SHM_EXEC);
}

static void deny_populate(scmp_filter_ctx filter) {
    for (int advice = MADV_POPULATE_READ; advice <= MADV_POPULATE_WRITE; advice++) {
        struct scmp_arg_cmp same = SCMP_A2(SCMP_CMP_EQ, (scmp_datum_t)advice);
        check(seccomp_rule_add_array(filter, SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(madvise), 1, &same),
              "no-populate");
    }
}

static void allow_one_huge_page(scmp_filter_ctx filter) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct scmp_arg_cmp advise[] = {SCMP_A2(SCMP_CMP_EQ, MADV_HUGEPAGE)};
    struct scmp_arg_cmp collapse[] = {SCMP_A2(SCMP_CMP_EQ, MADV_COLLAPSE),
                                      SCMP_A1(SCMP_CMP_NE, page * (page / 8))};
    check(seccomp_rule_add_array(filter, SCMP_ACT_ERRNO(0), SCMP_SYS(madvise), 1, advise), "one-huge-page");
    check(seccomp_rule_add_array(filter, SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(madvise), 2, collapse),
          "one-huge-page");
}

static void set_groups(size_t n) {
    static gid_t group[NGROUPS_MAX];
    check(n > NGROUPS_MAX, "groups");
    for (size_t i = 0; i < n; i++)
        group[i] = (gid_t)(100000 + i);
    check(setgroups(n, group), "setgroups");
}

static void set_filter(char *rule) {
    scmp_filter_ctx filter =
        seccomp_init(strncmp(rule, "only=", 5) == 0 ? SCMP_ACT_KILL_PROCESS : SCMP_ACT_ALLOW);
    if (strcmp(rule, "no-write-execute") == 0)
        deny_write_execute(filter);
    else if (strcmp(rule, "no-populate") == 0)
        deny_populate(filter);
    else if (strcmp(rule, "one-huge-page") == 0)
        allow_one_huge_page(filter);
    else if (strncmp(rule, "deny=", 5) == 0)
        add_calls(filter, SCMP_ACT_ERRNO(EPERM), rule + 5);
    else if (strncmp(rule, "kill=", 5) == 0)
        add_calls(filter, SCMP_ACT_KILL_PROCESS, rule + 5);
    else if (strncmp(rule, "pretend=", 8) == 0)
        add_calls(filter, SCMP_ACT_ERRNO(0), rule + 8);
    else if (strncmp(rule, "only=", 5) == 0)
        add_calls(filter, SCMP_ACT_ALLOW, rule + 5);
    else
        check(-EINVAL, rule);
    check(seccomp_load(filter), "seccomp_load");
    seccomp_release(filter);
}

static void set_rule(char *rule) {
    if (strcmp(rule, "mdwe") == 0)
        check(prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0), rule);
    else if (strcmp(rule, "no-thp") == 0)
        check(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), rule);
    else if (strcmp(rule, "merge") == 0)
        check(prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0), rule);
    else if (strncmp(rule, "groups=", 7) == 0)
        set_groups(strtoul(rule + 7, NULL, 10));
    else
        set_filter(rule);
}

int main(int argc, char **argv) {
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        set_rule(argv[i]);
    if (i + 1 < argc)
        execv(argv[i + 1], argv + i + 1);
    check(1, "exec");
}
