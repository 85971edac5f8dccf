/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preloaded, it keeps any program at its start, so that nothing else of the program ever runs: it executes the program's own text, one
   `ret` in each page, writes "ready", and waits until its input ends; with BUSY=yes in the environment it executes that again and
   again.  With BUSY=no the program ends at once.  In hugeld's own processes it does nothing. */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES_MAX (1 << 15)
#define RET 0xc3

static void (*rets[PAGES_MAX])(void);
static unsigned n_rets;

/* Of the executable alone, which is the first. */
static int find_rets(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    (void)data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        unsigned char *at = (unsigned char *)(info->dlpi_addr + segment->p_vaddr),
                      *end = at + segment->p_filesz;
        if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X))
            continue;
        for (; at < end && n_rets < PAGES_MAX; at += PAGE) {
            unsigned char *ret = memchr(at, RET, (size_t)(end - at) < PAGE ? (size_t)(end - at) : PAGE);
            if (ret != NULL)
                rets[n_rets++] = (void (*)(void))ret;
        }
    }
    return 1;
}

static void call_rets(void) {
    for (unsigned i = 0; i < n_rets; i++)
        rets[i]();
}

__attribute__((constructor)) static void stay(void) {
    const char *busy = getenv("BUSY");
    char byte;
    if (strncmp(program_invocation_short_name, "hugeld", strlen("hugeld")) == 0)
        return;
    if (busy != NULL && strcmp(busy, "no") == 0)
        _exit(0);
    dl_iterate_phdr(find_rets, NULL);
    call_rets();
    if (write(STDOUT_FILENO, "ready\n", 6) != 6 || n_rets == 0)
        _exit(1);
    if (busy == NULL)
        _exit(read(STDIN_FILENO, &byte, 1) != 0);
    for (;;)
        call_rets();
}
