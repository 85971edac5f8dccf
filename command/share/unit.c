/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld share unit: services of systemd that run from images.

   systemd itself mounts the image over the program, by BindReadOnlyPaths=, as root and before it becomes the service's user, so the
   service needs no privilege and no namespace of users.  But the drop-in cannot name the image: after an upgrade of the package it
   would be one of another version, mounted over the new file.  And a refresh of the store comes too late, because the package
   restarts the service before it (dpkg runs triggers last).  So the drop-in names a link that is only there while the service
   starts:

       ExecStartPre   removes old links, even if hugeld is not installed
       ExecStartPre   makes the link to the image, if the store has one of the file's present version
       (systemd)      mounts the link's target, if there is a link (the "-" before the path)
       ExecStartPost  removes the link when the service's main process has its mounts
       ExecStopPost   removes it if the service did not start

   Without ExecStartPost, an ExecReload= after an upgrade would run the old program; without ExecStopPost, a service that gets
   another root before it is started again could find a link there, and in its root no command that removes it.  Without an image,
   without a store and without hugeld the service runs as it always did. */
#include "command/share/unit.h"
#include "command/base/common.h"
#include "command/base/flags.h"
#include "command/base/local.h"
#include "command/file/launcher.h"
#include "command/file/program.h"
#include "command/image/mountable.h"
#include "command/base/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINKS "/run/hugeld-units"
#define REMOVE "/bin/rm -rf " LINKS "/%%n"
#define WAIT_SECONDS 5
#define LINKS_MAX 99

struct request {
    bool begins, ends;
    char *unit;
    struct hl_texts files;
};

/* Completes a name as systemctl does: a name without a type is a service's.  The caller frees it. */
static char *name_unit(const char *text) {
    bool is_whole = hl_ends_in(text, ".service") || text[0] == '\0';
    return hl_xasprintf("%s%s", text, is_whole ? "" : ".service");
}

static int add_argument(void *request_, const char *text) {
    struct request *request = request_;
    if (request->unit == NULL)
        request->unit = name_unit(text);
    else
        hl_add_to_texts(&request->files, text);
    return 0;
}

static const struct hl_flag command_flags[] = {
    {"begin", 'b', NULL, "Link the images of FILEs (the drop-in calls this before the service starts)",
     HL_SWITCH(struct request, begins)},
    {"end", 'e', NULL, "Remove the links (the drop-in calls this when the service has started)",
     HL_SWITCH(struct request, ends)},
    {NULL, 0, "NAME[.service] [FILE...]", NULL, HL_CALL(add_argument)},
};

/* --- the program of a unit --- */

/* The path at TEXT, up to END's characters; NULL if it is no absolute one. */
static char *copy_path(const char *text, const char *end) {
    return text[0] == '/' ? hl_xasprintf("%.*s", (int)strcspn(text, end), text) : NULL;
}

/* The values of UNIT's PROPERTIES, names separated by commas, from systemd: a line NAME=VALUE for each; NULL: there is no systemd,
   or it does not tell.  The caller frees it. */
static char *ask_systemd(const char *unit, const char *properties) {
    char *systemctl = hl_find_program("systemctl"), *option = hl_xasprintf("--property=%s", properties),
         *text = NULL;
    const char *const argv[] = {"systemctl", "show", option, "--", unit, NULL};
    struct hl_answer answer;
    if (systemctl != NULL) {
        hl_ask_program(&answer, systemctl, (char *const *)argv, (uid_t)-1);
        if (answer.succeeded)
            text = hl_xasprintf("%s", answer.output);
        hl_free_answer(&answer);
    }
    free(systemctl);
    free(option);
    return text;
}

/* The program in "{ path=/usr/sbin/x ; argv[]=...". */
static char *find_start(const char *unit) {
    char *text = ask_systemd(unit, "ExecStart"), *found = NULL;
    const char *path = text != NULL ? strstr(text, "path=") : NULL;
    if (path != NULL)
        found = copy_path(path + strlen("path="), " ;");
    free(text);
    return found;
}

/* The executable of UNIT's main process, if it runs and the file still exists; the caller frees it. */
static char *find_running(const char *unit) {
    char *text = ask_systemd(unit, "MainPID"), *found = NULL;
    int pid;
    if (text != NULL && sscanf(text, "MainPID=%d", &pid) == 1 && pid > 0) {
        char *link = hl_xasprintf("/proc/%d/exe", pid), path[PATH_MAX] = "";
        if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, " (deleted)") == NULL)
            found = hl_xasprintf("%s", path); /* the path may mean another file here, and is not opened */
        free(link);
    }
    free(text);
    return found;
}

/* Whether UNIT's processes see other files than the host's, which is reported: an image of the host's file could be of another
   program than the one at that path there. */
static bool has_own_files(const char *unit) {
    char *text =
        ask_systemd(unit, "RootDirectory,RootImage,MountImages,ExtensionImages,ExtensionDirectories");
    char *rest = text != NULL ? text : "", *line;
    bool has = false;
    while (!has && (line = strsep(&rest, "\n")) != NULL) {
        char *value = strchr(line, '=');
        has = value != NULL && value[1] != '\0' && strcmp(value + 1, "/") != 0;
        if (has)
            hl_warn("%s: it has other files than this system (%.*s=), and an image of this system's could be "
                    "another program's; 'hugeld attach PID' moves the text of the process that runs",
                    unit, (int)(value - line), line);
    }
    free(text);
    return has;
}

/* --- the drop-in --- */

/* Says that the file at PATH, which EXECUTABLE runs, starts another, unknown program.  The best guess is the program that UNIT runs
   now. */
static void say_unknown(const char *path, const char *executable, const char *unit, const char *command) {
    char *running = find_running(unit);
    bool is_script = running == NULL || (executable != NULL && strcmp(running, executable) == 0);
    if (is_script)
        hl_warn("%s: it starts another program, and which one cannot be told; name it: hugeld %s PROGRAM",
                path, command);
    else
        hl_warn("%s: it starts another program; its service runs %s now, so name that: hugeld %s %s", path,
                running, command, running);
    free(running);
}

/* Replaces *PATH of UNIT by the file that is executed in the end.  False, after a message: it is unknown. */
static bool resolve_file(char **path, const char *unit, const char *command) {
    struct hl_program program;
    char *const argv[] = {*path, NULL};
    if (!hl_open_program(&program, *path)) {
        hl_warn("%s: %s: %s", unit, *path, errno == EREMOTE ? HL_LOCAL_PROBLEM : strerror(errno));
        return false;
    }
    const struct hl_target *target = hl_follow_launchers(&program, argv);
    const char *executable = target->program->executable;
    bool is_known = executable != NULL && !target->is_unknown;
    if (is_known) {
        free(*path);
        *path = hl_xasprintf("%s", executable);
    } else {
        say_unknown(*path, executable, unit, command);
    }
    hl_close_program(&program);
    return is_known;
}

/* The program that UNIT names, or NULL after a message: there is none. */
static char *find_named_program(const char *unit, const char *command) {
    if (has_own_files(unit))
        return NULL;
    char *program = find_start(unit);
    if (program == NULL)
        hl_warn("%s: systemd names no ExecStart= of it; name the program: hugeld %s FILE", unit, command);
    return program;
}

char *hl_find_unit_program(const char *unit, const char *command) {
    char *program = find_named_program(unit, command);
    if (program == NULL || resolve_file(&program, unit, command))
        return program;
    free(program);
    return NULL;
}

static bool can_be_named(const char *path) {
    bool is_printable = true;
    for (const char *at = path; *at != '\0'; at++)
        is_printable = is_printable && hl_hidden_bytes(at) == 0;
    if (is_printable && strpbrk(path, " :\"'\\$%;") == NULL)
        return true;
    hl_warn("%s: a drop-in cannot name this path, which has a blank, a control character, a colon, a quote, "
            "\\, $, "
            "%% or ;",
            path);
    return false;
}

static void print_files(const struct request *request) {
    for (size_t i = 0; i < request->files.n; i++)
        printf(" %s", request->files.text[i]);
    printf("\n");
}

/* Finds the unit's program if no file was named, and for each file the one that is executed in the end.  False, after a message. */
static bool resolve_files(struct request *request) {
    char *command = hl_xasprintf("share unit %s", request->unit);
    char *program = request->files.n == 0 ? find_named_program(request->unit, command) : NULL;
    if (program != NULL)
        hl_add_to_texts(&request->files, program);
    bool done = request->files.n > 0;
    for (size_t i = 0; i < request->files.n && done; i++)
        done = resolve_file(&request->files.text[i], request->unit, command) &&
               can_be_named(request->files.text[i]);
    free(program);
    free(command);
    return done;
}

static int print_unit(struct request *request) {
    char self[PATH_MAX] = "";
    if ((request->files.n > 0 && has_own_files(request->unit)) || !resolve_files(request) ||
        readlink("/proc/self/exe", self, sizeof self - 1) < 0 || !can_be_named(self))
        return HL_EXIT_NO;
    printf("# /etc/systemd/system/%s.d/hugeld-image.conf\n[Service]\n", request->unit);
    printf("ExecStartPre=-+" REMOVE "\n");
    printf("ExecStartPre=-+%s share unit --begin %%n", self);
    print_files(request);
    for (size_t i = 0; i < request->files.n; i++)
        printf("BindReadOnlyPaths=-" LINKS "/%%n/%zu:%s\n", i, request->files.text[i]);
    printf("ExecStartPost=-+%s share unit --end %%n", self);
    print_files(request);
    printf("ExecStopPost=-+" REMOVE "\n");
    return HL_EXIT_DONE;
}

/* --- the links --- */

static char *folder_of(const struct request *request) { return hl_xasprintf(LINKS "/%s", request->unit); }

static char *link_of(const struct request *request, size_t i) {
    return hl_xasprintf(LINKS "/%s/%zu", request->unit, i);
}

/* Makes the folder of the links, in /run, where only root can make anything. */
static bool make_folder(const struct request *request) {
    char *folder = folder_of(request);
    bool done = (mkdir(LINKS, 0755) == 0 || errno == EEXIST) && (mkdir(folder, 0755) == 0 || errno == EEXIST);
    if (!done)
        hl_warn("%s: %s", folder, strerror(errno));
    free(folder);
    return done;
}

static int begin(const struct request *request) {
    struct hl_options options;
    int code = HL_EXIT_DONE;
    hl_default_options(&options);
    if (!make_folder(request))
        return HL_EXIT_NO;
    for (size_t i = 0; i < request->files.n; i++) {
        char *link = link_of(request, i), *image = NULL, *reason;
        struct hl_elf_file file;
        if (hl_open_elf(&file, AT_FDCWD, request->files.text[i]) == HL_ELF_FINE) {
            reason = hl_look_for_image(&file, request->files.text[i], &options, &image);
            hl_close_elf(&file);
        } else {
            reason = hl_xasprintf("it cannot be found or read");
        }
        unlink(link);
        if (reason == NULL && symlink(image, link) != 0)
            reason = hl_xasprintf("%s: %s", link, strerror(errno));
        if (reason != NULL) {
            hl_warn("%s: not from an image: %s", request->files.text[i], reason);
            code = HL_EXIT_NO;
        }
        free(reason);
        free(image);
        free(link);
    }
    return code;
}

/* Whether the process sees the target of LINK at PATH. */
static bool has_mounted(pid_t pid, const char *path, const char *link) {
    struct stat a, b;
    char *inside = hl_xasprintf("/proc/%d/root%s", pid, path);
    bool same = stat(inside, &a) == 0 && stat(link, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    free(inside);
    return same;
}

/* systemd sets the mounts up in the new process, and for some types of services (simple) it goes on before that. */
static void wait_for_mount(const char *path, const char *link) {
    const char *text = getenv("MAINPID");
    pid_t pid = text != NULL ? hl_parse_pid(text) : 0;
    const struct timespec pause = {0, 5000000};
    for (int i = 0; i < WAIT_SECONDS * 200; i++) {
        if (pid == 0 || access(link, F_OK) != 0 || kill(pid, 0) != 0 || has_mounted(pid, path, link))
            return;
        nanosleep(&pause, NULL);
    }
}

static int end(const struct request *request) {
    char *folder = folder_of(request);
    for (size_t i = 0; i < request->files.n; i++) {
        char *link = link_of(request, i);
        wait_for_mount(request->files.text[i], link);
        unlink(link);
        free(link);
    }
    rmdir(folder);
    free(folder);
    return HL_EXIT_DONE;
}

/* The mistake in the arguments, or NULL. */
static const char *find_misuse(const struct request *request) {
    if (request->unit == NULL)
        return "name a service";
    if (strchr(request->unit, '/') != NULL || request->unit[0] == '.' || request->unit[0] == '\0')
        return "the service is named, not its file";
    if (request->begins && request->ends)
        return "--begin and --end exclude each other";
    if ((request->begins || request->ends) && request->files.n == 0)
        return "--begin and --end take the FILEs of the service";
    return request->files.n > LINKS_MAX ? "too many FILEs" : NULL;
}

int hl_share_unit(int argc, char **argv) {
    static const struct hl_command command = {
        "share unit",
        "Prints a drop-in with which a service of systemd runs from the images of its program.\v"
        "FILEs are the programs, where ExecStart= only starts them.  Put the drop-in where its first line "
        "says, "
        "then run 'systemctl daemon-reload'.",
        command_flags, false};
    struct request request = {0};
    int code = HL_EXIT_USAGE;
    if (hl_read_flags(&command, argc, argv, &request) == 0) {
        const char *misuse = find_misuse(&request);
        if (misuse != NULL)
            hl_warn("share unit: %s; 'hugeld share unit --help' says more", misuse);
        else
            code = request.begins ? begin(&request) : request.ends ? end(&request) : print_unit(&request);
    }
    hl_free_texts(&request.files);
    free(request.unit);
    return code;
}
