/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: images for the measurement alone.

   They lie in a folder of their own in /dev/shm.  A child makes it, and removes it when this process ends,
   however it ends: the child waits for the end of a socket that no program inherits. */
#include "command/measure/own-store.h"
#include "command/image/store.h"
#include "command/image/verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Makes a folder, tells PARENT its path, and removes it when PARENT's other end is closed. */
_Noreturn static void keep_folder(int parent) {
    char byte, path[] = "/dev/shm/hugeld-bench-XXXXXX";
    setsid(); /* what ends the parent's group, or comes from the terminal, is not for this process */
    if (mkdtemp(path) == NULL)
        _exit(HL_EXIT_NO);
    if (write(parent, path, sizeof path) > 0)
        while (read(parent, &byte, 1) < 0 && errno == EINTR)
            ;
    hl_remove_tree(AT_FDCWD, path, 2);
    _exit(HL_EXIT_DONE);
}

/* The path of a new folder, which is gone when OWN is; NULL: there is none.  The caller frees it. */
static char *make_folder(struct hl_own_store *own) {
    char path[PATH_MAX] = "";
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return NULL;
    own->remover = fork();
    if (own->remover == 0) {
        close(ends[0]);
        keep_folder(ends[1]);
    }
    close(ends[1]);
    own->alive = ends[0];
    while (read(own->alive, path, sizeof path - 1) < 0 && errno == EINTR)
        ;
    return path[0] != '\0' ? hl_xasprintf("%s", path) : NULL;
}

void hl_remove_own_store(struct hl_own_store *own) {
    if (own->remover <= 0)
        return;
    close(own->alive);
    while (waitpid(own->remover, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* Whether `hugeld run` would use an image of OBJECT, of a process of EXECUTABLE. */
static bool is_served(const struct hl_subject *subject, const json_t *object, const char *executable) {
    const char *path = json_string_value(json_object_get(object, "path")), *own = subject->program.executable;
    const struct hl_object main = {.path = path, .is_main = true};
    json_int_t text = json_integer_value(json_object_get(object, "text_bytes")),
               huge = json_integer_value(json_object_get(object, "text_huge_bytes"));
    bool is_main = json_is_true(json_object_get(object, "is_main"));
    bool is_own =
        subject->run.children || (own != NULL && executable != NULL && strcmp(own, executable) == 0);
    bool is_selected =
        !is_main || hl_select_object(hl_find_patterns(subject->run.patterns), &main) != HL_NOT_SELECTED;
    return path != NULL && 4 * huge < 3 * text && (!is_main || is_own) && is_selected;
}

/* Adds the file at PATH to FILES if hugeld can share it.  Whether it lacks an image. */
static bool add_file(json_t *files, const char *path, bool is_main, const struct hl_options *options) {
    struct hl_elf_file file;
    struct hl_verdict verdict;
    if (hl_open_elf(&file, AT_FDCWD, path) != HL_ELF_FINE)
        return false;
    hl_judge_file(&verdict, path, &file, is_main, options);
    bool is_shared = hl_shared_way(&verdict) != HL_WAY_NOTHING, lacks = is_shared && !verdict.is_made;
    if (is_shared)
        json_object_set_new(files, path, json_true());
    hl_free_verdict(&verdict);
    hl_close_elf(&file);
    return lacks;
}

/* Sets FILES to the paths of the objects in MAPS that would be served.  Whether one of them lacks an image. */
static bool find_files(const struct hl_subject *subject, const json_t *maps, const struct hl_options *options,
                       json_t *files) {
    size_t i, j;
    json_t *map, *object;
    bool lacks = false;
    json_array_foreach((json_t *)maps, i, map)
        json_array_foreach(json_object_get(map, "objects"), j, object) {
        const char *path = json_string_value(json_object_get(object, "path"));
        if (is_served(subject, object, json_string_value(json_object_get(map, "executable"))))
            lacks |= add_file(files, path, json_is_true(json_object_get(object, "is_main")), options);
    }
    return lacks;
}

/* Makes the images of FILES in STORE, and adds their paths to MADE.  NULL, or why one could not be made. */
static char *add_images(const struct hl_store *store, json_t *files, json_t *made) {
    const char *path;
    json_t *unused;
    char *reason = NULL;
    json_object_foreach(files, path, unused) {
        struct hl_add_outcome outcome;
        hl_add_path(&outcome, store, path, HL_ADD_ANY_DISK | HL_ADD_IF_WORTH | HL_ADD_IMAGE);
        if (outcome.result == HL_SHARE_MADE)
            json_array_append_new(made, hl_json_text(path));
        if (outcome.result == HL_SHARE_FAILED && reason == NULL)
            reason = hl_xasprintf("no image could be made of %s: %s", path, outcome.sentence);
        hl_free_add_outcome(&outcome);
    }
    return reason;
}

char *hl_make_own_images(struct hl_own_store *own, struct hl_subject *subject, const json_t *maps,
                         json_t *made) {
    struct hl_options options;
    struct hl_store store;
    char *text = hl_join_options(getenv("LD_HUGEPAGES_OPTIONS"), subject->run.options), *reason = NULL,
         *path = NULL;
    json_t *files = json_object();
    hl_default_options(&options);
    hl_parse_options(&options, text, NULL);
    hl_read_program(&subject->program);
    if (hl_shares_only(&subject->run, &options, text) && find_files(subject, maps, &options, files))
        path = make_folder(own);
    if (path != NULL && hl_make_store(&store, path, NULL) == 0) {
        reason = add_images(&store, files, made);
        hl_close_store(&store);
    }
    if (json_array_size(made) > 0) {
        char *option = hl_xasprintf("store=%s", path), *both = hl_join_options(subject->run.options, option);
        free(option);
        free(subject->run.options);
        subject->run.options = both;
    }
    json_decref(files);
    free(path);
    free(text);
    return reason;
}
