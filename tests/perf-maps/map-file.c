/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* map-file FILE BIAS START END...: the perf map of FILE at the load bias BIAS (hexadecimal, as the ranges
   that moved) on standard output.  Exit 3 when the file cannot be read as an ELF file, or its map would be too
   large. */
#include "perf-maps/write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct hl_symbols symbols;
    struct hl_map_text text;
    struct hl_text_range range[16];
    size_t n = 0;
    if (argc < 5)
        return 2;
    for (int i = 3; i + 1 < argc && n < 16; i += 2)
        range[n++] = (struct hl_text_range){strtoull(argv[i], NULL, 16), strtoull(argv[i + 1], NULL, 16)};
    int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    hl_begin_symbols(&symbols, strtoull(argv[2], NULL, 16));
    int result = hl_read_symbols(&symbols, fd);
    int chosen = hl_choose_symbols(&symbols);
    hl_begin_map(&text, STDOUT_FILENO);
    if (result == 0)
        result = hl_write_symbols(&text, &symbols, range, n);
    int finished = hl_finish_map(&text);
    hl_free_map(&text);
    hl_free_symbols(&symbols);
    return result == -ENOEXEC ? 3 : result != 0 || chosen != 0 || finished != 0;
}
