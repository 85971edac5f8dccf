/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds stores and their images for a program that starts. */
#include "command/image/store.h"
#include "command/lib/basics.h"
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

static bool has_name(int store, const char *key, const char *name) {
    char *path = hl_xasprintf("%s%s", key, name);
    bool has = faccessat(store, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    free(path);
    return has;
}

/* Whether the store at PATH, of this OWNER, has a file with the KEY in place. */
static bool has_in_place(const char *path, uint64_t owner, const char *key) {
    long store = hl_open_store(path, owner);
    bool has = store >= 0 && has_name((int)store, key, "/" HL_IN_PLACE_MARK);
    if (store >= 0)
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

bool hl_is_in_place(int file, const struct hl_options *options) {
    struct hl_line key;
    if (!read_key(&key, file))
        return false;
    char *named = hl_xasprintf("%.*s", (int)options->store.bytes, options->store.at);
    bool is_in_place = has_in_place(HL_SYSTEM_STORE, 0, key.at) ||
                       (named[0] != '\0' && has_in_place(named, hl_find_store_owner(), key.at));
    free(named);
    return is_in_place;
}

/* What a store has of a file. */
enum { HAS_IMAGE = 1, HAS_IN_PLACE = 2 };

/* What the store at PATH, which may be NULL, has under KEY.  The answer decides whether to go on, not whether to trust the image: a
   store of another user is reported when it is opened. */
static unsigned look_into(const char *path, const char *key) {
    int store = path != NULL ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (store < 0)
        return 0;
    bool is_known = has_name(store, key, ""); /* most programs are not, and nothing else is asked */
    unsigned found = (is_known && has_name(store, key, "/" HL_IMAGE_LINK) ? HAS_IMAGE : 0) |
                     (is_known && has_name(store, key, "/" HL_IN_PLACE_MARK) ? HAS_IN_PLACE : 0);
    close(store);
    return found;
}

static unsigned look_into_stores(int file, const struct hl_options *options) {
    struct hl_line key;
    if (!read_key(&key, file))
        return 0;
    char *own = hl_choose_store(options);
    unsigned found = look_into(HL_SYSTEM_STORE, key.at);
    if (own != NULL && strcmp(own, HL_SYSTEM_STORE) != 0)
        found |= look_into(own, key.at);
    free(own);
    return found;
}

bool hl_is_in_store(int file, const struct hl_options *options) {
    return look_into_stores(file, options) & HAS_IMAGE;
}

enum hl_way hl_find_made(int file, const struct hl_options *options) {
    unsigned found = look_into_stores(file, options);
    if (options->backend == HL_BACKEND_AUTO && found & HAS_IN_PLACE && hl_is_in_place(file, options))
        return HL_WAY_IN_PLACE;
    return found & HAS_IMAGE ? HL_WAY_IMAGE : HL_WAY_NOTHING;
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

/* The file at PATH is the present version of the one with the KEY, or is not found: a folder was renamed, or has another name here,
   and the key decides. */
static bool is_present(const char *path, const char *key) {
    struct hl_line present;
    int file = open(path, O_PATH | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT;
    bool is = read_key(&present, file) && strcmp(present.at, key) == 0;
    close(file);
    return is;
}

bool hl_is_library_name(const char *path) { return strstr(hl_base_name(path), ".so") != NULL; }

/* What the open IMAGE of the file at PATH is to a process that has libhugeld.so preloaded. */
static enum hl_fit find_fit(const struct hl_elf_file *image, const char *path, struct hl_string patterns) {
    struct hl_object object = {.path = path, .soname = image->soname};
    struct hl_elf_file file;
    if (image->header.e_type == ET_DYN && (image->soname != NULL || !image->has_interpreter))
        return may_select(patterns, &object) ? HL_FIT_LIBRARY : HL_FIT_NONE;
    object.is_main = true;
    if (!image->has_interpreter || !may_select(patterns, &object))
        return HL_FIT_NONE;
    if (image->header.e_type == ET_EXEC)
        return HL_FIT_EXECUTABLE;
    /* Images of PIEs are laid out for multiples of 2 MiB, which their files may not be. */
    struct hl_geometry geometry = hl_read_geometry();
    if (hl_open_elf(&file, AT_FDCWD, path) != HL_ELF_FINE)
        return HL_FIT_NONE;
    bool is_anywhere = hl_gets_any_address(&file, &geometry);
    hl_close_elf(&file);
    return is_anywhere ? HL_FIT_PIE : HL_FIT_EXECUTABLE;
}

/* The same for the image in FOLDER of the open STORE, if it was made from the present version of its file, whose path is put into
   PATH.  An executable is read only if executables are WANTED. */
static enum hl_fit find_fit_in(int store, const char *folder, struct hl_string patterns, unsigned wanted,
                               char path[PATH_MAX]) {
    struct hl_elf_file image;
    char *link = hl_xasprintf("%s/" HL_ORIGIN_LINK, folder);
    ssize_t bytes = readlinkat(store, link, path, PATH_MAX - 1);
    free(link);
    path[bytes > 0 ? bytes : 0] = '\0';
    bool is_read = hl_is_library_name(path) || (wanted & HL_FIT_EXECUTABLE) ||
                   may_select(patterns, &(struct hl_object){.path = path});
    if (bytes <= 0 || !is_read)
        return HL_FIT_NONE;
    link = hl_xasprintf("%s/" HL_IMAGE_LINK, folder);
    bool is_image = hl_open_elf(&image, store, link) == HL_ELF_FINE;
    free(link);
    if (!is_image && ((wanted & HL_FIT_IN_PLACE) == 0 || hl_open_elf(&image, AT_FDCWD, path) != HL_ELF_FINE))
        return HL_FIT_NONE;
    enum hl_fit fit = find_fit(&image, path, patterns);
    if (!is_image) /* the same of a file in place */
        fit = fit == HL_FIT_LIBRARY || (fit != HL_FIT_NONE && wanted & HL_FIT_EXECUTABLE) ? HL_FIT_IN_PLACE
                                                                                          : HL_FIT_NONE;
    fit &= wanted;
    hl_close_elf(&image);
    return fit != HL_FIT_NONE && is_present(path, folder) ? fit : HL_FIT_NONE;
}

/* Adds to *FITS, until it has all that is WANTED. */
static void add_fits(unsigned *fits, const char *path, uint64_t owner, struct hl_string patterns,
                     unsigned wanted, char **pie) {
    char origin[PATH_MAX];
    long store = hl_open_store(path, owner);
    DIR *entries = store >= 0 ? hl_open_list((int)store, ".") : NULL;
    for (struct dirent *entry; entries != NULL && *fits != wanted && (entry = readdir(entries)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        enum hl_fit fit = find_fit_in((int)store, entry->d_name, patterns, wanted, origin);
        if (fit == HL_FIT_PIE && *pie == NULL)
            *pie = hl_xasprintf("%s", origin);
        *fits |= fit;
    }
    if (entries != NULL)
        closedir(entries);
    if (store >= 0)
        close((int)store);
}

unsigned hl_find_fits(struct hl_string patterns, const struct hl_options *options, unsigned wanted,
                      char **pie) {
    char *own = hl_choose_store(options), *first = NULL;
    unsigned fits = 0;
    add_fits(&fits, HL_SYSTEM_STORE, 0, patterns, wanted, &first);
    if (own != NULL && strcmp(own, HL_SYSTEM_STORE) != 0)
        add_fits(&fits, own, hl_find_store_owner(), patterns, wanted, &first);
    free(own);
    if (pie != NULL)
        *pie = first;
    else
        free(first);
    return fits;
}
