/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench --pid: what a process that runs already counts. */
#include "command/bench/bench.h"
#include "command/proc/process.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

static char *read_name(pid_t pid) {
    struct hl_process process;
    if (hl_open_process(&process, pid) != 0)
        return hl_xasprintf("?");
    char *name = hl_xasprintf("%s", process.name);
    hl_close_process(&process);
    return name;
}

static void print_process(const json_t *answer, const struct hl_counters *counters) {
    const char *event;
    json_t *value, *object;
    size_t i;
    hl_print("%d %s, %g s", (int)json_integer_value(json_object_get(answer, "pid")),
             json_string_value(json_object_get(answer, "name")),
             json_number_value(json_object_get(answer, "seconds")));
    hl_print("  user %.0f ms, system %.0f ms, minor faults %.0f, major faults %.0f, RSS %.0f KiB (without "
             "hugetlb)",
             json_number_value(json_object_get(answer, "user_ms")),
             json_number_value(json_object_get(answer, "system_ms")),
             json_number_value(json_object_get(answer, "minor_faults")),
             json_number_value(json_object_get(answer, "major_faults")),
             json_number_value(json_object_get(answer, "rss_kib")));
    json_array_foreach(json_object_get(json_object_get(answer, "map"), "objects"), i, object) {
        double text = json_number_value(json_object_get(object, "text_bytes"));
        double huge = json_number_value(json_object_get(object, "text_huge_bytes"));
        hl_print("  %s: %.1f %% of %.0f KiB of text on huge pages",
                 json_string_value(json_object_get(object, "path")), text > 0 ? 100 * huge / text : 0,
                 text / 1024);
    }
    json_object_foreach(json_object_get(answer, "counters"), event, value)
        hl_print("  %-30s %14.0f", event, json_number_value(value));
    if (counters->reason != NULL)
        hl_print("  TLB misses and walks: not counted: %s", counters->reason);
}

int hl_bench_process(pid_t pid, double seconds, bool json) {
    struct hl_usage before = {0}, after = {0};
    struct hl_counters counters = {0};
    json_t *counts = NULL;
    char *name = read_name(pid);
    int result = hl_read_usage(pid, &before);
    if (result == 0) {
        hl_find_counters(&counters);
        result = hl_read_usage(pid, &before);
        if (counters.events != NULL)
            counts = hl_count_process(&counters, pid, seconds);
        else
            poll(NULL, 0, (int)(seconds * 1000));
        if (counts == NULL && counters.reason == NULL)
            counters.reason = hl_xasprintf("perf stat failed");
    }
    if (result == 0)
        result = hl_read_usage(pid, &after);
    if (result == 0) {
        json_t *map;
        int unread = hl_map_process(&map, pid);
        json_t *answer =
            json_pack("{s:i, s:o, s:f, s:f, s:f, s:I, s:I, s:I, s:o, s:o, s:o}", "pid", (int)pid, "name",
                      hl_json_text(name), "seconds", seconds, "user_ms", after.user_ms - before.user_ms,
                      "system_ms", after.system_ms - before.system_ms, "minor_faults",
                      (json_int_t)(after.minor_faults - before.minor_faults), "major_faults",
                      (json_int_t)(after.major_faults - before.major_faults), "rss_kib",
                      (json_int_t)after.rss_pages * (json_int_t)sysconf(_SC_PAGESIZE) / 1024, "counters",
                      counts != NULL ? json_incref(counts) : json_null(), "no_counters",
                      hl_json_text(counters.reason), "map", map != NULL ? map : json_null());
        if (json)
            hl_print_json(json_incref(answer));
        else
            print_process(answer, &counters);
        if (unread != 0) /* it has counted all the same */
            hl_say_unreadable(pid, unread);
        json_decref(answer);
    } else {
        hl_say_unreadable(pid, result);
    }
    json_decref(counts);
    hl_free_counters(&counters);
    free(name);
    return result == 0 ? HL_EXIT_DONE : HL_EXIT_NO;
}
