/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a program that only starts another one starts: npm is a script of env, which becomes node; firefox-esr is
   a shell script whose last line execs a file in /usr/lib.

   Nothing is run for it, and no shell is imitated: where the last exec has a variable, what is started is not known. */
#include "command/file/launcher.h"
#include "command/base/basics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAUNCHERS_MAX 5
#define WORDS_MAX 16

static const char *const shells[] = {"sh", "dash", "bash", "ksh", "mksh", "zsh", "busybox", NULL};

/* Programs that become another one, which their arguments name, or may do so: coreutils can be env or nice. */
static const char *const others[] = {
    "env",     "coreutils", "toybox", "gosu", "su-exec", "setpriv", "chpst",  "nice",    "ionice", "nohup",
    "timeout", "setsid",    "stdbuf", "chrt", "taskset", "numactl", "chroot", "runuser", NULL};

static bool is_one_of(const char *name, const char *const *list) {
    while (*list != NULL && strcmp(name, *list) != 0)
        list++;
    return *list != NULL;
}

/* The word in which env(1) names its program, among WORDS; NULL if that cannot be told. */
static char *const *find_env_program(char *const *words) {
    static const char *const without_value[] = {"-", "-i", "-S", "-v", "--", "--ignore-environment"};
    for (; *words != NULL; words++) {
        bool is_skipped = (*words)[0] != '-' && strchr(*words, '=') != NULL;
        for (size_t i = 0; i < sizeof without_value / sizeof without_value[0]; i++)
            is_skipped |= strcmp(*words, without_value[i]) == 0;
        if (strcmp(*words, "-u") == 0 || strcmp(*words, "-C") == 0)
            words += words[1] != NULL;
        else if (!is_skipped)
            return (*words)[0] == '-' ? NULL : words;
    }
    return NULL;
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

/* A script is no longer than that, but for what is appended to it (an archive that unpacks itself). */
#define SCRIPT_BYTES_MAX ((size_t)64 << 10)

/* The beginning of the open FILE, which the caller frees. */
static char *read_script(int file) {
    char *text = hl_xmalloc(SCRIPT_BYTES_MAX + 1);
    ssize_t bytes = pread(file, text, SCRIPT_BYTES_MAX, 0);
    text[bytes > 0 ? bytes : 0] = '\0';
    return text;
}

/* What the last "exec" that begins a line of the shell script in the open FILE names; NULL if that cannot be told. */
static char *find_in_script(int file) {
    char *text = read_script(file), *name = NULL, *rest;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *at = line + strspn(line, " \t");
        if (strncmp(at, "exec", 4) != 0 || (at[4] != ' ' && at[4] != '\t'))
            continue;
        at += 4 + strspn(at + 4, " \t\"'");
        free(name);
        name = hl_xasprintf("%.*s", (int)strcspn(at, " \t\"';&|<>"), at);
    }
    free(text);
    if (name != NULL && strpbrk(name, "$`\\*?[~()") == NULL && name[0] != '-')
        return name;
    free(name);
    return NULL;
}

/* What TARGET->program starts; NULL if it is no launcher, or if that cannot be told. */
static char *find_next(struct hl_target *target) {
    const struct hl_program *program = target->program;
    const char *name = program->executable != NULL ? hl_base_name(program->executable) : "";
    target->is_unknown = is_one_of(name, shells) || is_one_of(name, others);
    if (is_one_of(name, shells))
        return program->is_script ? find_in_script(program->script) : NULL;
    if (strcmp(name, "env") != 0)
        return NULL;
    if (program->is_script)
        return find_in_first_line(program->first_line);
    char *const *next = target->followed ? NULL : find_env_program(target->argv + 1);
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
