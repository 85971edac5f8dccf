/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* own-text WHAT: a program with the text of table.S that does something to it, says whether the kernel let
   it, and calls every function again:

       WHAT    allowed N, refused N (ERRNO), sum the same

   as real programs do: protect and remap change 4 KiB, dontneed drops the text, dontunmap moves it away as V8
   does with its builtins, copy-over is ClickHouse's way of remapping itself, map-over node's
   --use-largepages, seal mseal(2). */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
/* Nothing in the file tells that it may move its text. */
#ifdef BY_CALL
#define mremap(...) (void *)syscall(SYS_mremap, __VA_ARGS__)
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

/* The section by which hugeld knows the sleds of clang's XRay. */
#ifdef XRAY
__attribute__((section("xray_instr_map"), used)) static const char sleds[16];
#endif

#define TEXT_BYTES (4 << 20)
#define HUGE_BYTES (2 << 20)

typedef uint64_t (*function)(uint64_t, void *);
extern const function table[4096];

static int allowed, refused, error;

static uint64_t sum(void) {
    uint64_t x = 1;
    for (unsigned i = 0; i < 4096; i++)
        x = table[i](x, i % 2 ? (void *)table[4095 - i] : NULL);
    return x;
}

static void note(long result) {
    if (result != -1) {
        allowed++;
        return;
    }
    refused++;
    error = errno;
}

/* A pair of protections for each page; its contents are not changed. */
static void protect(char *text) {
    for (int i = 0; i < 8; i++) {
        char *page = text + i * 123 * 4096;
        note(mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC));
        note(mprotect(page, 4096, PROT_READ | PROT_EXEC));
    }
}

/* The constant of functions in the middle of a page, there and back. */
static void patch(char *text) {
    for (int i = 0; i < 8; i++) {
        char *page = text + i * 123 * 4096, *byte = page + 1024;
        int result = mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
        note(result);
        if (result != 0)
            continue;
        char old = *byte;
        *(volatile char *)byte = (char)0xc3;
        *(volatile char *)byte = old;
        note(mprotect(page, 4096, PROT_READ | PROT_EXEC));
    }
}

/* Its own bytes, in a new page. */
static void remap(char *text) {
    char copy[4096];
    for (int i = 0; i < 8; i++) {
        char *page = text + i * 123 * 4096;
        memcpy(copy, page, sizeof copy);
        void *at = mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        note(at == MAP_FAILED ? -1 : 0);
        if (at == MAP_FAILED)
            continue;
        memcpy(page, copy, sizeof copy);
        note(mprotect(page, 4096, PROT_READ | PROT_EXEC));
    }
}

/* A huge page that lies in the text as a whole: one that moves, at any load address. */
static char *whole_page(char *text) {
    return (char *)(((uintptr_t)text + HUGE_BYTES - 1) & -(uintptr_t)HUGE_BYTES);
}

static void drop(char *text) { note(madvise(whole_page(text), HUGE_BYTES, MADV_DONTNEED)); }

static void drop_page(char *text) { note(madvise(whole_page(text) + 300 * 4096, 4096, MADV_DONTNEED)); }

/* V8 keeps using the old place. */
static void move_away(char *text) {
    void *at = mmap(NULL, HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    note((long)mremap(whole_page(text), HUGE_BYTES, HUGE_BYTES,
                      MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, at));
}

/* This code is elsewhere. */
static void copy_over(char *text) {
    char *scratch = mmap(NULL, TEXT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(scratch, text, TEXT_BYTES);
    mprotect(scratch, TEXT_BYTES, PROT_READ | PROT_EXEC);
    note((long)mremap(scratch, TEXT_BYTES, TEXT_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, text));
}

static void map_over(char *text) {
    char *start = whole_page(text);
    char *copy = malloc(HUGE_BYTES);
    memcpy(copy, start, HUGE_BYTES);
    void *at =
        mmap(start, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    note(at == MAP_FAILED ? -1 : 0);
    if (at != MAP_FAILED) {
        memcpy(start, copy, HUGE_BYTES);
        note(mprotect(start, HUGE_BYTES, PROT_READ | PROT_EXEC));
    }
}

static void seal(char *text) { note(syscall(SYS_mseal, text, TEXT_BYTES, 0)); }

static const struct {
    const char *name;
    void (*act)(char *text);
} acts[] = {
    {"protect", protect},     {"patch", patch},           {"remap", remap},
    {"dontneed", drop},       {"dontneed-4k", drop_page}, {"dontunmap", move_away},
    {"copy-over", copy_over}, {"map-over", map_over},     {"seal", seal},
};

int main(int argc, char **argv) {
    char *text = (char *)(((uintptr_t)table[0] + 4095) & -(uintptr_t)4096);
    uint64_t before = sum();
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if (argc != 2 || strcmp(argv[1], acts[i].name) != 0)
            continue;
        acts[i].act(text);
        printf("%s allowed %d, refused %d (%s), ", argv[1], allowed, refused,
               refused ? strerror(error) : "none");
        fflush(stdout);
        printf("sum %s\n", sum() == before ? "the same" : "another");
        return 0;
    }
    return 2;
}
