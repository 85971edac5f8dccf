/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The types that the pipeline's steps share: objects, segments, spans, plans.

   The core is freestanding: it includes compiler headers, <elf.h>, kernel UAPI headers and itself, calls no
   library, touches no TLS and allocates nothing from the program's heap.

   Results, unless a header says otherwise: 0 is done, a positive value is an enum hl_reason (a decision, not an error), a
   negative one a negated errno.  Addresses are uint64_t, so that the command can plan another machine's
   ELF64 file with the same code.  Ranges are [start, end). */
#ifndef HL_HUGELD_H
#define HL_HUGELD_H

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* No linker makes more PT_LOADs than a handful (node has six, a linker script may have ten); an object with
   more is left alone. */
#define HL_SEGMENTS_MAX 32
/* Between two neighbouring read-only segments at most one boundary span arises; a writable one has at most
   three. */
#define HL_SPANS_MAX (3 * HL_SEGMENTS_MAX)

/* Why something stays where it is.  HL_MOVED is 0: nothing is in the way. */
enum hl_reason {
    HL_MOVED = 0,
#define REASON(id, name, sentence, remedy) HL_REASON_##id,
#include "reason.def"
    HL_REASON_COUNT,
#ifdef HL_MORE_REASONS /* the command's own */
#include HL_MORE_REASONS
#endif
#undef REASON
    HL_REASONS_END
};

/* Sizes that come from the kernel and are never assumed. */
struct hl_geometry {
    uint64_t page_bytes;      /* AT_PAGESZ */
    uint64_t huge_page_bytes; /* the default huge page's size, a power of two, larger than page_bytes */
};

enum hl_kind { HL_TEXT, HL_RODATA, HL_DATA, HL_BSS, HL_KINDS };

/* One PT_LOAD with p_memsz > 0, at its load address. */
struct hl_segment {
    uint64_t start, end;           /* its bytes: p_vaddr and p_vaddr + p_memsz */
    uint64_t file_end;             /* p_vaddr + p_filesz: from here to end it is zero-initialised */
    uint64_t first_page, end_page; /* the pages that hold them */
    uint64_t offset;               /* the file offset of first_page */
    uint32_t flags;                /* PF_R, PF_W, PF_X */
};

/* The names by which LD_HUGEPAGES selects an object; see there. */
struct hl_names {
    const char *path;
    const char *soname; /* or NULL */
    bool is_main;
};

/* The executable or one DSO.  The strings belong to the object's maker and live as long as it does.  hl_add_object copies the fields
   before load_bias from its caller. */
struct hl_object {
    const char *path;   /* its name in the dynamic linker; the executable's is the file it runs */
    const char *soname; /* DT_SONAME, or NULL */
    bool is_main;       /* the executable */
    bool is_argument;   /* the executable, started as "ld.so PROGRAM": /proc/self/exe is ld.so */
    bool text_relocations;
    bool is_new;    /* the dynamic linker has just mapped it from FILE: no thread sees it or runs it yet */
    bool has_holes; /* and nothing of its own is between its segments (a program that has an address) */
    int file; /* a descriptor of its file: a new object's, or the executable's (hl_find_file); else negative */
    bool is_image;           /* FILE is its image in a store, and the image is mapped */
    enum hl_reason no_image; /* why FILE is none, after the dynamic linker has looked; HL_MOVED: it has not */
    uint64_t load_bias;
    uint64_t dynamic;                /* the address of its dynamic section; 0: it has none */
    uint64_t alignment;              /* the least p_align of its PT_LOADs */
    uint64_t relro_start, relro_end; /* PT_GNU_RELRO rounded out to pages; equal if there is none */
    unsigned n_segments;
    struct hl_segment segment[HL_SEGMENTS_MAX]; /* ascending, no two share a page */
};

/* Whole huge pages of one object that get one protection. */
struct hl_span {
    uint64_t start, end; /* multiples of huge_page_bytes */
    uint32_t flags;      /* PF_R, with PF_X for text, with PF_W for data; never both */
    enum hl_kind kind;
};

static inline uint64_t hl_span_bytes(const struct hl_span *span) { return span->end - span->start; }

struct hl_plan {
    unsigned n_spans;
    struct hl_span span[HL_SPANS_MAX];      /* ascending, disjoint */
    enum hl_reason reason[HL_SEGMENTS_MAX]; /* for each segment: HL_MOVED if a span covers a part of it */
    uint64_t covered_bytes[HL_SEGMENTS_MAX];
    uint64_t pages[HL_KINDS];       /* huge pages needed, by the kind of span */
    uint64_t text_bytes;            /* bytes of the segments with PF_X, */
    uint64_t text_covered_bytes;    /* and how many of them spans cover */
    uint64_t made_executable_bytes; /* bytes of read-only data inside text spans */
};

/* Whether the whole range from the first to the last page of OBJECT is its own, as its headers say: a
   dynamic linker has just mapped it so. */
static inline bool hl_holds_its_place(const struct hl_object *object) {
    return object->is_new && !object->has_holes;
}

/* Bytes of [a, b) that lie in [c, d). */
static inline uint64_t hl_overlap(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t start = a > c ? a : c, end = b < d ? b : d;
    return start < end ? end - start : 0;
}

/* Bytes of [start, end) in the pages of SEGMENT. */
static inline uint64_t hl_segment_overlap(const struct hl_segment *segment, uint64_t start, uint64_t end) {
    return hl_overlap(segment->first_page, segment->end_page, start, end);
}

/* A - B, or 0 where that is negative. */
static inline uint64_t hl_subtract(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* X rounded to a multiple of UNIT, a power of two. */
static inline uint64_t hl_round_down(uint64_t x, uint64_t unit) { return x & ~(unit - 1); }
static inline uint64_t hl_round_up(uint64_t x, uint64_t unit) { return (x + unit - 1) & ~(unit - 1); }

#endif
