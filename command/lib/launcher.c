/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the program that a launcher starts: npm is a script of env, which becomes node.

   Nothing is run for it, and no shell is imitated: the program that a shell script starts is unknown. */
#include "command/lib/launcher.h"
#include "command/lib/basics.h"

#include <stdlib.h>
#include <string.h>

#define LAUNCHERS_MAX 5
#define WORDS_MAX 16

/* Programs that become another one or start one, or may do so: coreutils can be env or nice. */
static const char *const launchers[] = {
    "sh",     "dash",   "bash",    "ksh",     "mksh",    "zsh",    "busybox", "env",   "coreutils",
    "toybox", "gosu",   "su-exec", "setpriv", "chpst",   "nice",   "ionice",  "nohup", "timeout",
    "setsid", "stdbuf", "chrt",    "taskset", "numactl", "chroot", "runuser"};

static bool is_launcher(const char *name) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
        if (strcmp(name, launchers[i]) == 0)
            return true;
    return false;
}

/* The word in which env(1) names its program, among WORDS; NULL if there is none, or an option other than -i and -S before it. */
static char *const *find_env_program(char *const *words) {
    while (*words != NULL && (strcmp(*words, "-i") == 0 || strcmp(*words, "-S") == 0 ||
                              ((*words)[0] != '-' && strchr(*words, '=') != NULL)))
        words++;
    return *words != NULL && (*words)[0] != '-' ? words : NULL;
}

/* The program that env finds in LINE, "#!/usr/bin/env node"; NULL if none.  The caller frees it. */
static char *find_in_first_line(const char *line) {
    char *text = hl_xasprintf("%.*s", (int)strcspn(line, "\n"), line), *words[WORDS_MAX] = {NULL}, *rest;
    size_t n = 0;
    for (char *word = strtok_r(text, " \t", &rest); word != NULL && n < WORDS_MAX - 1;
         word = strtok_r(NULL, " \t", &rest))
        words[n++] = word;
    size_t first = n > 0 && strcmp(words[0], "#!") == 0 ? 2 : 1;
    char *const *program = n > first ? find_env_program(words + first) : NULL;
    char *name = program != NULL ? hl_xasprintf("%s", *program) : NULL;
    free(text);
    return name;
}

/* The program among WORDS, the arguments of a dynamic linker; NULL: there is none, or an unknown option before it. */
static char *const *find_linked_program(char *const *words) {
    static const char *const with_value[] = {
        "--argv0",         "--library-path",         "--preload",          "--audit",
        "--inhibit-rpath", "--glibc-hwcaps-prepend", "--glibc-hwcaps-mask"};
    for (; *words != NULL && (*words)[0] == '-'; words++) {
        bool takes_value = false;
        for (size_t i = 0; i < sizeof with_value / sizeof with_value[0]; i++)
            takes_value |= strcmp(*words, with_value[i]) == 0;
        if (takes_value && words[1] != NULL)
            words++;
        else if (strcmp(*words, "--inhibit-cache") != 0)
            return NULL;
    }
    return *words != NULL ? words : NULL;
}

/* The program that TARGET->program starts; NULL if it is no launcher, or starts an unknown program. */
static char *find_next(struct hl_target *target) {
    const struct hl_program *program = target->program;
    const char *name = program->executable != NULL ? hl_base_name(program->executable) : "";
    bool is_linker = !program->is_script && hl_is_linker_called(target->program);
    target->is_unknown = is_launcher(name) || is_linker;
    if (strcmp(name, "env") != 0 && !is_linker)
        return NULL;
    if (program->is_script)
        return find_in_first_line(program->first_line);
    char *const *next = target->followed ? NULL
                        : is_linker      ? find_linked_program(target->argv + 1)
                                         : find_env_program(target->argv + 1);
    target->argv = next != NULL ? next : target->argv;
    return next != NULL ? hl_xasprintf("%s", *next) : NULL;
}

const struct hl_target *hl_follow_launchers(struct hl_program *program, char *const *argv) {
    if (program->target != NULL)
        return program->target;
    struct hl_target *target = program->target = hl_xmalloc(sizeof *target);
    *target = (struct hl_target){.program = program, .argv = argv};
    hl_read_program(program);
    char *name;
    for (unsigned i = 0; i < LAUNCHERS_MAX && (name = find_next(target)) != NULL; i++) {
        struct hl_program next;
        hl_open_program(&next, name);
        free(name);
        hl_read_program(&next);
        if (next.executable == NULL) {
            hl_close_program(&next);
            break;
        }
        if (target->followed)
            hl_close_program(target->program);
        else
            target->program = hl_xmalloc(sizeof next);
        *target->program = next;
        target->followed = true;
    }
    return target;
}
