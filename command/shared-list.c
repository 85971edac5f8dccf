/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "shared-list.h"
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "/etc/hugeld"
#define NEW HL_SHARED_LIST ".new"

/* TEXT without blanks around it and without a comment. */
static char *trim(char *text) {
    text += strspn(text, " \t");
    if (text[0] == '#')
        text[0] = '\0';
    size_t length = strcspn(text, "\n");
    while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\t' || text[length - 1] == '\r'))
        length--;
    text[length] = '\0';
    return text;
}

int hl_read_list(char ***entry, size_t *n) {
    char *line = NULL;
    size_t size = 0;
    FILE *list = fopen(HL_SHARED_LIST, "re");
    *entry = NULL;
    *n = 0;
    if (list == NULL)
        return errno == ENOENT ? 0 : -errno;
    while (getline(&line, &size, list) >= 0) {
        const char *text = trim(line);
        if (text[0] == '\0')
            continue;
        *entry = hl_resize(*entry, (*n + 1) * sizeof **entry);
        (*entry)[(*n)++] = hl_format("%s", text);
    }
    free(line);
    fclose(list);
    return 0;
}

void hl_free_list(char **entry, size_t n) {
    for (size_t i = 0; i < n; i++)
        free(entry[i]);
    free(entry);
}

/* Copies what is in OLD to NEW_LIST, but for lines that are PATH, which *FOUND then says. */
static void copy_without(FILE *old, FILE *new_list, const char *path, bool *found) {
    char *line = NULL;
    size_t size = 0;
    while (old != NULL && getline(&line, &size, old) >= 0) {
        char *whole = hl_format("%s", line);
        if (strcmp(trim(line), path) == 0)
            *found = true;
        else
            fprintf(new_list, "%s%s", whole, strchr(whole, '\n') != NULL ? "" : "\n");
        free(whole);
    }
    free(line);
}

/* Writes the list anew, with the line PATH at its end if ADDS, else without it. */
static int rewrite(const char *path, bool adds, bool *changed) {
    bool found = false;
    FILE *old = fopen(HL_SHARED_LIST, "re");
    if (old == NULL && errno != ENOENT)
        return -errno;
    FILE *new_list = fopen(NEW, "we");
    int result = new_list == NULL ? -errno : 0;
    if (result == 0) {
        copy_without(old, new_list, path, &found);
        if (adds)
            fprintf(new_list, "%s\n", path);
        fchmod(fileno(new_list), 0644);
        if (fflush(new_list) != 0 || fsync(fileno(new_list)) != 0)
            result = -errno;
        fclose(new_list);
    }
    if (old != NULL)
        fclose(old);
    *changed = adds != found;
    if (result == 0 && *changed && rename(NEW, HL_SHARED_LIST) != 0)
        result = -errno;
    if (result != 0 || !*changed)
        unlink(NEW);
    return result;
}

int hl_add_to_list(const char *path, bool *changed) {
    if (mkdir(FOLDER, 0755) != 0 && errno != EEXIST)
        return -errno;
    return rewrite(path, true, changed);
}

int hl_take_from_list(const char *path, bool *changed) { return rewrite(path, false, changed); }
