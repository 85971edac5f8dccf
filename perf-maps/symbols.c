/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads the functions of an ELF64 file: the symbol table and the PLT.

   The file is any file that the process was started from, or that another process's maps name, so every
   offset is compared with the file's size, every sum may overflow and every string ends where its table
   does.  It is read with pread(2) into scratch memory, whole tables at a time: a mapped file that is
   truncated meanwhile is SIGBUS, inside a program that only wanted to start.  The program's own mapping of
   the file is no better, but the ranges that hugeld has moved are memory without a file: .dynsym and .dynstr
   are mostly there and need no copy.

   Stubs of the PLT have no symbols.  Each jumps through a slot of the GOT, and a relocation says which
   function's address goes into that slot; the jump is decoded rather than counted, because linkers differ
   in the bytes before the first stub, in the order of stubs and in their number. */
#include "symbols.h"
#include "sys.h"
#include "line.h"

#include <linux/mman.h>
#include <linux/stat.h>

#if defined __x86_64__
#define MACHINE EM_X86_64
#define R_SLOT R_X86_64_JUMP_SLOT
#define R_DATA R_X86_64_GLOB_DAT
#define R_IFUNC R_X86_64_IRELATIVE
#elif defined __aarch64__
#define MACHINE EM_AARCH64
#define R_SLOT R_AARCH64_JUMP_SLOT
#define R_DATA R_AARCH64_GLOB_DAT
#define R_IFUNC R_AARCH64_IRELATIVE
#endif

/* No table of any known program comes near; this bounds the memory that a hostile file can make us take. */
#define TABLE_BYTES_MAX ((uint64_t)1 << 30)
#define SECTIONS_READ_MAX 65536
/* As many as stay in the first cache. */
#define ENTRIES_AT_ONCE 1024
#define SYMBOLS_FIRST 4096
/* Enough for the stubs of most files. */
#define SCRATCH_MORE ((uint64_t)256 << 10)

/* A table of the file in memory. */
struct table {
    const char *at; /* followed by a zero byte; NULL if there is none */
    uint64_t bytes;
    const char *first; /* of names, the part before SPLIT; the last one there is complete */
    uint64_t split;
};

/* A stub of the PLT and the slot it jumps through, at link-time addresses. */
struct stub {
    uint64_t start, bytes, slot;
    uint64_t target; /* R_IFUNC: the address of the function that finds the function */
    uint32_t symbol; /* in .dynsym; 0: none */
    bool named;
};

struct image {
    int fd;
    uint64_t bytes;
    Elf64_Ehdr header;
    uint64_t n_sections;
    struct table sections, names; /* Elf64_Shdr; the section names */
    const Elf64_Shdr *strings_at; /* the string table of the symbols: */
    struct table strings;
    size_t n_stubs, n_named;
    struct stub *stub; /* by slot */
};

void hl_begin_symbols(struct hl_symbols *symbols, uint64_t load_bias) {
    symbols->load_bias = load_bias;
    symbols->file_bytes = 0;
    symbols->moved = NULL;
    symbols->n_moved = 0;
    symbols->table = 0;
    symbols->n = symbols->n_max = 0;
    symbols->symbol = NULL;
    symbols->n_chosen = 0;
    symbols->chosen = NULL;
    symbols->open = NULL;
    symbols->n_sections = symbols->last_section = 0;
    symbols->section[0].start = symbols->section[0].end = 0;
    hl_begin_scratch(&symbols->scratch);
}

void hl_free_symbols(struct hl_symbols *symbols) {
    hl_free_scratch(&symbols->scratch);
    hl_begin_symbols(symbols, 0);
}

/* Reads [offset, offset + bytes) of the file, all of it. */
static int read_at(const struct image *image, void *to, uint64_t offset, uint64_t bytes) {
    if (bytes > image->bytes || offset > image->bytes - bytes)
        return -ENOEXEC;
    for (uint64_t done = 0; done < bytes;) {
        long n = hl_pread(image->fd, (char *)to + done, bytes - done, offset + done);
        if (n == -EINTR)
            continue;
        if (hl_is_error(n) || n == 0)
            return n == 0 ? -ENOEXEC : (int)n; /* it has shrunk */
        done += (uint64_t)n;
    }
    return 0;
}

static void begin_table(struct table *table) {
    table->at = table->first = NULL;
    table->bytes = table->split = 0;
}

/* Reads a table, which lives as long as SYMBOLS. */
static int read_table(struct hl_symbols *symbols, const struct image *image, uint64_t offset, uint64_t bytes,
                      struct table *table) {
    begin_table(table);
    if (bytes == 0 || bytes > TABLE_BYTES_MAX)
        return bytes == 0 ? 0 : -ENOEXEC;
    if (bytes > image->bytes || offset > image->bytes - bytes)
        return -ENOEXEC;
    char *at = hl_allocate_scratch(&symbols->scratch, bytes + 1);
    if (at == NULL)
        return -ENOMEM;
    int result = read_at(image, at, offset, bytes);
    if (result != 0)
        return result;
    at[bytes] = '\0';
    table->at = at;
    table->bytes = bytes;
    return 0;
}

static const Elf64_Shdr *section_at(const struct image *image, uint64_t index) {
    return index < image->n_sections ? (const Elf64_Shdr *)(const void *)image->sections.at + index : NULL;
}

/* The string at OFFSET of TABLE, which a zero byte follows; "" outside. */
static inline const char *string_at(const struct table *table, uint64_t offset) {
    if (offset >= table->bytes)
        return "";
    return (offset < table->split ? table->first : table->at) + offset;
}

static int read_section(struct hl_symbols *symbols, const struct image *image, const Elf64_Shdr *section,
                        struct table *table) {
    begin_table(table);
    if (section->sh_type == SHT_NOBITS)
        return 0;
    return read_table(symbols, image, section->sh_offset, section->sh_size, table);
}

/* The bytes [OFFSET, OFFSET + BYTES) of SECTION, an entry of a table, at the place to which they were
   moved; NULL if not all of them were. */
static const void *find_moved(const struct hl_symbols *symbols, const Elf64_Shdr *section, uint64_t offset,
                              uint64_t bytes) {
    uint64_t start = symbols->load_bias + section->sh_addr + offset;
    if (!(section->sh_flags & SHF_ALLOC) || start % _Alignof(Elf64_Sym) != 0)
        return NULL;
    for (size_t i = 0; i < symbols->n_moved; i++) {
        const struct hl_text_range *moved = &symbols->moved[i];
        if (start >= moved->start && start < moved->end && bytes <= moved->end - start)
            return (const void *)start;
    }
    return NULL;
}

/* The offset in the string table SECTION of the moved part that goes to its end, which terminates a name;
   its size if there is none. */
static uint64_t find_split(const struct hl_symbols *symbols, const Elf64_Shdr *section) {
    uint64_t start = symbols->load_bias + section->sh_addr, last = start + section->sh_size - 1;
    if (!(section->sh_flags & SHF_ALLOC) || section->sh_type == SHT_NOBITS || last < start)
        return section->sh_size;
    for (size_t i = 0; i < symbols->n_moved; i++) {
        const struct hl_text_range *moved = &symbols->moved[i];
        if (last >= moved->start && last < moved->end && *(const char *)last == '\0')
            return start < moved->start ? moved->start - start : 0;
    }
    return section->sh_size;
}

/* Reads the names up to where moved ones begin. */
static int read_names(struct hl_symbols *symbols, const struct image *image, const Elf64_Shdr *section,
                      struct table *names) {
    const char *moved = (const char *)(symbols->load_bias + section->sh_addr);
    uint64_t split = find_split(symbols, section), bytes = split;
    if (split == section->sh_size)
        return read_section(symbols, image, section, names);
    if (split > 0)
        bytes = split + hl_strlen(moved + split) + 1;
    int result = read_table(symbols, image, section->sh_offset, bytes, names);
    if (result != 0)
        return result;
    names->first = names->at;
    names->split = split;
    names->at = moved;
    names->bytes = section->sh_size;
    return 0;
}

/* e_ident, machine and the section headers.  Their number may stand in the first one (elf(5)). */
static int read_headers(struct hl_symbols *symbols, struct image *image) {
    Elf64_Shdr first;
    Elf64_Ehdr *header = &image->header;
    if (read_at(image, header, 0, sizeof *header) != 0 ||
        !hl_same_bytes((const char *)header->e_ident, ELFMAG, SELFMAG) ||
        header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB ||
        header->e_machine != MACHINE || (header->e_type != ET_EXEC && header->e_type != ET_DYN))
        return -ENOEXEC;
    if (header->e_shoff == 0)
        return 0;
    if (header->e_shentsize != sizeof first || read_at(image, &first, header->e_shoff, sizeof first) != 0)
        return -ENOEXEC;
    uint64_t n = header->e_shnum != 0 ? header->e_shnum : first.sh_size;
    uint64_t names = header->e_shstrndx != SHN_XINDEX ? header->e_shstrndx : first.sh_link;
    if (n > SECTIONS_READ_MAX)
        return -ENOEXEC;
    int result = read_table(symbols, image, header->e_shoff, n * sizeof first, &image->sections);
    image->n_sections = result == 0 ? n : 0;
    const Elf64_Shdr *section = section_at(image, names);
    if (result == 0 && section != NULL)
        result = read_section(symbols, image, section, &image->names);
    return result;
}

static bool is_executable(const Elf64_Shdr *section) {
    return (section->sh_flags & (SHF_ALLOC | SHF_EXECINSTR)) == (SHF_ALLOC | SHF_EXECINSTR) &&
           section->sh_size > 0 && section->sh_addr + section->sh_size > section->sh_addr;
}

/* One range for each executable section; if there are too many, the last one grows. */
static void find_text(struct hl_symbols *symbols, const struct image *image) {
    for (uint64_t i = 0; i < image->n_sections; i++) {
        const Elf64_Shdr *section = section_at(image, i);
        if (!is_executable(section))
            continue;
        uint64_t start = symbols->load_bias + section->sh_addr, end = start + section->sh_size;
        if (end <= start)
            continue;
        if (symbols->n_sections < HL_SECTIONS_MAX) {
            symbols->section[symbols->n_sections].start = start;
            symbols->section[symbols->n_sections++].end = end;
            continue;
        }
        struct hl_text_range *last = &symbols->section[HL_SECTIONS_MAX - 1];
        last->start = start < last->start ? start : last->start;
        last->end = end > last->end ? end : last->end;
    }
}

/* Room for N more. */
static int reserve_symbols(struct hl_symbols *symbols, uint64_t n) {
    if (symbols->n_max - symbols->n >= n)
        return 0;
    uint64_t wanted = symbols->n + (n > symbols->n ? n : symbols->n);
    struct hl_symbol *at = hl_allocate_scratch(&symbols->scratch, wanted * sizeof *at);
    if (at == NULL)
        return -ENOMEM;
    hl_copy_bytes(at, symbols->symbol, symbols->n * sizeof *at);
    symbols->symbol = at;
    symbols->n_max = wanted;
    return 0;
}

static bool is_within(const struct hl_text_range *range, uint64_t address) {
    return address - range->start < range->end - range->start;
}

static const struct hl_text_range *search_section(struct hl_symbols *symbols, uint64_t address) {
    for (unsigned i = 0; i < symbols->n_sections; i++) {
        if (is_within(&symbols->section[i], address)) {
            symbols->last_section = i;
            return &symbols->section[i];
        }
    }
    return NULL;
}

/* The section with ADDRESS, or NULL.  Most symbols are in the same one as the symbol before. */
static inline const struct hl_text_range *find_section(struct hl_symbols *symbols, uint64_t address) {
    const struct hl_text_range *last = &symbols->section[symbols->last_section];
    return is_within(last, address) ? last : search_section(symbols, address);
}

/* Fills TO from SYMBOL and its size; false if it begins in no executable section. */
static inline bool fill_symbol(struct hl_symbols *symbols, struct hl_symbol *to,
                               const struct hl_symbol *symbol, uint64_t bytes) {
    const struct hl_text_range *section = find_section(symbols, symbol->start);
    if (section == NULL)
        return false;
    uint64_t most = section->end - symbol->start;
    bytes = bytes < most ? bytes : most;
    *to = *symbol;
    to->bytes = bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
    return true;
}

int hl_add_symbol(struct hl_symbols *symbols, const struct hl_symbol *symbol, uint64_t bytes) {
    int result = symbols->n < symbols->n_max ? 0 : reserve_symbols(symbols, SYMBOLS_FIRST);
    if (result == 0 && fill_symbol(symbols, &symbols->symbol[symbols->n], symbol, bytes))
        symbols->n++;
    return result;
}

/* "$x", "$d.5": where code and data begin, on AArch64.  ".L...": the compiler's own. */
static bool is_marker(const char *name) {
    if (name[0] == '$')
        return (name[1] == 'x' || name[1] == 'd' || name[1] == 'a' || name[1] == 't') &&
               (name[2] == '\0' || name[2] == '.');
    return name[0] == '.' && name[1] == 'L';
}

/* Whether SYM is a function or may be one.  Reads only the names of labels: the others are all over the
   string table, which is not in the cache. */
static inline bool is_function(const Elf64_Sym *sym, const char *name) {
    unsigned type = ELF64_ST_TYPE(sym->st_info), visibility = ELF64_ST_VISIBILITY(sym->st_other);
    if (sym->st_shndx == SHN_UNDEF || sym->st_shndx == SHN_ABS || sym->st_shndx == SHN_COMMON)
        return false;
    if (type == STT_FUNC || type == STT_GNU_IFUNC)
        return true;
    return type == STT_NOTYPE && visibility != STV_HIDDEN && visibility != STV_INTERNAL && !is_marker(name);
}

/* Fills TO from SYM; false if it is not worth a line. */
static inline bool fill_function(struct hl_symbols *symbols, struct hl_symbol *to, const Elf64_Sym *sym,
                                 uint64_t address, const char *name) {
    struct hl_symbol symbol;
    if (!is_function(sym, name))
        return false;
    symbol.start = address;
    symbol.name = name;
    symbol.kind = ELF64_ST_TYPE(sym->st_info) == STT_NOTYPE ? HL_LABEL : HL_FUNCTION;
    symbol.binding = ELF64_ST_BIND(sym->st_info);
    return fill_symbol(symbols, to, &symbol, sym->st_size);
}

/* There is room for all. */
static void add_some(struct hl_symbols *symbols, const Elf64_Sym *sym, uint64_t n,
                     const struct table *strings) {
    struct hl_symbol *to = symbols->symbol + symbols->n;
    const uint64_t load_bias = symbols->load_bias;
    const struct table names = *strings; /* stays in registers */
    for (uint64_t i = 0; i < n; i++)
        if (sym[i].st_name > 0 && sym[i].st_name < names.bytes)
            to += fill_function(symbols, to, &sym[i], load_bias + sym[i].st_value,
                                string_at(&names, sym[i].st_name));
    symbols->n = (size_t)(to - symbols->symbol);
}

/* Adds the symbols of the table SECTION, read piece by piece; their names are in STRINGS. */
static int add_symbols(struct hl_symbols *symbols, const struct image *image, const Elf64_Shdr *section,
                       const struct table *strings) {
    uint64_t n = section->sh_size / sizeof(Elf64_Sym);
    if (section->sh_size > image->bytes || section->sh_size > TABLE_BYTES_MAX)
        return -ENOEXEC;
    int result = reserve_symbols(symbols, n);
    Elf64_Sym *buffer = hl_allocate_scratch(&symbols->scratch, ENTRIES_AT_ONCE * sizeof *buffer);
    if (buffer == NULL)
        return -ENOMEM;
    for (uint64_t done = 0, some; done < n && result == 0; done += some) {
        some = n - done < ENTRIES_AT_ONCE ? n - done : ENTRIES_AT_ONCE;
        uint64_t at = done * sizeof *buffer, bytes = some * sizeof *buffer;
        const Elf64_Sym *piece = find_moved(symbols, section, at, bytes);
        if (piece == NULL) {
            piece = buffer;
            result = read_at(image, buffer, section->sh_offset + at, bytes);
        }
        if (result == 0)
            add_some(symbols, piece, some, strings);
    }
    return result;
}

/* The first section of TYPE; NULL if there is none. */
static const Elf64_Shdr *find_table(const struct image *image, uint32_t type) {
    for (uint64_t i = 0; i < image->n_sections; i++) {
        const Elf64_Shdr *section = section_at(image, i);
        if (section->sh_type == type)
            return section;
    }
    return NULL;
}

/* The string table of SECTION; NULL if one of the two is not valid. */
static const Elf64_Shdr *find_strings(const struct image *image, const Elf64_Shdr *section) {
    const Elf64_Shdr *linked = section_at(image, section->sh_link);
    return section->sh_entsize == sizeof(Elf64_Sym) && linked != NULL && linked->sh_type == SHT_STRTAB
               ? linked
               : NULL;
}

/* The slot that the stub at CODE, at address AT, with ROOM bytes, jumps through; 0 if it is none. */
#if defined __x86_64__
static uint64_t decode_stub(const unsigned char *code, uint64_t room, uint64_t at) {
    unsigned n = 0;
    int32_t distance;
    if (room >= 4 && code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e && code[3] == 0xfa)
        n = 4; /* endbr64 */
    if (room > n && code[n] == 0xf2)
        n++; /* bnd */
    if (room < n + 6 || code[n] != 0xff || code[n + 1] != 0x25)
        return 0;
    __builtin_memcpy(&distance, code + n + 2, sizeof distance); /* jmp *distance(%rip) */
    return at + n + 6 + (uint64_t)(int64_t)distance;
}

static uint64_t stub_step(const Elf64_Shdr *section) {
    if (section->sh_entsize == 8 || section->sh_entsize == 16)
        return section->sh_entsize;
    return section->sh_addralign == 8 ? 8 : 16;
}

static const uint64_t stub_has_bytes = true;
#elif defined __aarch64__
static uint64_t decode_stub(const unsigned char *code, uint64_t room, uint64_t at) {
    uint32_t word[3];
    if (room < 8)
        return 0;
    __builtin_memcpy(word, code, 8);
    if (word[0] == 0xd503245f && room >= 12) { /* bti c */
        __builtin_memcpy(word, code + 4, 8);
        at += 4;
    }
    if ((word[0] & 0x9f00001f) != 0x90000010 || (word[1] & 0xffc003ff) != 0xf9400211)
        return 0; /* adrp x16, page; ldr x17, [x16, #offset] */
    uint64_t pages = (uint64_t)(word[0] >> 5 & 0x7ffff) << 2 | (word[0] >> 29 & 3);
    uint64_t distance = (pages ^ ((uint64_t)1 << 20)) - ((uint64_t)1 << 20); /* 21 bits, signed */
    return (at & ~(uint64_t)4095) + (distance << 12) + (word[1] >> 10 & 0xfff) * 8;
}

static uint64_t stub_step(const Elf64_Shdr *section) {
    (void)section;
    return 4;
}

static const uint64_t stub_has_bytes = false; /* 16 or 24: up to the next one */
#endif

/* Whether NAME is a section with stubs: .plt, .plt.got, .plt.sec, .iplt. */
static bool is_plt(const char *name) {
    return hl_same_bytes(name, ".plt", sizeof ".plt") || hl_same_bytes(name, ".plt.got", sizeof ".plt.got") ||
           hl_same_bytes(name, ".plt.sec", sizeof ".plt.sec") || hl_same_bytes(name, ".iplt", sizeof ".iplt");
}

/* Decodes the stubs of one section into IMAGE->stub, which has room, and adds the section's name for the
   bytes that are in no stub. */
static int decode_section(struct hl_symbols *symbols, struct image *image, const Elf64_Shdr *section) {
    struct table code;
    int result = read_section(symbols, image, section, &code);
    if (result != 0 || code.at == NULL)
        return result;
    uint64_t step = stub_step(section);
    for (uint64_t at = 0; at + step <= code.bytes; at += step) {
        uint64_t room = stub_has_bytes ? step : code.bytes - at;
        uint64_t slot = decode_stub((const unsigned char *)code.at + at, room, section->sh_addr + at);
        if (slot == 0)
            continue;
        struct stub *stub = &image->stub[image->n_stubs++];
        stub->start = section->sh_addr + at;
        stub->bytes = stub_has_bytes ? step : 0;
        stub->slot = slot;
        stub->target = 0;
        stub->symbol = 0;
        stub->named = false;
        at += stub_has_bytes ? 0 : 8;
    }
    struct hl_symbol whole;
    whole.start = symbols->load_bias + section->sh_addr;

    whole.name = string_at(&image->names, section->sh_name);
    whole.kind = HL_LABEL; /* a stub at the same address is preferred to this */
    whole.binding = STB_GLOBAL;
    return hl_add_symbol(symbols, &whole, section->sh_size);
}

static void copy_stub(struct stub *to, const struct stub *from) { hl_copy_bytes(to, from, sizeof *to); }

/* A heap sort: no recursion, and no input makes it slow. */
static void sift_stub(struct stub *stub, size_t at, size_t n) {
    struct stub moving;
    uint64_t slot = stub[at].slot;
    copy_stub(&moving, &stub[at]);
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && stub[child + 1].slot > stub[child].slot)
            child++;
        if (stub[child].slot <= slot)
            break;
        copy_stub(&stub[at], &stub[child]);
    }
    copy_stub(&stub[at], &moving);
}

/* Most are in order. */
static void sort_stubs(struct stub *stub, size_t n) {
    size_t sorted = 1;
    while (sorted < n && stub[sorted - 1].slot <= stub[sorted].slot)
        sorted++;
    if (sorted >= n)
        return;
    for (size_t i = n / 2; i-- > 0;)
        sift_stub(stub, i, n);
    for (size_t i = n; i-- > 1;) {
        struct stub top;
        copy_stub(&top, &stub[0]);
        copy_stub(&stub[0], &stub[i]);
        copy_stub(&stub[i], &top);
        sift_stub(stub, 0, i);
    }
}

static bool is_stubs(const struct image *image, const Elf64_Shdr *section) {
    return is_executable(section) && section->sh_type != SHT_NOBITS && section->sh_size <= image->bytes &&
           is_plt(string_at(&image->names, section->sh_name));
}

static int find_stubs(struct hl_symbols *symbols, struct image *image) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < image->n_sections; i++) {
        const Elf64_Shdr *section = section_at(image, i);
        if (!is_stubs(image, section))
            continue;
        bytes += section->sh_size;
        if (bytes > image->bytes) /* sections that overlap would take more memory than the file bounds */
            return -ENOEXEC;
    }
    if (bytes == 0)
        return 0;
    image->stub = hl_allocate_scratch(&symbols->scratch, bytes / 8 * sizeof(struct stub));
    if (image->stub == NULL)
        return -ENOMEM;
    int result = 0;
    for (uint64_t i = 0; i < image->n_sections && result == 0; i++) {
        const Elf64_Shdr *section = section_at(image, i);
        if (is_stubs(image, section))
            result = decode_section(symbols, image, section);
    }
    sort_stubs(image->stub, image->n_stubs);
    return result;
}

/* The first stub that jumps through SLOT, or n_stubs. */
static size_t find_slot(const struct image *image, uint64_t slot) {
    size_t low = 0, high = image->n_stubs;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (image->stub[middle].slot < slot)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Notes the function that one relocation gives to stubs. .plt.got and .plt may have one each for the same
   slot. */
static void note_relocation(const struct hl_symbols *symbols, struct image *image, const Elf64_Rela *rela) {
    uint64_t type = ELF64_R_TYPE(rela->r_info);
    if (type != R_SLOT && type != R_DATA && type != R_IFUNC)
        return;
    for (size_t i = find_slot(image, rela->r_offset);
         i < image->n_stubs && image->stub[i].slot == rela->r_offset && !image->stub[i].named; i++) {
        image->stub[i].named = true;
        image->stub[i].symbol = (uint32_t)ELF64_R_SYM(rela->r_info);
        image->stub[i].target = symbols->load_bias + (uint64_t)rela->r_addend;
        image->n_named++;
    }
}

/* From the end: relocations without a symbol come first there (-z combreloc), and are nearly all. */
static int read_relocations(const struct hl_symbols *symbols, struct image *image, const Elf64_Shdr *section,
                            Elf64_Rela *buffer) {
    uint64_t n = section->sh_size / sizeof *buffer;
    for (uint64_t some; n > 0 && image->n_named < image->n_stubs;) {
        some = n < ENTRIES_AT_ONCE ? n : ENTRIES_AT_ONCE;
        n -= some;
        uint64_t at = n * sizeof *buffer, bytes = some * sizeof *buffer;
        const Elf64_Rela *piece = find_moved(symbols, section, at, bytes);
        if (piece == NULL) {
            piece = buffer;
            int result = read_at(image, buffer, section->sh_offset + at, bytes);
            if (result != 0)
                return result;
        }
        for (uint64_t i = 0; i < some; i++)
            note_relocation(symbols, image, &piece[i]);
    }
    return 0;
}

/* The relocations of .plt are in .rela.plt, those of .plt.got in .rela.dyn.  The former is far smaller and
   comes second, so it is read first. */
static int resolve_stubs(struct hl_symbols *symbols, struct image *image) {
    Elf64_Rela *piece = hl_allocate_scratch(&symbols->scratch, ENTRIES_AT_ONCE * sizeof *piece);
    int result = piece != NULL ? 0 : -ENOMEM;
    for (uint64_t i = image->n_sections; i-- > 0 && result == 0;) {
        const Elf64_Shdr *section = section_at(image, i);
        if (section->sh_type == SHT_RELA && (section->sh_flags & SHF_ALLOC) &&
            section->sh_entsize == sizeof(Elf64_Rela))
            result = read_relocations(symbols, image, section, piece);
    }
    return result;
}

/* Reads .dynsym and its names; without them both tables are empty. */
static int read_dynamic(struct hl_symbols *symbols, const struct image *image, struct table *entries,
                        struct table *names) {
    const Elf64_Shdr *section = find_table(image, SHT_DYNSYM);
    const Elf64_Shdr *strings = section != NULL ? find_strings(image, section) : NULL;
    begin_table(entries);
    *names = image->strings;
    if (strings == NULL)
        return 0;
    entries->at = find_moved(symbols, section, 0, section->sh_size);
    entries->bytes = section->sh_size;
    int result = entries->at == NULL ? read_section(symbols, image, section, entries) : 0;
    return result == 0 && strings != image->strings_at ? read_names(symbols, image, strings, names) : result;
}

static int read_stubs(struct hl_symbols *symbols, struct image *image) {
    struct hl_symbol symbol;
    struct table entries, names;
    int result = find_stubs(symbols, image);
    if (result != 0 || image->n_stubs == 0)
        return result;
    result = resolve_stubs(symbols, image);
    if (result == 0)
        result = read_dynamic(symbols, image, &entries, &names);
    if (result == 0)
        result = reserve_symbols(symbols, image->n_stubs);
    if (result != 0)
        return result;
    const Elf64_Sym *dynamic = (const Elf64_Sym *)(const void *)entries.at;
    for (size_t i = 0; i < image->n_stubs && result == 0; i++) {
        const struct stub *stub = &image->stub[i];
        if (!stub->named)
            continue;
        symbol.start = symbols->load_bias + stub->start;
        symbol.binding = STB_GLOBAL;
        symbol.kind = HL_STUB;
        if (stub->symbol == 0) {
            symbol.kind = HL_IFUNC_STUB;
            symbol.target = stub->target;
        } else {
            if (stub->symbol >= entries.bytes / sizeof *dynamic)
                continue;
            symbol.name = string_at(&names, dynamic[stub->symbol].st_name);
        }
        result = hl_add_symbol(symbols, &symbol, stub->bytes);
    }
    return result;
}

/* Takes one mapping for all memory needed later: the names, and for each symbol itself, two keys and a
   place among the open ones.  Without it this is only slower, and it is done only if the sizes can be
   true. */
static void reserve_memory(struct hl_symbols *symbols, const struct image *image, const Elf64_Shdr *section,
                           const Elf64_Shdr *names) {
    uint64_t for_each = sizeof *symbols->symbol + 2 * sizeof *symbols->chosen + sizeof *symbols->open;
    uint64_t n = section->sh_size / sizeof(Elf64_Sym);
    if (section->sh_size <= image->bytes && names->sh_size <= image->bytes)
        hl_reserve_scratch(&symbols->scratch, find_split(symbols, names) + n * for_each + SCRATCH_MORE);
}

/* .symtab, else .dynsym. */
static int read_tables(struct hl_symbols *symbols, struct image *image) {
    const Elf64_Shdr *section = find_table(image, SHT_SYMTAB);
    if (section == NULL)
        section = find_table(image, SHT_DYNSYM);
    if (section == NULL)
        return 0;
    const Elf64_Shdr *names = find_strings(image, section);
    if (names == NULL)
        return -ENOEXEC;
    reserve_memory(symbols, image, section, names);
    int result = read_names(symbols, image, names, &image->strings);
    if (result != 0)
        return result;
    image->strings_at = names;
    symbols->table = section->sh_type;
    return add_symbols(symbols, image, section, &image->strings);
}

int hl_read_symbols(struct hl_symbols *symbols, int fd) {
    struct image image;
    struct statx stat;
    long result = HL_CALL(__NR_statx, fd, "", 0x1000 /* AT_EMPTY_PATH */, STATX_SIZE, &stat, 0);
    if (hl_is_error(result))
        return (int)result;
    image.fd = fd;
    image.bytes = stat.stx_size;
    symbols->file_bytes += image.bytes;
    image.n_sections = 0;
    image.n_stubs = image.n_named = 0;
    image.stub = NULL;
    begin_table(&image.sections);
    begin_table(&image.names);
    begin_table(&image.strings);
    image.strings_at = NULL;

    result = read_headers(symbols, &image);
    if (result == 0) {
        find_text(symbols, &image);
        result = read_tables(symbols, &image);
    }
    if (result == 0)
        result = read_stubs(symbols, &image);
    return (int)result;
}
