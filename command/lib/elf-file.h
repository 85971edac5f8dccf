/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The parts of an ELF file on disk that the planner needs. */
#ifndef HL_ELF_FILE_H
#define HL_ELF_FILE_H

#include "elf/hugeld.h"

#include <elf.h>
#include <sys/stat.h>

/* Why a file cannot be planned. */
enum hl_elf_problem {
    HL_ELF_FINE = 0,
    HL_ELF_UNREADABLE, /* errno says why */
    HL_ELF_SPECIAL,
    HL_ELF_EMPTY,
    HL_ELF_SCRIPT,
    HL_ELF_OTHER,
    HL_ELF_32_BIT,
    HL_ELF_TRUNCATED,
    HL_ELF_BROKEN,
    HL_ELF_NO_SEGMENTS,
    HL_ELF_PROBLEMS
};

struct hl_elf_file {
    int fd;
    struct stat stat; /* as it was before the rest was read */
    Elf64_Ehdr header;
    size_t phnum;
    Elf64_Phdr *phdr; /* phnum of them */
    Elf64_Dyn *dyn;   /* n_dyn of them; NULL if there are none */
    size_t n_dyn;
    uint64_t strings_at, strings_bytes; /* the dynamic string table in the file */
    char *soname;                       /* DT_SONAME, or NULL */
    bool has_interpreter;               /* PT_INTERP: the dynamic linker runs */
    bool text_relocations;
};

/* Opens PATH (relative to the folder DIRECTORY, or AT_FDCWD) and reads its headers, which may be hostile.  Only a regular file is
   ever opened.  HL_ELF_FINE: FILE is to be closed with hl_close_elf.  Else there is nothing to close, and for HL_ELF_32_BIT
   FILE->header holds the first bytes of the file. */
enum hl_elf_problem hl_open_elf(struct hl_elf_file *file, int directory, const char *path);
void hl_close_elf(struct hl_elf_file *file);

/* The same, but it waits for no server: a file on no local file system (command/lib/local.h) is HL_ELF_UNREADABLE, with EREMOTE. */
enum hl_elf_problem hl_open_elf_soon(struct hl_elf_file *file, const char *path);

/* hl_open_elf for the open FD, which FILE owns only after HL_ELF_FINE.  Else FILE->stat is filled if possible. */
enum hl_elf_problem hl_read_elf(struct hl_elf_file *file, int fd);

/* Reads BYTES of the open FILE from OFFSET.  False: they are not all there, or cannot be read. */
bool hl_read_exactly(int file, uint64_t offset, void *to, size_t bytes);

/* The path in FILE's PT_INTERP, an absolute one; NULL if there is none.  The caller frees it. */
char *hl_read_interpreter(const struct hl_elf_file *file);

/* "it is a script; ...", static; for HL_ELF_UNREADABLE the sentence is that of errno. */
const char *hl_elf_problem_sentence(enum hl_elf_problem problem);

/* The object that FILE becomes at LOAD_BIAS: hl_read_segments with its results, and the text relocations.
   OBJECT keeps PATH and FILE's soname. */
int hl_load_object(struct hl_object *object, const struct hl_elf_file *file, const char *path,
                   uint64_t load_bias, const struct hl_geometry *geometry);

/* The segment of OBJECT that has the page at AT; NULL: none. */
const struct hl_segment *hl_find_segment(const struct hl_object *object, uint64_t at);

/* How many bytes of [START, END) are in segments of OBJECT that have all of FLAGS. */
uint64_t hl_count_segment_bytes(const struct hl_object *object, uint64_t start, uint64_t end, uint32_t flags);

/* Whether a DT_NEEDED begins with PREFIX. */
bool hl_needs_library(const struct hl_elf_file *file, const char *prefix);

/* Whether it can be loaded at any free address (PIE, DSO), and the alignment of these addresses: the largest p_align, at least
   PAGE_BYTES. */
bool hl_is_position_independent(const struct hl_elf_file *file);
uint64_t hl_load_alignment(const struct hl_elf_file *file, uint64_t page_bytes);

/* Whether its address modulo a huge page can vary. */
bool hl_gets_any_address(const struct hl_elf_file *file, const struct hl_geometry *geometry);

/* Whether it is set-user-ID, set-group-ID or has file capabilities, for any user that runs it. */
bool hl_has_privileges(const struct hl_elf_file *file);

/* Whether it is for this machine. */
bool hl_is_native(const struct hl_elf_file *file);

/* "exec", "pie", "dso"; static. */
const char *hl_elf_type(const struct hl_elf_file *file);

#endif
