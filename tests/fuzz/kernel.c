/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The files of /proc and /sys that the core reads: maps, smaps, status, cgroups, pools, THP's settings.  Each
   means the same however few bytes a read gives. */
#include "fuzz.h"

#include "elf/maps.h"
#include "elf/memory-limit.h"
#include "elf/pool.h"
#include "elf/thp.h"

/* The input has the contents of these files, in this order, each up to a zero byte. */
static const char *const paths[] = {
    "/self/maps",
    "/self/smaps",
    "/thread-self/status",
    "/self/cgroup",
    "/proc/meminfo",
    "/node/online",
    "/node0/meminfo",
    "kB/enabled",
    "/transparent_hugepage/enabled",
    "/memory.max",
    "/memory.high",
    "/memory.current",
    "/memory.stat",
    "/memory.limit_in_bytes",
    "/nr_hugepages",
    "/free_hugepages",
    "/resv_hugepages",
    "/surplus_hugepages",
    "/nr_overcommit_hugepages",
    "/overcommit_memory",
    "/cgroup.controllers",
    "/cgroup.events",
};
#define PATHS (sizeof paths / sizeof paths[0])

/* All that was read. */
struct seen {
    int maps_result, thp_policy, memory_limit;
    struct hl_maps maps;
    size_t n_smaps;
    uint64_t thp_bytes, file_huge_bytes, guarded;
    struct hl_status status;
    struct hl_placement placement;
    struct hl_pool pool;
    int pool_result;
    uint64_t headroom, available;
};

static void read_smaps(struct seen *seen) {
    struct hl_smaps smaps;
    smaps.mapping = (struct hl_mapping){0};
    hl_open_smaps(&smaps);
    while (hl_next_smaps(&smaps)) {
        seen->n_smaps++;
        seen->thp_bytes += smaps.thp_bytes;
        seen->file_huge_bytes += smaps.file_huge_bytes;
        seen->guarded += smaps.is_guarded;
    }
    hl_close_smaps(&smaps);
}

static void read_all(struct seen *seen) {
    struct hl_machine machine;
    memset(seen, 0, sizeof *seen);
    seen->maps_result = hl_read_maps(&seen->maps, 0, UINT64_MAX, false);
    read_smaps(seen);
    hl_read_status(&seen->status, &hl_system_roots);
    hl_read_placement(&seen->placement, &seen->status, HL_NUMA_ANY);
    seen->pool_result = hl_read_pool(&seen->pool, &hl_system_roots, &t_geometry, &seen->placement);
    if (seen->pool_result == 0)
        seen->available = hl_pool_available(&seen->pool, 0);
    seen->thp_policy = hl_check_thp_policy(&hl_system_roots, &t_geometry, &seen->status);
    hl_read_machine(&machine, &hl_system_roots);
    seen->memory_limit = hl_check_memory_limit(&hl_system_roots, &seen->placement, &machine, T_HUGE);
    seen->headroom = hl_read_memory_headroom(&hl_system_roots, &seen->placement);
}

static size_t count_lines(const char *text) {
    size_t lines = 0;
    for (; *text != '\0'; text++)
        lines += *text == '\n' || text[1] == '\0';
    return lines;
}

/* Lines whose mapping ends at 0, so that it lies in no range. */
static size_t count_nowhere(const char *text) {
    size_t lines = 0;
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *end = line + strcspn(line, "-\n");
        lines += *end == '-' && strtoull(end + 1, NULL, 16) == 0;
    }
    return lines;
}

static void check_seen(const struct seen *seen, char *const *text) {
    assert_true(seen->maps_result == 0 || seen->maps_result == HL_REASON_NO_PROC ||
                seen->maps_result == HL_REASON_NO_MEMORY);
    if (seen->maps_result == 0) {
        assert_true(seen->maps.n + count_nowhere(text[0]) >= count_lines(text[0]));
        assert_true(hl_same_maps(&seen->maps, &seen->maps, 0, UINT64_MAX));
        for (uint64_t at = 1; at != 0; at <<= 7)
            assert_true(hl_find_mapping(&seen->maps, at) <= seen->maps.n);
    }
    assert_true(seen->n_smaps <= count_lines(text[1]) + strlen(text[1]) / 8192);
    assert_true(seen->pool.n_nodes <= HL_NODES_MAX);
    for (unsigned i = 1; i < seen->pool.n_nodes; i++)
        assert_true(seen->pool.node[i].use <= HL_NODE_NOT_LOCAL);
    assert_true(seen->memory_limit == 0 || seen->memory_limit == HL_REASON_MEMORY_LIMIT ||
                seen->memory_limit == HL_REASON_MEMORY_UNKNOWN ||
                seen->memory_limit == HL_REASON_MEMORY_SHORT);
    if (seen->pool_result == 0)
        assert_true(seen->available <= seen->pool.free_pages + seen->pool.overcommit_pages);
}

static void compare(const struct seen *a, const struct seen *b) {
    assert_int_equal(a->maps_result, b->maps_result);
    if (a->maps_result == 0) {
        assert_int_equal(a->maps.n, b->maps.n);
        for (size_t i = 0; i < a->maps.n; i++) {
            const struct hl_mapping *x = &a->maps.mapping[i], *y = &b->maps.mapping[i];
            assert_true(x->start == y->start && x->end == y->end && x->offset == y->offset);
            assert_true(x->device == y->device && x->inode == y->inode && x->prot == y->prot);
            assert_true(x->shared == y->shared);
        }
    }
    assert_int_equal(a->n_smaps, b->n_smaps);
    assert_int_equal(a->thp_bytes, b->thp_bytes);
    assert_int_equal(a->file_huge_bytes, b->file_huge_bytes);
    assert_int_equal(a->guarded, b->guarded);
    assert_true(a->status.has_threads == b->status.has_threads && a->status.is_traced == b->status.is_traced);
    assert_int_equal(a->status.filters, b->status.filters);
    assert_memory_equal(&a->status.nodes, &b->status.nodes, sizeof a->status.nodes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct seen whole, in_pieces;
    struct t_input input = {data, bytes};
    unsigned piece = t_take_byte(&input);
    char *text[PATHS];
    for (size_t i = 0; i < PATHS; i++) {
        text[i] = t_take_text(&input);
        if (text[i][0] != '\0') /* else it does not exist */
            t_add_file(paths[i], text[i], strlen(text[i]));
    }
    read_all(&whole);
    check_seen(&whole, text);
    if (piece % 4 == 0) {
        /* The kernel gives a number or a word in one piece. */
        t_read_most = 24 + piece;
        read_all(&in_pieces);
        compare(&whole, &in_pieces);
        if (in_pieces.maps_result == 0)
            hl_free_maps(&in_pieces.maps);
    }
    if (whole.maps_result == 0)
        hl_free_maps(&whole.maps);
    t_end_world();
    for (size_t i = 0; i < PATHS; i++)
        free(text[i]);
    return 0;
}
