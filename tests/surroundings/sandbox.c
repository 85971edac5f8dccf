/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* sandbox RULE [LIBRARY]: restricts itself, opens LIBRARY (../dlopen/table.S), uses it, and waits for the end
   of its standard input before it uses it again.  Without a LIBRARY it uses the table that is linked into it.
   RULE:

     none          nothing
     only=CALL,... every other system call kills
     mdwe          PR_SET_MDWE: written memory never becomes executable (Linux 6.3)
     landlock      nothing outside of LIBRARY's folder may be opened any more (Linux 5.13)

   77: the kernel has no such thing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(77);
    }
}

static void allow_only(char *names) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    for (char *name = strtok(names, ","); name != NULL; name = strtok(NULL, ","))
        seccomp_rule_add(filter, SCMP_ACT_ALLOW, seccomp_syscall_resolve_name(name), 0);
    check(seccomp_load(filter), "seccomp");
}

static void allow_folder(const char *library) {
    struct landlock_ruleset_attr all = {.handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE |
                                                             LANDLOCK_ACCESS_FS_READ_FILE |
                                                             LANDLOCK_ACCESS_FS_READ_DIR};
    int rules = (int)syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0);
    check(rules < 0, "landlock");
    char *path = strdup(library);
    struct landlock_path_beneath_attr folder = {.allowed_access = all.handled_access_fs,
                                                .parent_fd = open(dirname(path), O_PATH | O_CLOEXEC)};
    check(syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &folder, 0) != 0, "landlock");
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
    check(syscall(SYS_landlock_restrict_self, rules, 0) != 0, "landlock");
    close(folder.parent_fd);
    close(rules);
}

static void restrict_with(char *rule, const char *library) {
    if (strncmp(rule, "only=", 5) == 0)
        allow_only(rule + 5);
    else if (strcmp(rule, "mdwe") == 0)
        check(prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0), "PR_SET_MDWE");
    else if (strcmp(rule, "landlock") == 0)
        allow_folder(library);
}

typedef uint64_t (*function)(uint64_t, void *);

extern const function table[];
extern const uint64_t constants[];
static uint64_t data[3 << 18] = {1};

static void print_sum(const function *functions, const uint64_t *words) {
    uint64_t x = data[0]++;
    for (unsigned i = 0; i < 4096; i++)
        x = functions[i](x, NULL);
    for (unsigned i = 0; i < 512 * 1024; i++)
        x = x * 31 + words[i];
    printf("sum %016lx\n", (unsigned long)x);
}

int main(int argc, char **argv) {
    const function *functions = table;
    const uint64_t *words = constants;
    char byte;
    if (argc < 2)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("start");
    restrict_with(argv[1], argv[2]);
    if (argc > 2) {
        void *handle = dlopen(argv[2], RTLD_NOW);
        if (handle == NULL)
            return puts(dlerror()), 1;
        functions = dlsym(handle, "table");
        words = dlsym(handle, "constants");
    }
    print_sum(functions, words);
    while (read(0, &byte, 1) > 0)
        ;
    print_sum(functions, words);
    return 3;
}
