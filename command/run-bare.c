/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Starting a program on huge pages with nothing of hugeld in it: in place, or on its image at the exec stop. */
#include "run-bare.h"
#include "basics.h"
#include "program.h"
#include "store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hl_string hl_find_patterns(const char *given) {
    const char *text = given != NULL ? given : getenv("LD_HUGEPAGES");
    text = text != NULL ? text : "main";
    return (struct hl_string){text, strlen(text)};
}

bool hl_selects_main(struct hl_string patterns, const char *path) {
    struct hl_object object = {.path = path, .is_main = true};
    return hl_select_object(patterns, &object) != HL_NOT_SELECTED;
}

static bool is_in_place(const char *executable, const struct hl_options *options, const char *name) {
    if (options->backend != HL_BACKEND_AUTO)
        return false;
    int file = open(executable, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool is_kept = file >= 0 && hl_is_kept_in_place(file);
    if (file >= 0)
        close(file);
    if (is_kept && options->verbose >= 1)
        hl_say("%s: started as it is, because its file is kept on huge pages in place", name);
    return is_kept;
}

static struct hl_exec_stop *start_exec_stop(const char *executable, const struct hl_options *options,
                                            const char *path, const char *name) {
    struct hl_exec_stop *stop = NULL;
    bool is_image_wanted = options->backend == HL_BACKEND_AUTO || options->backend == HL_BACKEND_SHARED;
    if (!is_image_wanted || options->bss != HL_BSS_OFF || hl_is_privileged(path))
        return NULL;
    char *reason = hl_start_exec_stop(&stop, executable, options);
    if (reason != NULL && options->verbose >= 1)
        hl_say("%s: not at the exec stop: %s", name, reason);
    free(reason);
    return stop;
}

bool hl_choose_bare(struct hl_exec_stop **stop, const struct hl_options *options, struct hl_string patterns,
                    const char *path, const char *name) {
    bool is_bare = false;
    char *executable = hl_find_executable(path);
    *stop = NULL;
    if (executable != NULL && hl_selects_main(patterns, executable)) {
        is_bare = is_in_place(executable, options, name);
        if (!is_bare)
            *stop = start_exec_stop(executable, options, path, name);
    }
    free(executable);
    return is_bare || *stop != NULL;
}
