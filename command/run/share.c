/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld run --share: makes the images of a program that is about to run. */
#include "command/run/share.h"
#include "command/image/store.h"
#include "command/base/common.h"
#include "command/image/find.h"
#include "command/file/file-plan.h"
#include "command/file/libraries.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether a store that the program's process looks into has the image of the open FILE already. */
static bool is_shared(int file, const struct hl_options *options) {
    struct hl_file_state state;
    long image = hl_read_file_state(&state, file) == 0 ? hl_open_image_of(&state, options) : -1;
    if (image >= 0)
        close((int)image);
    return image >= 0;
}

/* False: the next file would fail for the same reason. */
static bool add_missing(const struct hl_store *store, const char *path, bool tells) {
    struct hl_add_outcome outcome;
    hl_add_path(&outcome, store, path, HL_ADD_UNASKED | HL_ADD_EVICTABLE | HL_ADD_IF_WORTH);
    if (outcome.result == HL_SHARE_FAILED && (tells || !outcome.is_too_young))
        hl_warn("%s: no image: %s", path, outcome.sentence);
    bool is_hopeless = outcome.is_hopeless;
    hl_free_add_outcome(&outcome);
    return !is_hopeless;
}

/* Whether an image of FILE at PATH would fit the address that the dynamic linker or the kernel chooses by itself. */
static bool is_put_on_boundary(const char *path, const struct hl_elf_file *file) {
    struct hl_file_plan file_plan;
    struct hl_options options;
    uint64_t bias = 0;
    hl_default_options(&options);
    hl_plan_file(&file_plan, path, file, &options, 0);
    return !hl_gets_any_address(file, &file_plan.geometry) ||
           (hl_try_load_bias(&bias, file, &file_plan.object, &file_plan.geometry) && bias == 0);
}

/* Whether FILE at PATH is selected, its image would be used, and it has none yet. */
static bool is_wanted(const char *path, const struct hl_elf_file *file, bool is_main,
                      struct hl_string patterns, const struct hl_options *options,
                      enum hl_use_of_images use) {
    const struct hl_object object = {.path = path, .soname = file->soname, .is_main = is_main};
    bool is_anywhere = use == HL_USE_ANYWHERE || (is_main && use == HL_USE_MAIN_ANYWHERE);
    return hl_select_object(patterns, &object) != HL_NOT_SELECTED && !is_shared(file->fd, options) &&
           (is_anywhere || is_put_on_boundary(path, file));
}

static void list_wanted(struct hl_texts *wanted, const struct hl_program *program, struct hl_string patterns,
                        const struct hl_options *options, enum hl_use_of_images use) {
    struct hl_texts libraries = {0};
    if (is_wanted(program->executable, &program->file, true, patterns, options, use))
        hl_add_to_texts(wanted, program->executable);
    if (hl_selects_other_objects(patterns))
        free(hl_list_libraries(&libraries, program->executable, &program->file, true));
    for (size_t i = 0; i < libraries.n; i++) {
        struct hl_elf_file file;
        if (hl_open_elf(&file, AT_FDCWD, libraries.text[i]) != HL_ELF_FINE)
            continue;
        if (is_wanted(libraries.text[i], &file, false, patterns, options, use))
            hl_add_to_texts(wanted, libraries.text[i]);
        hl_close_elf(&file);
    }
    hl_free_texts(&libraries);
}

static bool add_wanted(const struct hl_texts *wanted, const char *executable,
                       const struct hl_options *options) {
    struct hl_store store;
    bool tells = options->verbose >= 1, has_hope = true;
    char *path = hl_choose_store(options);
    int result = hl_make_store(&store, path, NULL, false);
    for (size_t i = 0; i < wanted->n && result == 0 && has_hope; i++)
        has_hope = add_missing(&store, wanted->text[i], tells);
    if (result == 0)
        hl_close_store(&store);
    else if (result == -EWOULDBLOCK && tells)
        hl_warn("%s: no image this time: another process is changing the store", executable);
    free(path);
    return has_hope;
}

bool hl_share_program(const struct hl_program *program, struct hl_string patterns,
                      const struct hl_options *options, enum hl_use_of_images use) {
    struct hl_texts wanted = {0};
    if (program->problem != HL_ELF_FINE || program->executable == NULL)
        return true;
    list_wanted(&wanted, program, patterns, options, use);
    /* An image may be larger than the program's limit for files (RLIMIT_FSIZE): then there is none. */
    struct sigaction before, ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGXFSZ, &ignored, &before);
    bool has_hope = wanted.n == 0 || add_wanted(&wanted, program->executable, options);
    sigaction(SIGXFSZ, &before, NULL);
    hl_free_texts(&wanted);
    return has_hope;
}

void hl_tell_of_attributes(struct hl_program *program, const struct hl_options *options) {
    struct hl_store store;
    struct hl_store_item *items;
    size_t n;
    if (!hl_read_program(program))
        return;
    const char *found = program->executable;
    char *path = hl_choose_store(options);
    long pinned = path != NULL && !is_shared(program->fd, options)
                      ? hl_open_store(path, hl_find_store_owner())
                      : -ENOENT; /* says nothing */
    if (pinned >= 0)
        close((int)pinned);
    if (pinned >= 0 && hl_find_store(&store, path) == 0) {
        hl_read_store(&store, &items, &n);
        for (size_t i = 0; i < n; i++)
            if (items[i].state == HL_ITEM_TOUCHED && strcmp(items[i].origin, found) == 0)
                hl_warn("%s: its image is not used, because its attributes changed since (a hard link, "
                        "chmod); run hugeld "
                        "apply",
                        found);
        hl_free_store_items(items, n);
        hl_close_store(&store);
    }
    free(path);
}
