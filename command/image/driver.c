/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds what does the work of a program that only starts others. */
#include "command/image/driver.h"
#include "command/lib/common.h"
#include "command/lib/subprocess.h"
#include "command/lib/launcher.h"
#include "command/image/eligible.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The compiler behind the driver of gcc's at the path EXECUTABLE, as in x86_64-linux-gnu-g++-12; NULL: it is no such driver. */
static const char *find_compiler(const char *executable) {
    static const struct {
        const char *end, *compiler;
    } drivers[] = {{"/g++", "cc1plus"}, {"-g++", "cc1plus"},   {"/gcc", "cc1"},
                   {"-gcc", "cc1"},     {"/gfortran", "f951"}, {"-gfortran", "f951"}};
    char *name = hl_xasprintf("%s", executable), *version = strrchr(name, '-');
    const char *compiler = NULL;
    if (version != NULL && version[1 + strspn(version + 1, "0123456789.")] == '\0')
        *version = '\0';
    for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++)
        if (hl_ends_in(name, drivers[i].end))
            compiler = drivers[i].compiler;
    free(name);
    return compiler;
}

/* Asks the driver PROGRAM for the path of COMPILER.  What runs as nobody may be another process of nobody's to change, so the answer is
   taken only for a file of that name.  NULL: it is not there; else the caller frees it. */
static char *ask_driver(const struct hl_program *program, const char *compiler) {
    char *problem = hl_explain_exposed(program->fd, program->executable, true, NULL), *path = NULL;
    struct hl_answer answer;
    if (problem == NULL) {
        char *option = hl_xasprintf("-print-prog-name=%s", compiler);
        hl_ask_program(&answer, program->executable, (char *[]){program->executable, option, NULL},
                       geteuid() == 0, NULL);
        answer.output[strcspn(answer.output, "\n")] = '\0';
        struct stat file;
        bool is_compiler =
            answer.succeeded && answer.output[0] == '/' && strcmp(hl_base_name(answer.output), compiler) == 0;
        if (is_compiler && stat(answer.output, &file) == 0 && S_ISREG(file.st_mode))
            path = realpath(answer.output, NULL);
        hl_free_answer(&answer);
        free(option);
    }
    free(problem);
    return path;
}

enum hl_reason hl_find_worker(char **worker, struct hl_program *program, char *const *argv) {
    const struct hl_target *target = hl_follow_launchers(program, argv);
    *worker = NULL;
    if (program->is_script && target->is_unknown)
        return HL_REASON_LAUNCHER;
    struct hl_program *last = target->program;
    if (!hl_read_program(last))
        return HL_MOVED;
    const char *compiler = find_compiler(last->executable);
    if (compiler != NULL)
        *worker = ask_driver(last, compiler);
    else if (strcmp(hl_base_name(last->executable), "rustup") == 0 &&
             strcmp(hl_base_name(target->argv[0]), "rustup") != 0)
        return HL_REASON_SHIM;
    if (*worker == NULL && (target->followed || program->is_script))
        *worker = hl_xasprintf("%s", last->executable);
    return *worker != NULL ? HL_REASON_DRIVER : HL_MOVED;
}
