/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Services of systemd that run from images.

   systemd itself mounts the image over the program, by BindReadOnlyPaths=, as root and before it becomes the service's user, so the
   service needs no privilege and no namespace of users.  But a drop-in cannot name the image: after an upgrade of the package it would
   be one of another version, mounted over the new file.  So the drop-in names a link that is only there while the service starts:

       ExecStartPre   removes old links, even if hugeld is not installed
       ExecStartPre   makes the link to the image, if the store has one of the file's present version
       (systemd)      mounts the link's target, if there is a link (the "-" before the path)
       ExecStartPost  removes the link when the service's main process has its mounts
       ExecStopPost   removes it if the service did not start

   Without ExecStartPost, an ExecReload= after an upgrade would run the old program; without ExecStopPost, a service that gets
   another root before it is started again could find a link there, and in its root no command that removes it.  Without an image,
   without a store and without hugeld the service runs as it always did.

   The drop-ins are made by a generator of systemd from the lists alone: it asks nobody, and runs before anything else does. */
#include "command/command.h"
#include "command/lib/local.h"
#include "command/lib/subprocess.h"
#include "command/lib/launcher.h"
#include "command/lib/program.h"
#include "command/keep/keep.h"
#include "command/image/mountable.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REMOVE "/bin/rm -rf " HL_UNIT_LINKS "/%%n"
#define WAIT_SECONDS 5

/* --- systemd --- */

/* Whether this is root on a machine that systemd runs, seen from the machine's own mount namespace. */
static bool has_systemd(void) {
    struct stat folder, own, machine;
    return geteuid() == 0 && stat("/run/systemd/system", &folder) == 0 && S_ISDIR(folder.st_mode) &&
           stat("/proc/self/ns/mnt", &own) == 0 && stat("/proc/1/ns/mnt", &machine) == 0 &&
           own.st_ino == machine.st_ino;
}

/* Runs systemctl with ARGV, which begins with it.  NULL: there is none, or it failed; else its output, which the caller frees. */
static char *ask_systemctl(const char *const *argv) {
    char *systemctl = hl_find_program("systemctl"), *text = NULL;
    struct hl_answer answer;
    if (systemctl == NULL)
        return NULL;
    hl_ask_program(&answer, systemctl, (char *const *)argv, false, NULL);
    if (answer.succeeded)
        text = hl_xasprintf("%s", answer.output);
    hl_free_answer(&answer);
    free(systemctl);
    return text;
}

void hl_ask_manager(const char *verb, const char *a, const char *b) {
    bool is_root = geteuid() == 0;
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const char *const argv[] = {"systemctl", is_root ? "--system" : "--user", verb, a, b, NULL};
    char *manager = hl_xasprintf("%s/systemd/private", runtime != NULL ? runtime : "");
    if (is_root ? has_systemd() : access(manager, F_OK) == 0)
        free(ask_systemctl(argv));
    free(manager);
}

/* The lines NAME=VALUE of UNIT's PROPERTIES, names separated by commas.  NULL: systemd does not tell. */
static char *read_properties(const char *unit, const char *properties) {
    char *option = hl_xasprintf("--property=%s", properties);
    const char *const argv[] = {"systemctl", "show", option, "--", unit, NULL};
    char *text = ask_systemctl(argv);
    free(option);
    return text;
}

bool hl_knows_unit(const char *unit) {
    struct stat folder;
    if (stat("/run/systemd/system", &folder) != 0 || strstr(unit, "@.") != NULL)
        return true;
    char *text = read_properties(unit, "LoadState");
    bool knows = text == NULL || strstr(text, "LoadState=not-found") == NULL;
    free(text);
    return knows;
}

/* The bytes of the name that the instances of UNIT have before their '@'; 0: it is an instance itself. */
static size_t measure_name(const char *unit) {
    const char *at = strchr(unit, '@'), *end = unit + strlen(unit) - strlen(".service");
    return at == NULL ? (size_t)(end - unit) : at + 1 == end ? (size_t)(at - unit) : 0;
}

bool hl_is_instance(const char *unit, const char *of) {
    size_t length = measure_name(of);
    return length > 0 && strncmp(unit, of, length) == 0 && unit[length] == '@' && strcmp(unit, of) != 0;
}

void hl_list_instances(const char *unit, struct hl_texts *units) {
    size_t length = measure_name(unit);
    char *type = length > 0 ? read_properties(unit, "Type") : NULL;
    bool stands_for_them = type != NULL && strstr(type, "Type=oneshot") != NULL;
    free(type);
    if (length == 0 || (unit[length] != '@' && !stands_for_them))
        return;
    char *pattern = hl_xasprintf("%.*s@*.service", (int)length, unit);
    const char *const argv[] = {"systemctl", "list-units", "--plain", "--no-legend", "--", pattern, NULL};
    char *text = ask_systemctl(argv), *rest = text, *line;
    while (text != NULL && (line = strsep(&rest, "\n")) != NULL) {
        char *name = strtok(line, " ");
        if (name != NULL && hl_is_unit(name))
            hl_add_to_texts(units, name);
    }
    free(text);
    free(pattern);
}

/* A service in a sandbox (PrivateTmp=) has mounts of its own but the machine's root: a store that it made there would be seen by no
   other process.  A container has another root, and stays what it is. */
static void enter_machine(void) {
    struct stat folder, own, machine;
    char name[32] = "", here[PATH_MAX];
    bool is_sandbox = geteuid() == 0 && !has_systemd() && stat("/run/systemd/system", &folder) == 0 &&
                      hl_read_file("/proc/1/comm", name, sizeof name) > 0 && strcmp(name, "systemd\n") == 0 &&
                      stat("/", &own) == 0 && stat("/proc/1/root", &machine) == 0 &&
                      own.st_dev == machine.st_dev && own.st_ino == machine.st_ino;
    int mounts = is_sandbox ? open("/proc/1/ns/mnt", O_RDONLY | O_CLOEXEC) : -1;
    if (mounts >= 0 && getcwd(here, sizeof here) != NULL && setns(mounts, CLONE_NEWNS) == 0 &&
        chdir(here) != 0)
        hl_note("%s: the folder cannot be entered: %s; write files as absolute paths", here, strerror(errno));
    if (mounts >= 0)
        close(mounts);
}

void hl_enter_slice(int argc, char **argv, const char *command) {
    /* A scope needs no D-Bus, which a service with --wait does, and leaves streams, folder and environment as they are. */
    static const char *const first[] = {"systemd-run", "--quiet", "--collect", "--scope",
                                        "--slice=hugeld.slice"};
    char groups[4096], self[PATH_MAX] = "";
    long bytes = hl_read_file("/proc/self/cgroup", groups, sizeof groups);
    enter_machine();
    if (!has_systemd() || bytes <= 0 || strstr(groups, "/hugeld.slice/") != NULL ||
        readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return;
    char *program = hl_find_program(first[0]);
    size_t n = sizeof first / sizeof first[0];
    const char **all = hl_xmalloc((n + (size_t)argc + 4) * sizeof *all);
    memcpy(all, first, sizeof first);
    all[n++] = "--";
    all[n++] = self;
    all[n++] = command;
    for (int i = 1; i < argc; i++)
        all[n++] = argv[i];
    fflush(stdout);
    if (program != NULL)
        execv(program, (char *const *)all);
    free(all);
    free(program);
}

/* --- the program of a unit --- */

/* Whether UNIT's processes see other files than the host's, which is said: an image of the host's file could be of another program
   than the one at that path there. */
static bool has_own_files(const char *unit) {
    char *text =
        read_properties(unit, "RootDirectory,RootImage,MountImages,ExtensionImages,ExtensionDirectories");
    char *rest = text != NULL ? text : "", *line;
    bool has = false;
    while (!has && (line = strsep(&rest, "\n")) != NULL) {
        char *value = strchr(line, '=');
        has = value != NULL && value[1] != '\0' && strcmp(value + 1, "/") != 0;
        if (has)
            hl_warn("%s: it has other files than this system (%.*s=), and an image of this system's could be "
                    "another program's",
                    unit, (int)(value - line), line);
    }
    free(text);
    return has;
}

/* The path in UNIT's ExecStart=, "{ path=/usr/sbin/x ; argv[]=..."; NULL: there is none. */
static char *find_start(const char *unit) {
    char *text = read_properties(unit, "ExecStart"), *found = NULL;
    const char *path = text != NULL ? strstr(text, "path=/") : NULL;
    if (path != NULL)
        found = hl_xasprintf("%.*s", (int)strcspn(path + strlen("path="), " ;"), path + strlen("path="));
    free(text);
    return found;
}

/* The executable of UNIT's main process; NULL: it does not run, or the file is gone. */
static char *find_running(const char *unit) {
    char *text = read_properties(unit, "MainPID"), *found = NULL;
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

/* The file that is executed in the end if PATH is started: behind scripts, env and the like.  NULL: that is unknown, or its file system
   may never answer (FUSE, NFS); *SCRIPT is then the interpreter, if there is one.  The caller frees both. */
static char *find_executed(const char *path, char **script) {
    struct hl_program program = {0};
    struct stat status;
    int file = hl_open_local_path(path, &status);
    char opened[32], *const argv[] = {(char *)path, NULL}, *found = NULL;
    *script = NULL;
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", file);
    if (file >= 0 && hl_open_program(&program, opened)) {
        const struct hl_target *target = hl_follow_launchers(&program, argv);
        const char *executable = target->program->executable;
        bool is_known = executable != NULL && !target->is_unknown && !target->program->is_script;
        if (executable != NULL)
            *(is_known ? &found : script) = hl_xasprintf("%s", executable);
    }
    hl_close_program(&program);
    if (file >= 0)
        close(file);
    return found;
}

/* Whether a drop-in can name PATH. */
static bool can_be_named(const char *path) {
    return !hl_has_hidden(path) && path[0] == '/' && strpbrk(path, " :\"'\\$%;") == NULL;
}

bool hl_find_unit_files(const char *unit, const struct hl_texts *named, struct hl_texts *files) {
    if (has_own_files(unit))
        return false;
    char *script, *start = named->n == 0 ? find_start(unit) : NULL;
    const struct hl_texts started = {start != NULL, &start}, *begins = named->n > 0 ? named : &started;
    if (begins->n == 0 && !has_systemd())
        hl_warn("%s: systemd does not run here; enable the service's program: hugeld enable FILE", unit);
    else if (begins->n == 0)
        hl_warn("%s: systemd knows no ExecStart= of it; name the program behind it: hugeld enable %s FILE",
                unit, unit);
    for (size_t i = 0; i < begins->n; i++) {
        char *executed = find_executed(begins->text[i], &script),
             *running = executed == NULL && start != NULL ? find_running(unit) : NULL;
        bool is_interpreter = running != NULL && script != NULL && strcmp(running, script) == 0;
        const char *file = executed != NULL ? executed
                           : start == NULL  ? begins->text[i]
                           : is_interpreter ? NULL
                                            : running;
        if (file != NULL)
            hl_add_to_texts(files, file);
        else
            hl_warn("%s: %s starts another program, and it does not run now; start it, or name the program "
                    "behind it: hugeld enable %s FILE",
                    unit, start, unit);
        free(executed);
        free(running);
        free(script);
    }
    free(start);
    for (size_t i = 0; i < files->n; i++)
        if (!can_be_named(files->text[i])) {
            hl_warn("%s: a drop-in cannot name the path of %s, which is not absolute, or has a blank, a "
                    "control character, a colon, a quote, \\, $, %% or ;",
                    unit, files->text[i]);
            return false;
        }
    return files->n > 0;
}

/* --- the drop-ins --- */

/* Whether the unit or drop-in at PATH says that it starts with the system, before the local file systems are there. */
static bool is_early(const char *path) {
    char line[4096], value[16];
    FILE *file = fopen(path, "re");
    bool is = file == NULL; /* unknown */
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, " DefaultDependencies = %15s", value) == 1)
            is |= strcspn(value, "1tTyY") != 0 && strcasecmp(value, "on") != 0;
    if (file != NULL)
        fclose(file);
    return is;
}

/* Whether UNIT may wait for hugeld-boot.service, which waits for the local file systems.  If these needed UNIT, the machine would not
   boot; so UNIT must be one that is found and waits for them itself, as units do by default. */
static bool can_wait_for_boot(const char *unit) {
    size_t name = strcspn(unit, "@"); /* an instance is also what its template says */
    char *pattern =
        hl_xasprintf("{/etc,/run,/usr/local/lib,/usr/lib,/lib}/systemd/system/{%s,%.*s%s}{,.d/*.conf}", unit,
                     (int)name, unit, unit[name] == '@' ? "@.service" : "");
    glob_t found = {0};
    bool is_any_early = false;
    glob(pattern, GLOB_BRACE, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++)
        is_any_early |= is_early(found.gl_pathv[i]);
    bool is_found = found.gl_pathc > 0;
    globfree(&found);
    free(pattern);
    return is_found && !is_any_early;
}

static void print_drop_in(FILE *out, const struct hl_entry *entry, const char *self) {
    fprintf(out, "# By hugeld-generator, from %s\n", entry->source);
    if (can_wait_for_boot(entry->text))
        fprintf(out, "[Unit]\nAfter=hugeld-boot.service\n");
    fprintf(out, "[Service]\nExecStartPre=-+" REMOVE "\nExecStartPre=-+%s unit-begin %%n", self);
    for (size_t i = 0; i < entry->files.n; i++)
        fprintf(out, " %s", entry->files.text[i]);
    fprintf(out, "\n");
    for (size_t i = 0; i < entry->files.n; i++)
        fprintf(out, "BindReadOnlyPaths=-" HL_UNIT_LINKS "/%%n/%zu:%s\n", i, entry->files.text[i]);
    fprintf(out, "ExecStartPost=-+%s unit-end %%n", self);
    for (size_t i = 0; i < entry->files.n; i++)
        fprintf(out, " %s", entry->files.text[i]);
    fprintf(out, "\nExecStopPost=-+" REMOVE "\n");
}

/* Whether ENTRY can stand in a drop-in, of which each line acts as root. */
static bool is_printable(const struct hl_entry *entry) {
    bool is = strpbrk(entry->text, " \"'\\$%;/") == NULL && entry->text[0] != '.';
    for (size_t i = 0; i < entry->files.n; i++)
        is = is && can_be_named(entry->files.text[i]) && strpbrk(entry->files.text[i], "*?[") == NULL;
    return is;
}

/* Writes the drop-ins of all listed units below the FOLDER that systemd gives to a generator. */
static int generate(const char *folder) {
    struct hl_lists lists;
    char self[PATH_MAX] = "";
    char *configuration = hl_find_configuration(true);
    int code = HL_EXIT_DONE;
    hl_read_lists(&lists, configuration, NULL);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || !can_be_named(self))
        lists.n = 0;
    for (size_t i = 0; i < lists.n; i++) {
        const struct hl_entry *entry = &lists.entry[i];
        if (!entry->is_unit || !is_printable(entry))
            continue;
        char *drop_ins = hl_xasprintf("%s/%s.d", folder, entry->text),
             *path = hl_xasprintf("%s/hugeld.conf", drop_ins);
        FILE *out = mkdir(drop_ins, 0755) == 0 || errno == EEXIST ? fopen(path, "we") : NULL;
        if (out != NULL)
            print_drop_in(out, entry, self);
        if (out == NULL || fclose(out) != 0) {
            hl_warn("%s: %s", path, strerror(errno));
            code = HL_EXIT_NO;
        }
        free(path);
        free(drop_ins);
    }
    hl_free_lists(&lists);
    free(configuration);
    return code;
}

/* --- the links --- */

/* Links the images of FILES, for UNIT. */
static int begin(const char *unit, char *const *files, int n) {
    struct hl_options options;
    int code = HL_EXIT_DONE;
    char *folder = hl_xasprintf(HL_UNIT_LINKS "/%s", unit);
    hl_default_options(&options);
    if ((mkdir(HL_UNIT_LINKS, 0755) != 0 && errno != EEXIST) ||
        (mkdir(folder, 0755) != 0 && errno != EEXIST)) {
        hl_warn("%s: %s", folder, strerror(errno));
        n = 0;
        code = HL_EXIT_NO;
    }
    for (int i = 0; i < n; i++) {
        char *link = hl_xasprintf("%s/%d", folder, i), *image = NULL, *reason;
        struct hl_elf_file file;
        if (hl_open_elf(&file, AT_FDCWD, files[i]) == HL_ELF_FINE) {
            reason = hl_look_for_image(&file, files[i], &options, &image);
            hl_close_elf(&file);
        } else {
            reason = hl_xasprintf("it cannot be found or read");
        }
        unlink(link);
        if (reason == NULL && image != NULL && symlink(image, link) != 0)
            reason = hl_xasprintf("%s: %s", link, strerror(errno));
        if (reason != NULL) {
            hl_warn("%s: not from an image: %s", files[i], reason);
            code = HL_EXIT_NO;
        }
        free(reason);
        free(image);
        free(link);
    }
    free(folder);
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

/* Removes the links when the main process has its mounts: systemd makes them in the new process, and for some types of services
   (simple) it goes on before that. */
static int end(const char *unit, char *const *files, int n) {
    const char *text = getenv("MAINPID");
    pid_t pid = text != NULL ? hl_parse_pid(text) : 0;
    const struct timespec pause = {0, 5000000};
    char *folder = hl_xasprintf(HL_UNIT_LINKS "/%s", unit);
    double limit = hl_now_ms() + WAIT_SECONDS * 1e3;
    for (int i = 0; i < n; i++) {
        char *link = hl_xasprintf("%s/%d", folder, i);
        while (pid != 0 && hl_now_ms() < limit && access(link, F_OK) == 0 && kill(pid, 0) == 0 &&
               !has_mounted(pid, files[i], link))
            nanosleep(&pause, NULL);
        unlink(link);
        free(link);
    }
    rmdir(folder);
    free(folder);
    return HL_EXIT_DONE;
}

int hl_serve_unit(const char *verb, int argc, char **argv) {
    bool is_generator = strcmp(verb, "unit-generate") == 0, begins = strcmp(verb, "unit-begin") == 0;
    bool is_wrong =
        is_generator ? argc != 2 && argc != 4 : argc < 3 || strchr(argv[1], '/') != NULL || argv[1][0] == '.';
    if (is_wrong || (!is_generator && !begins && strcmp(verb, "unit-end") != 0)) {
        hl_warn("%s: it is called by systemd, with the %s", verb,
                is_generator ? "folder" : "unit and its files");
        return HL_EXIT_USAGE;
    }
    if (is_generator)
        return generate(argv[1]);
    return (begins ? begin : end)(argv[1], argv + 2, argc - 2);
}
