/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Plans an image: an ELF file laid out anew, so that the page cache can have its text in huge pages.

   An image is flat: the byte at address A is at the file's offset A - base, where base is the first address rounded down to a huge
   page.  So a huge page of the file is a huge page of memory, at whatever multiple of 2 MiB the kernel puts the object, and a huge
   page shared by two segments is one piece of the file, which edges=merge can map as a whole:

       original    h rrrrrrTTTTTTTTTTTTTTTTrrrrwwwww d d d s
       image       h rrrrrr..TTTTTTTTTTTTTTTT.....rrrr      wwwww  d d d s
       huge pages  |         |         |         |         |         |

   h: the ELF and program headers, bytes of the first segment; r, T, w: segments; d: sections that are not
   loaded; s: the section headers.  Dots are trap instructions, since a huge page that holds text is mapped
   executable as a whole; all other space is a hole.  Addresses, symbols and all bytes of segments stay as they are.
   The program headers of an executable are those with which the image is executed (loads.c).

   hl_read_segments refuses hostile segments.  All other numbers of the file are checked here against the file's length before
   anything is added to them. */
#include "command/image/layout.h"
#include "command/lib/common.h"
#include "command/image/loads.h"
#include "elf/image.h"
#include "elf/plan.h"
#include "elf/segments.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The largest alignment of a section that is kept. */
#define ALIGN_MAX ((uint64_t)64 << 10)
/* An image's length beyond its original's.  Programs reach over 2 GiB only in the large code model. */
#define HOLES_MAX ((uint64_t)4 << 30)
/* The most bytes of a file that are read although no header names them. */
#define UNNAMED_MAX ((uint64_t)1 << 30)
/* More than the longest name of a section that has a meaning here, with its NUL. */
#define NAME_BYTES 64

/* Bytes of the original outside all segments: a section's, or a program header's. */
struct extent {
    uint64_t from, bytes, align;
    Elf64_Off *offset; /* in the header that names them; to be set */
};

/* A range of the original that a header names, and the pages of it that are mapped if it is a segment. */
struct range {
    uint64_t start, end, first_page, end_page;
};

struct planner {
    struct hl_image *image;
    const struct hl_elf_file *file;
    const struct hl_geometry *geometry;
    struct hl_object object;
    uint64_t file_bytes;
    uint64_t end; /* of the image so far */
    size_t n_extents, n_ranges;
    struct extent *extent;
    struct range *range;
    uint64_t appended_bytes;
};

/* The offset of SEGMENT's bytes in the original. */
static uint64_t file_start(const struct hl_segment *segment) {
    return segment->offset + (segment->start - segment->first_page);
}

static uint64_t in_image(const struct planner *p, uint64_t address) { return address - p->image->base; }

static bool is_inside(const struct planner *p, uint64_t offset, uint64_t bytes) {
    return offset <= p->file_bytes && bytes <= p->file_bytes - offset;
}

static void add_piece(struct planner *p, uint64_t to, uint64_t bytes, uint64_t from) {
    p->image->piece[p->image->n_pieces++] = (struct hl_piece){to, bytes, from};
    if (to + bytes > p->end)
        p->end = to + bytes;
}

static void add_range(struct planner *p, uint64_t start, uint64_t bytes) {
    p->range[p->n_ranges++] = (struct range){start, start + bytes, start, start + bytes};
}

/* --- reading --- */

/* Reads and checks the program headers and the object's segments: 0, or an hl_reason. */
static int read_object(struct planner *p) {
    const Elf64_Ehdr *header = &p->file->header;
    struct hl_options options;
    struct hl_plan plan;
    if (header->e_phentsize != sizeof(Elf64_Phdr))
        return HL_REASON_MALFORMED;
    int result = hl_load_object(&p->object, p->file, "", 0, p->geometry);
    if (result != 0)
        return result;
    for (size_t i = 0; i < p->file->phnum; i++) {
        const Elf64_Phdr *ph = &p->file->phdr[i];
        if (ph->p_type == PT_LOAD && ph->p_filesz > 0 &&
            (ph->p_offset - ph->p_vaddr) % p->geometry->page_bytes != 0)
            return HL_REASON_MALFORMED;
        /* For a PT_LOAD of no bytes hl_read_segments assumes that the kernel and ld.so map nothing: they map the page of its
           address, unless the address is the page's first. */
        if (ph->p_type == PT_LOAD && ph->p_memsz == 0 &&
            ((ph->p_align & (ph->p_align - 1)) != 0 || ph->p_vaddr % p->geometry->page_bytes != 0))
            return HL_REASON_MALFORMED;
        if (ph->p_type != PT_LOAD && ph->p_filesz > 0 && !is_inside(p, ph->p_offset, ph->p_filesz))
            return HL_REASON_SOURCE_UNREADABLE;
    }
    hl_default_options(&options);
    hl_set_image_options(&options);
    options.data = HL_DATA_OFF;
    return hl_plan_object(&plan, &p->object, &options, p->geometry);
}

/* Reads and checks the section headers, which a file need not have.  e_shnum is 0 if there are 65,280 or more, which no linker makes for
   a file that is loaded; a sparse one can claim to have billions. */
static int read_sections(struct planner *p) {
    struct hl_image *image = p->image;
    const Elf64_Ehdr *header = &p->file->header;
    size_t bytes = header->e_shnum * sizeof *image->shdr;
    if (header->e_shoff == 0)
        return header->e_shnum == 0 ? 0 : HL_REASON_MALFORMED;
    if (header->e_shnum == 0 || !is_inside(p, header->e_shoff, bytes))
        return HL_REASON_SOURCE_UNREADABLE;
    if (header->e_shentsize != sizeof *image->shdr)
        return HL_REASON_MALFORMED;
    image->shnum = header->e_shnum;
    image->shdr = hl_xmalloc(bytes);
    if (!hl_read_exactly(p->file->fd, header->e_shoff, image->shdr, bytes))
        return HL_REASON_SOURCE_UNREADABLE;
    for (size_t i = 0; i < image->shnum; i++) {
        const Elf64_Shdr *sh = &image->shdr[i];
        if (sh->sh_type != SHT_NULL && sh->sh_type != SHT_NOBITS && !is_inside(p, sh->sh_offset, sh->sh_size))
            return HL_REASON_SOURCE_UNREADABLE;
    }
    return 0;
}

/* --- the loaded part --- */

/* Finds the base, and the place of the ELF header in the segment that has it. */
static void choose_base(struct planner *p) {
    struct hl_image *image = p->image;
    image->base = hl_find_image_base(&p->object, p->geometry);
    for (unsigned i = 0; i < p->object.n_segments && !image->has_loaded_header; i++) {
        const struct hl_segment *segment = &p->object.segment[i];
        image->has_loaded_header = segment->offset == 0 && segment->file_end > segment->start;
        image->loaded_header = image->has_loaded_header ? in_image(p, segment->first_page) : 0;
    }
}

/* Extends the segments to what the kernel and ld.so map of the file: whole pages, but for the zeros behind data.  A program may need
   the rest of a page: files from patchelf 0.17 have .dynamic there. */
static void extend_to_pages(struct planner *p) {
    for (unsigned i = 0; i < p->object.n_segments; i++) {
        struct hl_segment *segment = &p->object.segment[i];
        uint64_t in_file = p->file_bytes - segment->offset, pages = segment->end_page - segment->first_page;
        if (segment->file_end == segment->start)
            continue;
        segment->start = segment->first_page;
        if (segment->file_end < segment->end)
            continue;
        segment->end = segment->end_page;
        segment->file_end = segment->first_page + (in_file < pages ? in_file : pages);
    }
}

/* Whether the BYTES at OFFSET of the original, which segment I has or ends with, are loaded in one piece: by that segment, or by
   it and those behind it (.dynstr in files from patchelf). */
static bool are_loaded(const struct planner *p, unsigned i, uint64_t offset, uint64_t bytes) {
    const struct hl_segment *segment = &p->object.segment[i], *end = p->object.segment + p->object.n_segments;
    uint64_t left;
    while ((left = file_start(segment) + (segment->file_end - segment->start) - offset) < bytes) {
        const struct hl_segment *next = segment + 1;
        offset += left;
        bytes -= left;
        if (next == end || next->start != segment->file_end || file_start(next) != offset)
            return false;
        segment = next;
    }
    return true;
}

/* Finds the place in the image of the BYTES at OFFSET of the original, if they are loaded in one piece.  ADDRESS decides between
   two such pieces. */
static bool find_loaded(const struct planner *p, uint64_t offset, uint64_t bytes, uint64_t address,
                        uint64_t *to) {
    bool found = false;
    for (unsigned i = 0; i < p->object.n_segments; i++) {
        const struct hl_segment *segment = &p->object.segment[i];
        uint64_t start = file_start(segment), length = segment->file_end - segment->start;
        if (offset < start || offset - start > length || length == 0 || !are_loaded(p, i, offset, bytes))
            continue;
        uint64_t at = segment->start + (offset - start);
        if (!found || at == address)
            *to = in_image(p, at);
        found = true;
    }
    return found;
}

/* Whether the section SH is loaded at its address. */
static bool is_loaded(const struct planner *p, const Elf64_Shdr *sh) {
    uint64_t to;
    return find_loaded(p, sh->sh_offset, sh->sh_size, sh->sh_addr, &to) && to == in_image(p, sh->sh_addr);
}

/* --- data that no header names --- */

static int compare_ranges(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Whether [start, end) of the original has a byte that is neither zero nor of a trap instruction, with which lld fills the end of
   text up to its p_align: 1, 0, or a negative number. */
static int has_data(const struct planner *p, uint64_t start, uint64_t end) {
    const uint8_t *trap = (const uint8_t *)&p->image->trap;
    uint8_t buffer[1 << 14];
    while (start < end) {
        size_t most = end - start < sizeof buffer ? (size_t)(end - start) : sizeof buffer;
        ssize_t got = pread(p->file->fd, buffer, most, (off_t)start);
        if (got <= 0)
            return -1;
        for (ssize_t i = 0; i < got; i++)
            if (buffer[i] != 0 && buffer[i] != trap[(start + (uint64_t)i) % sizeof p->image->trap])
                return 1;
        start += (uint64_t)got;
    }
    return 0;
}

static int look_between(const struct planner *p, uint64_t start, uint64_t end, uint64_t *unnamed) {
    if (start >= end)
        return 0;
    *unnamed += end - start;
    int data = *unnamed > UNNAMED_MAX ? 1 : has_data(p, start, end);
    return data == 0 ? 0 : data > 0 ? HL_REASON_APPENDED_DATA : HL_REASON_SOURCE_UNREADABLE;
}

/* Programs read appended data by its offset, or by its distance from the end: in an image it would lie elsewhere.  Between the
   ranges that they name, linkers leave zeros or traps (all of 3,806 files in /usr of a Debian 12), and never more than UNNAMED_MAX
   bytes: more counts as appended data, unread.

   The kernel maps whole pages, so the first and the last page of a segment may have bytes of the file outside of the segment.  What
   lies there between two ranges is padding, whatever it holds: patchelf leaves old bytes.  (A program that hides data in its
   padding, and reads it from its file, does not find it in an image; none is known.)  What comes last in a file is never padding. */
static int look_for_data(struct planner *p) {
    uint64_t at = 0, end_page = 0, unnamed = 0;
    int result = 0;
    qsort(p->range, p->n_ranges, sizeof *p->range, compare_ranges);
    for (size_t i = 0; i < p->n_ranges && result == 0; i++) {
        const struct range *range = &p->range[i];
        result = look_between(p, end_page > at ? end_page : at, range->first_page, &unnamed);
        at = range->end > at ? range->end : at;
        end_page = range->end_page > end_page ? range->end_page : end_page;
    }
    return result != 0 ? result : look_between(p, at, p->file_bytes, &unnamed);
}

/* Whether TEXT is one of the N NAMES, or begins with one that ends in "." or "_". */
static bool has_name(const char *text, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t bytes = strlen(names[i]);
        if (strcmp(text, names[i]) == 0 ||
            (strchr("._", names[i][bytes - 1]) != NULL && strncmp(text, names[i], bytes) == 0))
            return true;
    }
    return false;
}

/* Reads the name of section SH, or its beginning; "" if there is none. */
static void read_name(const struct planner *p, const Elf64_Shdr *sh, char name[NAME_BYTES]) {
    size_t names = p->file->header.e_shstrndx;
    uint64_t at = names < p->image->shnum ? p->image->shdr[names].sh_offset + sh->sh_name : UINT64_MAX;
    ssize_t bytes = pread(p->file->fd, name, NAME_BYTES - 1, (off_t)at);
    name[bytes > 0 ? bytes : 0] = '\0';
}

/* Whether section NUMBER, which is not loaded, is found only by the section headers; STRINGS is the string table of the symbols.  A
   program may carry others for itself and know their offsets (PyInstaller, game engines).  The names are those of compilers and linkers,
   and of all executables in /usr of a Debian 12; neither a type nor the beginning of a name tells a payload from them. */
static bool is_found_by_headers(const struct planner *p, size_t number, size_t strings) {
    static const char *const known[] = {".debug_",
                                        ".zdebug_",
                                        ".gnu_debuglink",
                                        ".gnu_debugaltlink",
                                        ".gnu_debugdata",
                                        ".gdb_index",
                                        ".stab",
                                        ".stabstr",
                                        ".stab.",
                                        ".comment",
                                        ".annobin",
                                        ".rustc",
                                        ".gnu.warning",
                                        ".gnu.warning.",
                                        ".gnu.build.attributes",
                                        ".gnu.build.attributes.",
                                        ".gnu.lto_",
                                        ".BTF",
                                        ".BTF.ext",
                                        ".note.gnu.gold-version",
                                        ".GCC.command.line",
                                        ".ctf",
                                        ".llvmbc",
                                        ".llvmcmd",
                                        ".llvm_bb_addr_map",
                                        ".note.gnu.build-id",
                                        ".note.stapsdt",
                                        ".note.bolt_info"};
    const Elf64_Shdr *sh = &p->image->shdr[number];
    char name[NAME_BYTES];
    read_name(p, sh, name);
    switch (sh->sh_type) {
    case SHT_SYMTAB:
        return strcmp(name, ".symtab") == 0;
    case SHT_SYMTAB_SHNDX:
        return strcmp(name, ".symtab_shndx") == 0;
    case SHT_STRTAB:
        return number == strings || number == p->file->header.e_shstrndx ||
               has_name(name, known, sizeof known / sizeof known[0]);
    case SHT_REL:
    case SHT_RELA: /* of a section, kept by the linker (--emit-relocs) */
        return sh->sh_info > 0 && sh->sh_info < p->image->shnum && strncmp(name, ".rel", strlen(".rel")) == 0;
    default:
        return has_name(name, known, sizeof known / sizeof known[0]);
    }
}

/* Whether an executable carries data in a section of its own. */
static bool has_payload(const struct planner *p) {
    size_t strings = 0;
    if (strcmp(hl_elf_type(p->file), "dso") == 0)
        return false;
    for (size_t i = 0; i < p->image->shnum; i++)
        if (p->image->shdr[i].sh_type == SHT_SYMTAB) /* of which a file has at most one */
            strings = p->image->shdr[i].sh_link;
    for (size_t i = 0; i < p->image->shnum; i++) {
        const Elf64_Shdr *sh = &p->image->shdr[i];
        bool has_bytes = sh->sh_type != SHT_NULL && sh->sh_type != SHT_NOBITS && sh->sh_size > 0;
        if (has_bytes && !is_loaded(p, sh) && !is_found_by_headers(p, i, strings))
            return true;
    }
    return false;
}

/* Notes what the headers of the original name. */
static void list_ranges(struct planner *p) {
    const Elf64_Ehdr *header = &p->file->header;
    for (unsigned i = 0; i < p->object.n_segments; i++) {
        const struct hl_segment *segment = &p->object.segment[i];
        if (segment->file_end == segment->start)
            continue;
        add_range(p, file_start(segment), segment->file_end - segment->start);
        struct range *range = &p->range[p->n_ranges - 1];
        range->first_page = segment->offset;
        range->end_page = hl_round_up(range->end, p->geometry->page_bytes);
    }
    for (size_t i = 0; i < p->image->shnum; i++) {
        const Elf64_Shdr *sh = &p->image->shdr[i];
        if (sh->sh_type != SHT_NULL && sh->sh_type != SHT_NOBITS)
            add_range(p, sh->sh_offset, sh->sh_size);
    }
    add_range(p, 0, sizeof(Elf64_Ehdr));
    add_range(p, header->e_phoff, p->file->phnum * sizeof(Elf64_Phdr));
    if (p->image->shnum > 0)
        add_range(p, header->e_shoff, p->image->shnum * sizeof(Elf64_Shdr));
}

/* --- the image --- */

static int place_segments(struct planner *p) {
    uint64_t longest = p->file_bytes + HOLES_MAX;
    p->end = sizeof(Elf64_Ehdr);
    for (unsigned i = 0; i < p->object.n_segments; i++) {
        const struct hl_segment *segment = &p->object.segment[i];
        uint64_t to = in_image(p, segment->start), bytes = segment->file_end - segment->start;
        if (bytes > 0 && (to > longest || bytes > longest - to))
            return HL_REASON_TOO_SPARSE;
        if (bytes > 0)
            add_piece(p, to, bytes, file_start(segment));
        /* The kernel maps the page in which a segment begins, even if nothing of it is in the file. */
        else if (to % p->geometry->page_bytes != 0 && to <= longest && to > p->end)
            p->end = to;
    }
    return 0;
}

/* Whether the huge page at address START has no writable segment, so that it may be mapped as a whole. */
static bool is_read_only_page(const struct planner *p, uint64_t start) {
    for (unsigned i = 0; i < p->object.n_segments; i++)
        if ((p->object.segment[i].flags & PF_W) &&
            hl_segment_overlap(&p->object.segment[i], start, start + p->geometry->huge_page_bytes) > 0)
            return false;
    return true;
}

/* Whether the huge page at address START holds text and nothing writable. */
static bool is_text_page(const struct planner *p, uint64_t start) {
    bool text = false;
    for (unsigned i = 0; i < p->object.n_segments; i++) {
        const struct hl_segment *segment = &p->object.segment[i];
        text |= (segment->flags & PF_X) && segment->file_end > segment->start &&
                hl_segment_overlap(segment, start, start + p->geometry->huge_page_bytes) > 0;
    }
    return text && is_read_only_page(p, start);
}

/* Fills the part of [start, end) in the huge page that holds START. */
static void fill_page(struct planner *p, uint64_t start, uint64_t end) {
    uint64_t page = hl_round_down(start, p->geometry->huge_page_bytes);
    end = end - page < p->geometry->huge_page_bytes ? end : page + p->geometry->huge_page_bytes;
    if (start < end && p->image->trap != 0 && is_text_page(p, page))
        add_piece(p, in_image(p, start), end - start, HL_TRAPS);
}

/* Fills the part of the gap [start, end) between two segments that is in the huge pages of either. */
static void fill_gap(struct planner *p, uint64_t start, uint64_t end) {
    uint64_t last = hl_round_down(end - 1, p->geometry->huge_page_bytes);
    if (start >= end)
        return;
    fill_page(p, start, end);
    if (last > start)
        fill_page(p, last, end);
}

static void fill_with_traps(struct planner *p) {
    const struct hl_object *object = &p->object;
    const struct hl_segment *first = &object->segment[0], *last = &object->segment[object->n_segments - 1];
    uint64_t page = hl_round_down(first->start, p->geometry->huge_page_bytes);
    fill_gap(p, page == p->image->base ? page + sizeof(Elf64_Ehdr) : page, first->start);
    for (const struct hl_segment *segment = first; segment < last; segment++)
        fill_gap(p, segment->end, segment[1].start);
    fill_gap(p, last->end, hl_round_up(last->end, p->geometry->huge_page_bytes));
}

/* --- the part that is not loaded --- */

/* The segment that has ADDRESS, or ends there; NULL: none. */
static const struct hl_segment *find_segment(const struct planner *p, uint64_t address) {
    const struct hl_segment *found = NULL;
    for (unsigned i = 0; i < p->object.n_segments; i++) {
        const struct hl_segment *segment = &p->object.segment[i];
        if (address - segment->start <= segment->end - segment->start)
            found = segment;
    }
    return found;
}

/* Whether the byte at OFFSET of the original is loaded at ADDRESS.  (RELRO may end behind the bytes that its
   segment has in the file.) */
static bool goes_with(const struct planner *p, uint64_t offset, uint64_t address) {
    const struct hl_segment *segment = find_segment(p, address);
    return segment != NULL && segment->file_end > segment->start &&
           offset - file_start(segment) == address - segment->start;
}

static void add_extent(struct planner *p, uint64_t bytes, uint64_t align, Elf64_Off *offset) {
    bool usual = align != 0 && (align & (align - 1)) == 0 && align <= ALIGN_MAX;
    p->extent[p->n_extents++] = (struct extent){*offset, bytes, usual ? align : 1, offset};
}

static void place_program_headers(struct planner *p) {
    struct hl_image *image = p->image;
    bool moves = hl_is_position_independent(p->file);
    uint64_t huge = p->geometry->huge_page_bytes;
    image->phdr = hl_merge_loads(p->file, p->geometry);
    for (size_t i = 0; i < image->phnum; i++) {
        Elf64_Phdr *ph = &image->phdr[i];
        if (ph->p_type == PT_LOAD && ph->p_memsz > 0) {
            ph->p_offset = in_image(p, ph->p_vaddr);
            if (moves ? ph->p_align < huge : ph->p_align > huge)
                ph->p_align = huge;
        } else if (ph->p_filesz > 0 && !goes_with(p, ph->p_offset, ph->p_vaddr)) {
            if (!find_loaded(p, ph->p_offset, ph->p_filesz, ph->p_vaddr, &ph->p_offset))
                add_extent(p, ph->p_filesz, ph->p_align, &ph->p_offset);
        } else if (find_segment(p, ph->p_vaddr) != NULL && (ph->p_vaddr != 0 || ph->p_memsz > 0)) {
            ph->p_offset = in_image(p, ph->p_vaddr);
        }
    }
}

static void place_sections(struct planner *p) {
    for (size_t i = 0; i < p->image->shnum; i++) {
        Elf64_Shdr *sh = &p->image->shdr[i];
        bool nothing = sh->sh_type == SHT_NOBITS || sh->sh_size == 0;
        if (sh->sh_type == SHT_NULL)
            continue;
        bool stays =
            nothing ? (sh->sh_flags & SHF_ALLOC) && find_segment(p, sh->sh_addr) != NULL : is_loaded(p, sh);
        if (stays)
            sh->sh_offset = in_image(p, sh->sh_addr);
        else
            add_extent(p, nothing ? 0 : sh->sh_size, sh->sh_addralign, &sh->sh_offset);
    }
}

/* By their place in the original; an extent that contains others comes before these. */
static int compare_extents(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->bytes > y->bytes ? -1 : x->bytes < y->bytes;
}

/* Appends the extents, which are not loaded, in the original's order.  An extent inside another one is not copied again. */
static int append_extents(struct planner *p) {
    const struct extent *last = NULL;
    uint64_t last_to = 0;
    if (p->n_extents > 0)
        qsort(p->extent, p->n_extents, sizeof *p->extent, compare_extents);
    p->end = hl_round_up(p->end, p->geometry->page_bytes);
    for (size_t i = 0; i < p->n_extents; i++) {
        const struct extent *extent = &p->extent[i];
        if (last != NULL && extent->from - last->from <= last->bytes &&
            extent->bytes <= last->bytes - (extent->from - last->from)) {
            *extent->offset = last_to + (extent->from - last->from);
            continue;
        }
        uint64_t to = hl_round_up(p->end, extent->align);
        *extent->offset = to;
        if (extent->bytes == 0)
            continue;
        last = extent;
        last_to = to;
        /* Sections that overlap would be in the image more than once each. */
        p->appended_bytes += extent->bytes;
        if (p->appended_bytes > p->file_bytes)
            return HL_REASON_MALFORMED;
        add_piece(p, to, extent->bytes, extent->from);
    }
    return 0;
}

/* Whether a segment has the program headers, but not in the page with the ELF header, which a process keeps from the file.
   Debuggers compare the headers in memory with the file's, and by them find an object that is not where it was linked. */
static bool has_moved_headers(const struct planner *p) {
    uint64_t offset = p->file->header.e_phoff, bytes = p->file->phnum * sizeof(Elf64_Phdr), to;
    return offset + bytes > p->geometry->page_bytes && find_loaded(p, offset, bytes, 0, &to);
}

static void place_tables(struct planner *p) {
    struct hl_image *image = p->image;
    uint64_t bytes = image->phnum * sizeof(Elf64_Phdr);
    /* In a library, which is never executed, moved headers stay as they are, and the image's own come behind everything. */
    bool stays = strcmp(hl_elf_type(p->file), "dso") == 0 && has_moved_headers(p);
    if (stays || !find_loaded(p, image->header.e_phoff, bytes, 0, &image->header.e_phoff)) {
        image->header.e_phoff = hl_round_up(p->end, sizeof(uint64_t));
        p->end = image->header.e_phoff + bytes;
    }
    if (image->shnum > 0) {
        image->header.e_shoff = hl_round_up(p->end, sizeof(uint64_t));
        p->end = image->header.e_shoff + image->shnum * sizeof(Elf64_Shdr);
    } else {
        image->header.e_shoff = 0;
    }
    image->bytes = hl_round_up(p->end, p->geometry->page_bytes);
}

/* --- the whole --- */

static int compare_pieces(const void *a, const void *b) {
    const struct hl_piece *x = a, *y = b;
    return x->to < y->to ? -1 : x->to > y->to;
}

/* Counts the huge pages of [start, end) from offset COUNTED on; returns the end of the counted range. */
static uint64_t count_range(struct planner *p, uint64_t counted, uint64_t start, uint64_t end) {
    uint64_t huge = p->geometry->huge_page_bytes;
    start = hl_round_down(start, huge) > counted ? hl_round_down(start, huge) : counted;
    if (start >= end)
        return counted;
    end = hl_round_up(end, huge);
    p->image->huge_pages += (end - start) / huge;
    return end;
}

/* Sorts the pieces, and counts the huge pages that they, the header and the tables behind them take. */
static void count_pages(struct planner *p) {
    struct hl_image *image = p->image;
    uint64_t counted = count_range(p, 0, 0, sizeof(Elf64_Ehdr)), end = 0;
    qsort(image->piece, image->n_pieces, sizeof *image->piece, compare_pieces);
    for (size_t i = 0; i < image->n_pieces; i++) {
        end = image->piece[i].to + image->piece[i].bytes;
        counted = count_range(p, counted, image->piece[i].to, end);
    }
    count_range(p, counted, end, p->end);
}

/* Appends a second copy of the huge page with the headers, with the headers of the original.  At the exec stop it is mapped in the
   place of the first: a program that reads the headers in memory then sees the original's. */
static void append_header_page(struct planner *p) {
    struct hl_image *image = p->image;
    uint64_t huge = p->geometry->huge_page_bytes, from = hl_round_down(image->loaded_header, huge);
    uint64_t to = hl_round_up(p->end, huge);
    if (strcmp(hl_elf_type(p->file), "dso") == 0 || !image->has_loaded_header ||
        !is_read_only_page(p, image->base + from))
        return;
    for (size_t i = 0, n = image->n_pieces; i < n; i++) {
        const struct hl_piece piece = image->piece[i];
        uint64_t start = piece.to > from ? piece.to : from;
        uint64_t end = piece.to + piece.bytes < from + huge ? piece.to + piece.bytes : from + huge;
        if (start < end)
            add_piece(p, start - from + to, end - start,
                      piece.from == HL_TRAPS ? HL_TRAPS : piece.from + (start - piece.to));
    }
    image->bytes = to + huge;
    image->huge_pages++;
}

static int plan(struct planner *p) {
    struct hl_image *image = p->image;
    int result = read_object(p);
    if (result == 0)
        result = read_sections(p);
    if (result != 0)
        return result;
    /* Each segment has bytes and at most two pieces of traps before it, and two more are behind the last one. */
    size_t headers = image->phnum + image->shnum;
    size_t pieces = 3 * HL_SEGMENTS_MAX + 2 + headers; /* and some of them twice */
    image->piece = hl_xmalloc(2 * pieces * sizeof *image->piece);
    p->extent = hl_xmalloc((headers + 1) * sizeof *p->extent);
    p->range = hl_xmalloc((HL_SEGMENTS_MAX + 4 + headers) * sizeof *p->range);

    list_ranges(p);
    choose_base(p);
    if (hl_is_position_independent(p->file) && image->base % hl_load_alignment(p->file, 1) != 0)
        return HL_REASON_TOO_SPARSE;
    extend_to_pages(p);
    if (strcmp(hl_elf_type(p->file), "pie") == 0 && has_moved_headers(p))
        return HL_REASON_MOVED_HEADERS;
    result = place_segments(p);
    if (result == 0)
        result = has_payload(p) ? HL_REASON_APPENDED_DATA : look_for_data(p);
    if (result != 0)
        return result;
    fill_with_traps(p);
    place_program_headers(p);
    place_sections(p);
    result = append_extents(p);
    if (result != 0)
        return result;
    place_tables(p);
    count_pages(p);
    append_header_page(p);
    return 0;
}

int hl_plan_image(struct hl_image *image, const struct hl_elf_file *file,
                  const struct hl_geometry *geometry) {
    struct planner p = {.image = image, .file = file, .geometry = geometry};
    memset(image, 0, sizeof *image);
    p.file_bytes = (uint64_t)file->stat.st_size;
    image->header = file->header;
    image->trap = hl_find_trap(file->header.e_machine);
    image->phnum = file->phnum;
    int result = plan(&p);
    free(p.extent);
    free(p.range);
    if (result != 0)
        hl_free_image(image);
    return result;
}

void hl_free_image(struct hl_image *image) {
    free(image->piece);
    free(image->phdr);
    free(image->shdr);
    memset(image, 0, sizeof *image);
}

bool hl_fits_store(const struct hl_image *image, const struct hl_geometry *geometry, uint64_t *bytes) {
    *bytes = hl_round_up(image->bytes, geometry->huge_page_bytes);
    return *bytes <= 2 * image->huge_pages * geometry->huge_page_bytes;
}

/* --- its coverage --- */

/* How many bytes of OBJECT's text are in whole huge pages if the image of FILE is executed. */
static uint64_t count_executed(const struct hl_elf_file *file, const struct hl_object *object,
                               const struct hl_geometry *geometry) {
    struct hl_object executed;
    uint64_t bytes = 0, huge = geometry->huge_page_bytes;
    Elf64_Phdr *phdr = hl_merge_loads(file, geometry);
    bool is_read = hl_read_segments(&executed, phdr, file->phnum, 0, geometry) == 0;
    free(phdr);
    for (unsigned i = 0; is_read && i < executed.n_segments; i++) {
        const struct hl_segment *by = &executed.segment[i];
        uint64_t start = hl_round_up(by->first_page, huge),
                 end = hl_round_down(hl_round_up(by->file_end, geometry->page_bytes), huge);
        for (unsigned j = 0; j < object->n_segments && (by->flags & PF_X); j++)
            if (object->segment[j].flags & PF_X)
                bytes += hl_overlap(start, end, object->segment[j].start, object->segment[j].file_end);
    }
    return bytes;
}

int hl_find_coverage(struct hl_coverage *coverage, const struct hl_elf_file *file,
                     const struct hl_geometry *geometry) {
    struct hl_object object;
    struct hl_options options;
    struct hl_plan plan = {0};
    *coverage = (struct hl_coverage){0};
    int result = hl_load_object(&object, file, "", 0, geometry);
    if (result != 0)
        return result;
    hl_default_options(&options);
    hl_set_image_options(&options);
    hl_plan_object(&plan, &object, &options, geometry);
    coverage->mapped_bytes = plan.text_covered_bytes;
    if (strcmp(hl_elf_type(file), "dso") != 0)
        coverage->executed_bytes = count_executed(file, &object, geometry);
    for (unsigned i = 0; i < object.n_segments; i++)
        if (object.segment[i].flags & PF_X)
            coverage->text_bytes += object.segment[i].file_end - object.segment[i].start;
    return 0;
}
