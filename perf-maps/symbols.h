/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The functions of one object, as a perf map names them.

   hl_begin_symbols, then hl_read_symbols and hl_add_symbol in any order, hl_choose_symbols once, and
   hl_write_symbols (write.h); hl_free_symbols in any case.  Freestanding like elf/: memory comes from mmap(2)
   alone.  Results: 0, or a negated errno. */
#ifndef HL_SYMBOLS_H
#define HL_SYMBOLS_H

#include "hugeld.h"
#include "scratch.h"

enum hl_symbol_kind {
    HL_FUNCTION,
    HL_LABEL,     /* no type: hand-written assembler.  Counts only where there is no function */
    HL_STUB,      /* of the PLT: its name is followed by "@plt" */
    HL_IFUNC_STUB /* of the PLT, for a function that has no name there: target is its resolver */
};

struct hl_symbol {
    uint64_t start; /* at its load address */
    union {
        const char *name; /* terminated, and not to be trusted: it may hold anything, or nothing */
        uint64_t target;  /* HL_IFUNC_STUB: the address of the function that finds the function */
    };
    uint32_t bytes;  /* 0 if the file doesn't say; larger sizes are cut */
    uint8_t kind;    /* enum hl_symbol_kind */
    uint8_t binding; /* STB_LOCAL, ... */
};

/* An executable section, or a range that was moved: [start, end). */
struct hl_text_range {
    uint64_t start, end;
};

#define HL_SECTIONS_MAX 64

struct hl_symbols {
    uint64_t load_bias;
    uint64_t file_bytes; /* of the files that were read */
    const struct hl_text_range
        *moved; /* the caller's: the parts of the file that lie in memory of the process's own */
    size_t n_moved;
    unsigned table; /* SHT_SYMTAB or SHT_DYNSYM, whichever hl_read_symbols found; 0: none */
    size_t n, n_max;
    struct hl_symbol *symbol;
    size_t n_chosen; /* after hl_choose_symbols: these of them, ascending, each start once, each with its
                        size */
    uint64_t *chosen;
    uint32_t *open; /* room for n_chosen, for hl_write_symbols */
    unsigned n_sections;
    struct hl_text_range section[HL_SECTIONS_MAX]; /* at their load addresses */
    unsigned last_section;                         /* in which the last symbol was found */
    struct hl_scratch scratch;                     /* the memory of all this, and of the names */
};

/* SYMBOLS->moved is empty then. */
void hl_begin_symbols(struct hl_symbols *symbols, uint64_t load_bias);
void hl_free_symbols(struct hl_symbols *symbols);

/* Adds the functions in the executable sections of the ELF64 file FD, of this machine's byte order and
   architecture: those of .symtab, else of .dynsym, and the stubs of the PLT.  The file may be hostile, and
   may shrink meanwhile: it is read, never mapped.  Parts in SYMBOLS->moved are taken from there: memory
   without a file, at its load address, which stays as it is until hl_free_symbols.  All that is allocated until
   then is at most 32 times the file, and some KiB.  A second file, with the names of the first, adds to these.  0 also
   when it names nothing; -ENOEXEC: it is no such file, or its headers contradict each other; -ENOMEM; or the
   error of pread(2).  After an error the symbols found until then stay. */
int hl_read_symbols(struct hl_symbols *symbols, int fd);

/* Adds SYMBOL, of BYTES (0: not known); its own field for that is not read.  Its name must live until
   hl_free_symbols.  A symbol that begins in no executable section is left out. */
int hl_add_symbol(struct hl_symbols *symbols, const struct hl_symbol *symbol, uint64_t bytes);

/* Sorts, keeps one of those that begin at the same address (the one that perf would show) and gives each
   symbol without a size the bytes up to the next one or its section's end. */
int hl_choose_symbols(struct hl_symbols *symbols);

#endif
