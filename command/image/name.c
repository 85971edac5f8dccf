/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds stores and their images for a program that starts. */
#include "command/image/store.h"
#include "command/base/basics.h"
#include "elf/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *hl_default_store(void) {
    const char *folder = getenv("XDG_RUNTIME_DIR");
    if (geteuid() == 0)
        return hl_xasprintf("%s", HL_SYSTEM_STORE);
    return folder != NULL && folder[0] == '/' ? hl_xasprintf("%s/hugeld", folder) : NULL;
}

char *hl_choose_store(const struct hl_options *options) {
    const struct hl_string *named = &options->store;
    return named->bytes > 0 ? hl_xasprintf("%.*s", (int)named->bytes, named->at) : hl_default_store();
}

uint64_t hl_find_store_owner(void) {
    struct hl_status status;
    hl_read_status(&status, &hl_system_roots);
    return hl_find_trusted_user(&status);
}

static bool has_place(const char *path, uint64_t owner, const char *key) {
    long store = hl_open_store(path, owner);
    if (store < 0)
        return false;
    char *mark = hl_xasprintf("%s/" HL_IN_PLACE_MARK, key);
    bool has = faccessat((int)store, mark, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    free(mark);
    close((int)store);
    return has;
}

/* Reads the key of the open FILE in stores. */
static bool read_key(struct hl_line *key, int file) {
    struct hl_file_state state;
    if (hl_read_file_state(&state, file) != 0)
        return false;
    hl_set_image_key(key, &state);
    return true;
}

bool hl_is_kept_in_place(int file, const struct hl_options *options) {
    struct hl_line key;
    if (!read_key(&key, file))
        return false;
    char *named = hl_xasprintf("%.*s", (int)options->store.bytes, options->store.at);
    bool is_kept = has_place(HL_SYSTEM_STORE, 0, key.at) ||
                   (named[0] != '\0' && has_place(named, hl_find_store_owner(), key.at));
    free(named);
    return is_kept;
}

/* Whether the store at PATH, which may be NULL, has an image of the file KEY, and not only a folder while an image cannot be made.
   The answer decides whether to go on, not whether to trust the image: a store of another user is reported when it is opened. */
static bool has_image(const char *path, const struct hl_line *key) {
    int store = path != NULL ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (store < 0)
        return false;
    char *name = hl_xasprintf("%s/" HL_IMAGE_LINK, key->at);
    bool found = faccessat(store, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    free(name);
    close(store);
    return found;
}

bool hl_is_in_store(int file, const struct hl_options *options) {
    struct hl_line key;
    if (!read_key(&key, file))
        return false;
    if (has_image(HL_SYSTEM_STORE, &key))
        return true;
    char *own = hl_choose_store(options);
    bool found = own != NULL && strcmp(own, HL_SYSTEM_STORE) != 0 && has_image(own, &key);
    free(own);
    return found;
}

enum hl_way hl_find_made(int file, const struct hl_options *options) {
    if (options->backend == HL_BACKEND_AUTO && hl_is_kept_in_place(file, options))
        return HL_WAY_PLACE;
    return hl_is_in_store(file, options) ? HL_WAY_IMAGE : HL_WAY_NOTHING;
}

/* Whether PATTERNS may select OBJECT, which a process may have at another path: by links, or in another mount namespace.  So only
   the part of a path's pattern behind the last slash counts. */
static bool may_select(struct hl_string patterns, const struct hl_object *object) {
    struct hl_pattern pattern;
    if (hl_select_object(patterns, object) != HL_NOT_SELECTED)
        return true;
    while (hl_next_pattern(&patterns, &pattern)) {
        size_t base = pattern.text.bytes;
        while (base > 0 && pattern.text.at[base - 1] != '/')
            base--;
        struct hl_string name = {pattern.text.at + base, pattern.text.bytes - base};
        if (base > 0 && !pattern.excludes &&
            (hl_match_glob(name, hl_base_name(object->path)) ||
             (object->soname != NULL && hl_match_glob(name, object->soname))))
            return true;
    }
    return false;
}

/* Whether FOLDER of the open STORE has the image of a library that PATTERNS may select, made from the present version of the
   file. */
static bool has_library(int store, const char *folder, struct hl_string patterns) {
    struct hl_elf_file image;
    struct hl_file_state state;
    struct hl_line key;
    char path[PATH_MAX];
    char *link = hl_xasprintf("%s/" HL_ORIGIN_LINK, folder);
    ssize_t bytes = readlinkat(store, link, path, sizeof path - 1);
    free(link);
    if (bytes <= 0)
        return false;
    path[bytes] = '\0';
    if (strstr(hl_base_name(path), ".so") == NULL &&
        !may_select(patterns, &(struct hl_object){.path = path})) /* a program, usually: not read */
        return false;
    link = hl_xasprintf("%s/" HL_IMAGE_LINK, folder);
    bool has = hl_open_elf(&image, store, link) == HL_ELF_FINE;
    free(link);
    if (!has)
        return false;
    const struct hl_object object = {.path = path, .soname = image.soname};
    bool is_library = image.header.e_type == ET_DYN && (image.soname != NULL || !image.has_interpreter);
    has = is_library && may_select(patterns, &object);
    hl_close_elf(&image);
    int file = has ? open(path, O_PATH | O_CLOEXEC) : -1;
    if (has && file < 0 && errno == ENOENT)
        return true; /* a folder was renamed, or has another name here: the key decides */
    has = file >= 0 && hl_read_file_state(&state, file) == 0;
    if (file >= 0)
        close(file);
    if (has)
        hl_set_image_key(&key, &state);
    return has && strcmp(key.at, folder) == 0;
}

static bool has_any_library(const char *path, uint64_t owner, struct hl_string patterns) {
    long store = hl_open_store(path, owner);
    DIR *entries = store >= 0 ? hl_open_list((int)store, ".") : NULL;
    bool has = false;
    for (struct dirent *entry; entries != NULL && !has && (entry = readdir(entries)) != NULL;)
        has = entry->d_name[0] != '.' && has_library((int)store, entry->d_name, patterns);
    if (entries != NULL)
        closedir(entries);
    if (store >= 0)
        close((int)store);
    return has;
}

bool hl_has_image_of_library(struct hl_string patterns, const struct hl_options *options) {
    char *own = hl_choose_store(options);
    bool has = has_any_library(HL_SYSTEM_STORE, 0, patterns) ||
               (own != NULL && strcmp(own, HL_SYSTEM_STORE) != 0 &&
                has_any_library(own, hl_find_store_owner(), patterns));
    free(own);
    return has;
}
