/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld run --share: images of what is about to run. */
#include "run-share.h"
#include "store.h"
#include "common.h"
#include "libraries.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static bool is_selected(const char *path, bool is_main, struct hl_string patterns) {
    struct hl_elf_file file;
    struct hl_object object = {.path = path, .is_main = is_main};
    if (hl_open_elf(&file, AT_FDCWD, path) != HL_ELF_FINE)
        return false;
    object.soname = file.soname;
    bool selected = hl_select_object(patterns, &object) != HL_NOT_SELECTED;
    hl_close_elf(&file);
    return selected;
}

static void add_missing(const struct hl_store *store, const char *path) {
    struct hl_addition addition;
    hl_add_path(&addition, store, path, false, false);
    if (addition.result == HL_SHARE_FAILED)
        hl_say("%s: no image: %s", path, addition.sentence);
    hl_free_addition(&addition);
}

void hl_share_program(const char *executable, struct hl_string patterns, const struct hl_options *options) {
    struct hl_store store;
    struct hl_libraries libraries = {0};
    const struct hl_store_wishes wishes = {0};
    char *path = options->store.bytes > 0 ? hl_format("%.*s", (int)options->store.bytes, options->store.at)
                                          : hl_default_store();
    if (executable != NULL && hl_make_store(&store, path, &wishes) == 0) {
        if (is_selected(executable, true, patterns))
            add_missing(&store, executable);
        if (hl_selects_other_objects(patterns))
            hl_list_libraries(&libraries, executable);
        for (size_t i = 0; i < libraries.n; i++)
            if (is_selected(libraries.path[i], false, patterns))
                add_missing(&store, libraries.path[i]);
        hl_free_libraries(&libraries);
        hl_close_store(&store);
    }
    free(path);
}
