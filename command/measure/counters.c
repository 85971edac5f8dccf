/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench: the processor's own count of TLB misses and page walks, by perf stat.

   perf knows their names on each processor; this is only the list of the names that tell of text and data on
   huge pages.  Each is tried alone, since one name that perf doesn't know makes it refuse them all.  Virtual
   machines mostly have none, and then the answer says so.

   Counted runs are not measured ones.  Both sides go through `hugeld run`, the plain one with the plain
   side's environment, which names no object. */
#include "command/measure/counters.h"
#include "command/measure/trial.h"
#include "command/lib/subprocess.h"
#include "command/lib/program.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The maker's name in /proc/cpuinfo; Arm's has no such line. */
static const struct {
    const char *vendor, *event;
} events[] = {
    {"", "cycles"},
    {"", "instructions"},
    {"", "iTLB-load-misses"},
    {"", "dTLB-load-misses"},
    {"GenuineIntel", "itlb_misses.walk_completed"},
    {"GenuineIntel", "itlb_misses.walk_active"}, /* cycles with a walk; before Skylake walk_duration */
    {"GenuineIntel", "itlb_misses.walk_duration"},
    {"GenuineIntel", "dtlb_load_misses.walk_completed"},
    {"GenuineIntel", "dtlb_load_misses.walk_active"},
    {"GenuineIntel", "dtlb_load_misses.walk_duration"},
    {"AuthenticAMD", "bp_l1_tlb_miss_l2_tlb_miss.all"}, /* walks for instructions; on Zen 2 without ".all", */
    {"AuthenticAMD", "bp_l1_tlb_miss_l2_tlb_miss"},     /* on Zen bp_l1_tlb_miss_l2_miss */
    {"AuthenticAMD", "bp_l1_tlb_miss_l2_miss"},
    {"AuthenticAMD", "ls_l1_d_tlb_miss.all"},
    {"AuthenticAMD", "ls_l1_d_tlb_miss.all_l2_miss"},
    {"Arm", "l1i_tlb_refill"},
    {"Arm", "l1d_tlb_refill"},
    {"Arm", "itlb_walk"},
    {"Arm", "dtlb_walk"},
};

char *hl_read_cpuinfo(const char *name) {
    char *line = NULL, *found = NULL;
    size_t size = 0;
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file != NULL && found == NULL && getline(&line, &size, file) >= 0)
        if (strncmp(line, name, strlen(name)) == 0 && strstr(line, ": ") != NULL)
            found = hl_xasprintf("%.*s", (int)strcspn(strstr(line, ": ") + 2, "\n"), strstr(line, ": ") + 2);
    if (file != NULL)
        fclose(file);
    free(line);
    return found;
}

static char *read_vendor(void) {
    char *vendor = hl_read_cpuinfo("vendor_id"), *arm = hl_read_cpuinfo("CPU implementer");
    if (vendor == NULL)
        vendor = hl_xasprintf("%s", arm != NULL ? "Arm" : "unknown");
    free(arm);
    return vendor;
}

/* Adds "VALUE,unit,EVENT,..." to COUNTS, where perf has counted. */
static void read_line(json_t *counts, char *line) {
    char *rest = line, *value = strsep(&rest, ","), *end;
    strsep(&rest, ",");
    char *event = strsep(&rest, ",");
    double number = strtod(value, &end);
    if (event == NULL || end == value || *end != '\0')
        return;
    event[strcspn(event, ":")] = '\0'; /* a modifier that perf has added (":u") */
    json_object_set_new(counts, event, json_real(number));
}

static json_t *read_counts(char *text) {
    json_t *counts = json_object();
    for (char *rest = text, *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n"))
        if (line[0] != '\0' && line[0] != '#')
            read_line(counts, line);
    if (json_object_size(counts) > 0)
        return counts;
    json_decref(counts);
    return NULL;
}

/* Whether perf can count EVENT here. */
static bool try_event(const char *perf, const char *event) {
    char *argv[] = {(char *)"perf", (char *)"stat", (char *)"-x,",  (char *)"-e",
                    (char *)event,  (char *)"--",   (char *)"true", NULL};
    struct hl_answer answer;
    hl_ask_program(&answer, perf, argv, false, NULL);
    json_t *counts = answer.succeeded ? read_counts(answer.errors) : NULL;
    hl_free_answer(&answer);
    json_decref(counts);
    return counts != NULL;
}

void hl_find_counters(struct hl_counters *counters) {
    char *perf = hl_find_program("perf"), *vendor = read_vendor();
    *counters = (struct hl_counters){NULL, NULL};
    for (size_t i = 0; perf != NULL && i < sizeof events / sizeof events[0]; i++) {
        const char *name = events[i].event;
        if ((events[i].vendor[0] != '\0' && strcmp(events[i].vendor, vendor) != 0) || !try_event(perf, name))
            continue;
        if (counters->events == NULL)
            counters->events = hl_xasprintf("%s", name);
        else
            hl_append(&counters->events, ",%s", name);
    }
    if (perf == NULL)
        counters->reason = hl_xasprintf("perf is not installed");
    else if (counters->events == NULL)
        counters->reason = hl_xasprintf("perf can count none of them on this machine (%s)", vendor);
    free(vendor);
    free(perf);
}

void hl_free_counters(struct hl_counters *counters) {
    free(counters->events);
    free(counters->reason);
}

/* What perf stat counts of the command WORDS, in the environment of SIDE; or meanwhile of TARGET, its option for that, or NULL. */
static json_t *run_perf(const struct hl_counters *counters, const struct hl_subject *subject,
                        enum hl_side side, const char *target, char *const *words) {
    struct hl_subject perf = *subject;
    struct hl_trial trial;
    struct stat stat_buffer;
    struct hl_list all = {0};
    json_t *counts = NULL;
    int log = memfd_create("perf", MFD_CLOEXEC);
    char *number = hl_xasprintf("%d", log);
    const char *own[] = {"perf", "stat", "-x,", "--log-fd", number, "-e", counters->events};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        hl_add_to_list(&all, own[i]);
    if (target != NULL)
        hl_add_to_list(&all, target);
    hl_add_to_list(&all, "--");
    while (*words != NULL)
        hl_add_to_list(&all, *words++);
    hl_add_to_list(&all, NULL);
    perf.argv = (char **)all.word;
    if (hl_open_program(&perf.program, "perf") && log >= 0 &&
        hl_try_program(&perf, side, NULL, log, &trial) == 0) {
        size_t bytes = fstat(log, &stat_buffer) == 0 ? (size_t)stat_buffer.st_size : 0;
        char *text = hl_xmalloc(bytes + 1);
        if (pread(log, text, bytes, 0) == (ssize_t)bytes)
            counts = read_counts(text);
        free(text);
        hl_free_trial(&trial);
    }
    if (log >= 0)
        close(log);
    hl_close_program(&perf.program);
    free(perf.argv);
    free(number);
    return counts;
}

json_t *hl_count_run(const struct hl_counters *counters, const struct hl_subject *subject,
                     enum hl_side side) {
    const struct hl_run nothing = {0}; /* so it starts the program as it is */
    char *starter = hl_find_starter();
    char **words = hl_list_run_words(side == HL_PLAIN ? &nothing : &subject->run, subject->argv, -1);
    words[0] = starter != NULL ? starter : words[0];
    json_t *counts = run_perf(counters, subject, side == HL_PLAIN ? HL_PLAIN : HL_AS_IS, NULL, words);
    free(starter);
    free(words);
    return counts;
}

json_t *hl_count_process(const struct hl_counters *counters, pid_t pid, double seconds) {
    const struct hl_subject none = {.input = -1};
    char *target = hl_xasprintf("--pid=%d", pid), *how_long = hl_xasprintf("%g", seconds);
    char *words[] = {(char *)"sleep", how_long, NULL};
    json_t *counts = run_perf(counters, &none, HL_AS_IS, target, words);
    free(how_long);
    free(target);
    return counts;
}
