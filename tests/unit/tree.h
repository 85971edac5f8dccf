/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A made-up machine: files in a temporary directory that stand for /proc and /sys. */
#ifndef T_TREE_H
#define T_TREE_H

#include "unit.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf/numa.h"

#define T_PATH_BYTES 4200

struct t_tree {
    char root[64], proc[80], sys[80];
    struct hl_roots roots;
};

static inline int t_remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk) {
    (void)status, (void)type, (void)walk;
    return remove(path);
}

static inline void t_remove_tree(struct t_tree *tree) {
    nftw(tree->root, t_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void t_make_tree(struct t_tree *tree) {
    const char *parent = getenv("TMPDIR");
    snprintf(tree->root, sizeof tree->root, "%.40s/hugeld-XXXXXX", parent != NULL ? parent : "/tmp");
    assert_non_null(mkdtemp(tree->root));
    snprintf(tree->proc, sizeof tree->proc, "%s/proc", tree->root);
    snprintf(tree->sys, sizeof tree->sys, "%s/sys", tree->root);
    tree->roots = (struct hl_roots){tree->proc, tree->sys};
}

/* Writes BYTES of TEXT to the file PATH ("sys/kernel/...") of TREE, with the folders on the way. */
static inline void t_write_bytes(struct t_tree *tree, const char *path, const void *text, size_t bytes) {
    char full[T_PATH_BYTES];
    assert_true(snprintf(full, sizeof full, "%s/%s", tree->root, path) < (int)sizeof full);
    for (char *slash = full + strlen(tree->root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void t_write(struct t_tree *tree, const char *path, const char *text) {
    t_write_bytes(tree, path, text, strlen(text));
}

/* The nodes that TREE's status file leaves this process. */
static inline void t_read_placement(struct hl_placement *placement, const struct t_tree *tree) {
    struct hl_status status;
    hl_read_status(&status, &tree->roots);
    hl_read_placement(placement, &status, HL_NUMA_ANY);
}

static inline void t_write_number(struct t_tree *tree, const char *path, uint64_t number) {
    char text[32];
    snprintf(text, sizeof text, "%ju\n", (uintmax_t)number);
    t_write(tree, path, text);
}

#endif
