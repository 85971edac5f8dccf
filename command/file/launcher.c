/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a program that only starts another one starts: npm is a script of env, which becomes node; chromium is
   a shell script that execs a file in /usr/lib.

   Nothing is run for it.  Of a shell script the simple assignments and the last exec that names an executable
   file are read, which is what wrappers of distributions look like; of any other it is said that what it
   starts is not known. */
#include "command/file/launcher.h"
#include "command/base/common.h"
#include "command/file/program.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAUNCHERS_MAX 5
#define SCRIPT_BYTES_MAX 65536

static bool is_shell(const char *name) {
    static const char *const shells[] = {"sh", "dash", "bash", "ksh", "mksh", "zsh", "busybox"};
    for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++)
        if (strcmp(name, shells[i]) == 0)
            return true;
    return false;
}

static size_t name_bytes(const char *text) {
    size_t n = 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_')
        n++;
    return isdigit((unsigned char)text[0]) ? 0 : n;
}

/* --- env --- */

/* The word in which env(1) names its program, among WORDS; NULL if that cannot be told. */
static char *const *find_env_program(char *const *words) {
    static const char *const without_value[] = {"-", "-i", "-S", "-v", "--ignore-environment", "--debug"};
    for (; *words != NULL; words++) {
        bool is_option = false;
        size_t name = name_bytes(*words);
        for (size_t i = 0; i < sizeof without_value / sizeof without_value[0]; i++)
            is_option |= strcmp(*words, without_value[i]) == 0;
        if (strcmp(*words, "--") == 0 || is_option || (name > 0 && (*words)[name] == '='))
            continue;
        if (strcmp(*words, "-u") == 0 || strcmp(*words, "-C") == 0) {
            words += words[1] != NULL;
            continue;
        }
        return (*words)[0] == '-' ? NULL : words;
    }
    return NULL;
}

/* The program that env finds in LINE, what follows its path in a "#!" line; NULL if none. */
static char *find_in_line(char *line) {
    char *words[16] = {NULL}, *rest;
    size_t n = 0;
    for (char *word = strtok_r(line, " \t", &rest); word != NULL && n < 15;
         word = strtok_r(NULL, " \t", &rest))
        words[n++] = word;
    char *const *program = find_env_program(words);
    return program != NULL ? hl_find_program(*program) : NULL;
}

/* --- shell scripts --- */

struct variable {
    char *name, *value;
};

struct variables {
    struct variable *at;
    size_t n;
};

static const char *find_value(const struct variables *variables, const char *name, size_t bytes) {
    for (size_t i = variables->n; i-- > 0;)
        if (strlen(variables->at[i].name) == bytes && memcmp(variables->at[i].name, name, bytes) == 0)
            return variables->at[i].value;
    return NULL;
}

/* The word that TEXT begins with, without quotes and with variables put in; NULL if it has anything that only
   a shell can tell. */
static char *expand_word(const struct variables *variables, const char *text) {
    char *word = hl_xasprintf("%s", "");
    char quote = '\0';
    for (; *text != '\0' && (quote != '\0' || strchr(" \t;&|<>", *text) == NULL); text++) {
        const char *value = NULL;
        char one[2] = {*text, '\0'};
        if ((*text == '"' || *text == '\'') && (quote == '\0' || quote == *text)) {
            quote = quote == '\0' ? *text : '\0';
            continue;
        }
        if (*text == '$' && quote != '\'') {
            bool braces = text[1] == '{';
            size_t bytes = name_bytes(text + 1 + braces);
            value = bytes > 0 ? find_value(variables, text + 1 + braces, bytes) : NULL;
            text += bytes + braces;
            if (value != NULL && braces && *++text != '}')
                value = NULL;
        } else if (quote == '\'' || strchr("`\\*?[~()", *text) == NULL) {
            value = one;
        }
        if (value == NULL) {
            free(word);
            return NULL;
        }
        char *longer = hl_xasprintf("%s%s", word, value);
        free(word);
        word = longer;
    }
    return word;
}

static void take_assignment(struct variables *variables, const char *line) {
    size_t bytes = name_bytes(line);
    char *value =
        expand_word(variables, line + bytes + 1); /* which may have the variable's old value in it */
    variables->at = hl_xrealloc(variables->at, (variables->n + 1) * sizeof *variables->at);
    variables->at[variables->n++] = (struct variable){hl_xasprintf("%.*s", (int)bytes, line), value};
}

/* The file that "exec" in LINE names; NULL if there is none, or if it cannot be told. */
static char *find_exec(const struct variables *variables, const char *line) {
    static const char word[] = "exec";
    const char *at = line;
    while ((at = strstr(at, word)) != NULL) {
        bool begins = at == line || strchr(" \t;&|", at[-1]) != NULL;
        at += strlen(word);
        if (begins && (*at == ' ' || *at == '\t'))
            break;
    }
    if (at == NULL)
        return NULL;
    char *name = expand_word(variables, at + strspn(at, " \t"));
    char *found = name != NULL ? hl_find_program(name) : NULL;
    free(name);
    return found;
}

/* The file that the shell script at PATH execs last; NULL if that cannot be told. */
static char *find_in_script(const char *path) {
    struct variables variables = {0};
    char *found = NULL, *text = hl_xmalloc(SCRIPT_BYTES_MAX + 1), *rest;
    FILE *file = fopen(path, "re");
    size_t bytes = file != NULL ? fread(text, 1, SCRIPT_BYTES_MAX, file) : 0;
    text[bytes] = '\0';
    if (file != NULL)
        fclose(file);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        line += strspn(line, " \t");
        if (strncmp(line, "export ", strlen("export ")) == 0)
            line += strlen("export ");
        if (line[0] == '#')
            continue;
        if (name_bytes(line) > 0 && line[name_bytes(line)] == '=')
            take_assignment(&variables, line);
        char *next = find_exec(&variables, line);
        if (next == NULL)
            continue;
        free(found);
        found = next;
    }
    for (size_t i = 0; i < variables.n; i++) {
        free(variables.at[i].name);
        free(variables.at[i].value);
    }
    free(variables.at);
    free(text);
    return found;
}

/* --- */

/* What follows the interpreter's path in the first line of the script at PATH; NULL if it is none. */
static char *read_interpreter_words(const char *path) {
    char line[256] = "";
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    bool is_script = fgets(line, sizeof line, file) != NULL && strncmp(line, "#!", 2) == 0;
    fclose(file);
    line[strcspn(line, "\n")] = '\0';
    if (!is_script)
        return NULL;
    char *at = line + 2 + strspn(line + 2, " \t");
    return hl_xasprintf("%s", at + strcspn(at, " \t"));
}

/* The file that the program at PATH, which runs TARGET->executable, starts; NULL if it is no launcher, or if
   that cannot be told. */
static char *find_next(struct hl_target *target, const char *path) {
    const char *name = hl_base_name(target->executable);
    char *words = read_interpreter_words(path), *next = NULL;
    if (strcmp(name, "env") == 0 && words != NULL) {
        next = find_in_line(words);
    } else if (strcmp(name, "env") == 0 && !target->followed) {
        char *const *program = find_env_program(target->program + 1);
        next = program != NULL ? hl_find_program(*program) : NULL;
        target->program = next != NULL ? program : target->program;
    } else if (is_shell(name)) {
        next = words != NULL ? find_in_script(path) : NULL;
        target->is_unknown = next == NULL;
    }
    free(words);
    return next;
}

void hl_follow_launchers(struct hl_target *target, const char *path, char *const *program) {
    *target = (struct hl_target){hl_find_executable(path), program, false, false};
    char *at = target->executable != NULL ? find_next(target, path) : NULL;
    for (unsigned i = 0; i < LAUNCHERS_MAX && at != NULL; i++) {
        char *executable = hl_find_executable(at);
        if (executable == NULL)
            break;
        free(target->executable);
        target->executable = executable;
        target->followed = true;
        char *next = find_next(target, at);
        free(at);
        at = next;
    }
    free(at);
}
