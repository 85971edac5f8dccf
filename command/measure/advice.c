/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld survey: what can be enabled for a program.

   Each file of which it has executed text is judged as it lies at its path now (image/verdict.c); how much of its text can be shared
   on huge pages is weighed by its share of the samples. */
#include "command/measure/frames.h"
#include "command/measure/survey.h"
#include "command/lib/program.h"
#include "elf/reason.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* An object with a smaller part of the hot text is not named. */
#define PART_MIN 0.05

/* One file of the program that has samples. */
struct object {
    struct hl_verdict verdict;
    enum hl_way way;
    double moved; /* the part of the program's hot text that WAY brings onto huge pages */
    double hot;   /* the part of it that is in this file */
};

struct objects {
    size_t n;
    struct object *object;
    bool lacks_files;            /* a file is no longer at its path, or in another mount namespace */
    enum hl_reason plain_reason; /* why nothing can be preloaded into the program; or HL_MOVED */
};

/* Whether a terminal shows PATH unchanged, so that a command with it can be copied. */
static bool can_be_copied(const char *path) {
    json_t *text = json_string(path); /* NULL: it is not UTF-8 */
    bool can = text != NULL && !hl_has_hidden(path);
    json_decref(text);
    return can;
}

/* Opens the file that was ID at PATH; if IS_MAPPED, ID has the device as maps shows it.  False: it is not there any more, or cannot be
   read. */
static bool open_seen_file(struct hl_elf_file *file, const char *path, const struct hl_file_id *id,
                           bool is_mapped) {
    struct stat status;
    if (id->inode == 0 || !can_be_copied(path) || stat(path, &status) != 0 || status.st_ino != id->inode ||
        hl_open_elf(file, AT_FDCWD, path) != HL_ELF_FINE)
        return false;
    uint64_t device = is_mapped ? hl_find_mapped_device(file->fd, file->stat.st_dev) : file->stat.st_dev;
    bool is_same = file->stat.st_ino == id->inode && device == id->device;
    if (!is_same)
        hl_close_elf(file);
    return is_same;
}

/* Adds VERDICT, which OBJECTS own from now on.  Images of libraries are mapped by the preloader. */
static void add_object(struct objects *objects, const struct hl_verdict *verdict, double hot) {
    struct object object = {.verdict = *verdict, .hot = hot};
    object.way = hl_shared_way(verdict);
    object.moved = verdict->text_bytes > 0
                       ? hot * (double)verdict->covered[object.way] / (double)verdict->text_bytes
                       : 0;
    bool is_unreachable =
        objects->plain_reason != HL_MOVED && !verdict->is_main && object.way == HL_WAY_IMAGE;
    if (object.way == HL_WAY_NOTHING || is_unreachable || object.moved < PART_MIN)
        object.moved = 0;
    objects->object = hl_xrealloc(objects->object, (objects->n + 1) * sizeof object);
    objects->object[objects->n++] = object;
}

/* Judges the files of PROGRAM that have samples, and finds in how many frames their hot parts lie. */
static void find_objects(struct objects *objects, struct hl_surveyed *program) {
    struct hl_options options;
    struct hl_verdict verdict;
    struct hl_elf_file file;
    struct hl_frames frames = {0};
    hl_default_options(&options);
    objects->lacks_files = !open_seen_file(&file, program->path, &program->id, false);
    if (!objects->lacks_files) {
        objects->plain_reason = hl_check_file(&file);
        hl_close_elf(&file);
    }
    for (size_t i = 0; i < program->n_objects; i++) {
        const struct hl_hot_object *hot = &program->object[i];
        if (hot->share < PART_MIN || hot->id.inode == 0)
            continue;
        if (!open_seen_file(&file, hot->path, &hot->id, true)) {
            objects->lacks_files = true;
            continue;
        }
        for (size_t j = 0; j < hot->n_chunks; j++)
            if (hot->chunk[j].pages > 0)
                hl_add_frames(&frames, file.fd, (uint64_t)file.stat.st_size, hot->chunk[j].offset);
        hl_judge_file(&verdict, hot->path, &file, strcmp(hot->path, program->path) == 0, &options);
        add_object(objects, &verdict, hot->share);
        hl_close_elf(&file);
    }
    program->frames = hl_count_frames(&frames);
}

/* Why nothing can be enabled: the obstacle of the object that executes most. */
static char *explain_nothing(const struct objects *objects) {
    const struct object *most = NULL;
    for (size_t i = 0; i < objects->n; i++)
        if (most == NULL || objects->object[i].hot > most->hot)
            most = &objects->object[i];
    if (most == NULL)
        return hl_xasprintf("its text belongs to no file that can be planned");
    const struct hl_verdict *verdict = &most->verdict;
    const char *name = hl_base_name(verdict->path);
    if (verdict->best == HL_WAY_NOTHING)
        return hl_xasprintf("%s: %s", name, hl_reason_sentence(verdict->reason));
    return hl_xasprintf("%s: only a private copy in each process helps; hugeld inspect says more", name);
}

/* The command; NULL: there is nothing to enable.  The caller frees it. */
static char *compose(const struct objects *objects) {
    char *command = hl_xasprintf("hugeld enable");
    bool is_any = false;
    for (size_t i = 0; i < objects->n; i++) {
        const struct object *object = &objects->object[i];
        if (object->moved == 0 || object->verdict.is_made)
            continue;
        hl_add_word(&command, object->verdict.path);
        is_any = true;
    }
    if (is_any)
        return command;
    free(command);
    return NULL;
}

void hl_advise(struct hl_surveyed *program, const struct hl_survey *survey) {
    struct hl_advice *advice = &program->advice;
    struct objects objects = {0};
    double most = 0;
    if (survey->undecided) {
        advice->reason = hl_xasprintf("too many samples were lost to decide anything");
        return;
    }
    find_objects(&objects, program);
    bool may_gain = hl_may_gain(program);
    for (size_t i = 0; i < objects.n && may_gain; i++) {
        const struct object *object = &objects.object[i];
        advice->share += object->moved;
        advice->pages += object->moved > 0 ? object->verdict.pages[object->way] : 0;
        advice->way = object->moved > most ? object->way : advice->way;
        most = object->moved > most ? object->moved : most;
    }
    advice->command = objects.lacks_files || !may_gain ? NULL : compose(&objects);
    advice->already_huge = !may_gain && 2 * program->huge_samples > program->samples;
    if (!may_gain)
        advice->reason = hl_xasprintf("%s", advice->already_huge ? "its text is on huge pages already"
                                                                 : "it executes no more than 2 MiB of text");
    else if (objects.lacks_files)
        advice->reason = hl_xasprintf(
            "its files are not found at their paths from here, or these have control characters; "
            "restart it, or run hugeld in its mount namespace");
    else if (advice->way == HL_WAY_NOTHING)
        advice->reason = explain_nothing(&objects);
    else if (advice->command == NULL)
        advice->reason = hl_xasprintf("its files are enabled already; restart it, or start it by hugeld run");
    for (size_t i = 0; i < objects.n; i++)
        hl_free_verdict(&objects.object[i].verdict);
    free(objects.object);
}
