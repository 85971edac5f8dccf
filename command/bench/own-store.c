/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: images for the measurement alone.

   They lie in a folder of their own in /dev/shm, or in XDG_RUNTIME_DIR.  A child removes it when this process ends, however it ends:
   the child waits for the end of a pipe that no program inherits. */
#include "command/bench/own-store.h"
#include "command/image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Waits for the end of the pipe ALIVE, then removes the store at PATH. */
_Noreturn static void wait_and_remove(int alive, const char *path) {
    char byte;
    setsid(); /* a signal from the terminal is not for this process */
    while (read(alive, &byte, 1) < 0 && errno == EINTR)
        ;
    hl_remove_tree(AT_FDCWD, path, 2);
    _exit(HL_EXIT_DONE);
}

/* The path of a new folder, which is gone when OWN is; NULL and errno.  The caller frees it. */
static char *make_folder(struct hl_own_store *own) {
    const char *parents[] = {"/dev/shm", getenv("XDG_RUNTIME_DIR")};
    char *path = NULL;
    int alive[2];
    for (size_t i = 0; i < 2 && path == NULL && parents[i] != NULL; i++) {
        path = hl_xasprintf("%s/hugeld-bench-XXXXXX", parents[i]);
        if (mkdtemp(path) == NULL) {
            free(path);
            path = NULL;
        }
    }
    if (path == NULL || pipe2(alive, O_CLOEXEC) != 0)
        return path;
    own->remover = fork();
    if (own->remover == 0) {
        close(alive[1]);
        wait_and_remove(alive[0], path);
    }
    close(alive[0]);
    own->alive = alive[1];
    return path;
}

void hl_remove_own_store(struct hl_own_store *own) {
    if (own->remover <= 0)
        return;
    close(own->alive);
    while (waitpid(own->remover, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* Whether `hugeld run` would use an image of OBJECT, of the process of EXECUTABLE.  *IS_MADE: there is one, or it is in place. */
static bool is_served(const struct hl_subject *subject, const json_t *object, const char *executable,
                      const struct hl_options *options, bool *is_made) {
    const char *path = json_string_value(json_object_get(object, "path"));
    json_int_t text = json_integer_value(json_object_get(object, "text_bytes")),
               huge = json_integer_value(json_object_get(object, "text_huge_bytes"));
    bool is_main = json_is_true(json_object_get(object, "is_main"));
    const struct hl_object names = {.path = path, .is_main = is_main};
    const char *own = subject->program.executable;
    if (path == NULL || 4 * huge >= 3 * text || (is_main && (own == NULL || strcmp(own, executable) != 0)) ||
        (is_main && hl_select_object(hl_find_patterns(subject->run.patterns), &names) == HL_NOT_SELECTED))
        return false;
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    *is_made = file >= 0 && hl_find_made(file, options) != HL_WAY_NOTHING;
    if (file >= 0)
        close(file);
    return true;
}

/* Adds the paths of the objects in MAPS that would be served to PATHS.  Whether one of them lacks an image. */
static bool find_files(const struct hl_subject *subject, const json_t *maps, const struct hl_options *options,
                       json_t *paths) {
    size_t i, j;
    const json_t *map, *object;
    bool lacks = false, is_made;
    json_array_foreach((json_t *)maps, i, map)
        json_array_foreach(json_object_get(map, "objects"), j, object) {
        const char *executable = json_string_value(json_object_get(map, "executable"));
        if (executable == NULL || !is_served(subject, object, executable, options, &is_made))
            continue;
        lacks |= !is_made;
        json_object_set(paths, json_string_value(json_object_get(object, "path")),
                        json_object_get(object, "path"));
    }
    return lacks;
}

/* Makes the images of PATHS in STORE.  NULL, or why one could not be made. */
static char *add_images(const struct hl_store *store, json_t *paths, json_t *files) {
    const char *path;
    json_t *text;
    char *reason = NULL;
    json_object_foreach(paths, path, text) {
        struct hl_add_outcome outcome;
        hl_add_path(&outcome, store, path, HL_ADD_ANY_DISK | HL_ADD_IF_WORTH | HL_ADD_IMAGE);
        if (outcome.result == HL_SHARE_MADE)
            json_array_append(files, text);
        if (outcome.result == HL_SHARE_FAILED && reason == NULL)
            reason = hl_xasprintf("%s has no image, and none could be made: %s", path, outcome.sentence);
        hl_free_add_outcome(&outcome);
    }
    return reason;
}

char *hl_make_own_images(struct hl_own_store *own, struct hl_subject *subject, const json_t *maps,
                         json_t *files) {
    struct hl_options options;
    struct hl_store store;
    char *text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), subject->run.options), *reason = NULL,
         *path = NULL;
    json_t *paths = json_object();
    hl_default_options(&options);
    hl_parse_options(&options, text, NULL);
    hl_read_program(&subject->program);
    if (hl_shares_only(&subject->run, &options, text) && find_files(subject, maps, &options, paths))
        path = make_folder(own);
    if (path != NULL && hl_make_store(&store, path, NULL, true) == 0) {
        reason = add_images(&store, paths, files);
        hl_close_store(&store);
    }
    if (json_array_size(files) > 0) {
        char *option = hl_xasprintf("store=%s", path), *both = hl_join_options(subject->run.options, option);
        free(option);
        free(subject->run.options);
        subject->run.options = both;
    }
    json_decref(paths);
    free(path);
    free(text);
    return reason;
}
