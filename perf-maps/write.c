/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Formats a perf map and puts it where all users may write.

   The names come from a file, so a newline in one must not begin a line.  Names are most of the bytes: they
   are copied eight at a time. */
#include "write.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/mman.h>
#include <linux/resource.h>

/* Whole pages, and many of them: the kernel's page cache then works with large ones. */
#define WRITE_BYTES ((uint64_t)256 << 10)
/* Longer than any compiler's (Rust's reach some thousand). */
#define NAME_BYTES_MAX ((uint64_t)64 << 10)
/* A name, two numbers, their blanks, "*ABS*+0x...@plt" and the newline. */
#define LINE_BYTES_MAX (NAME_BYTES_MAX + 128)
#define BUFFER_BYTES (WRITE_BYTES + NAME_BYTES_MAX + 4096)
/* Enough for most maps. */
#define WHOLE_MAP_BYTES (4 * HL_SCRATCH_HUGE)
/* perf leaves out a line with a shorter one (dso__load_perf_map, Linux 6.1 to 6.18). */
#define SHORTEST_NAME 3
/* Beside HL_TEXT_PER_FILE, for small files whose functions lie in many ranges. */
#define TEXT_MORE ((uint64_t)1 << 20)
#define PAGE_MASK 4095

/* The buffer has room for it. */
static void put_mark(struct hl_map_text *text) {
    if (text->result != 0)
        return;
    hl_copy_bytes(text->at + text->filled, HL_MAP_MARK, sizeof HL_MAP_MARK - 1);
    text->filled += sizeof HL_MAP_MARK - 1;
}

void hl_begin_map(struct hl_map_text *text, int fd) {
    uint64_t limit[2];
    text->fd = fd;
    text->filled = text->written = text->lines = text->ends = 0;
    text->allocated_bytes = fd >= 0 ? BUFFER_BYTES : WHOLE_MAP_BYTES;
    text->at = fd >= 0 ? hl_map_pages(BUFFER_BYTES) : hl_map_huge_pages(WHOLE_MAP_BYTES);
    text->result = text->at == NULL ? -ENOMEM : 0;
    long result = HL_CALL(__NR_prlimit64, 0, RLIMIT_FSIZE, 0, limit, 0, 0);
    text->most_bytes = hl_is_error(result) ? UINT64_MAX : limit[0];
    put_mark(text);
}

void hl_free_map(struct hl_map_text *text) {
    hl_release_pages(text->at, text->allocated_bytes);
    text->at = NULL;
}

int hl_write_bytes(int fd, const char *at, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        long n = hl_write(fd, at + done, bytes - done);
        if (n == -EINTR)
            continue;
        if (hl_is_error(n) || n == 0)
            return n == 0 ? -EIO : (int)n;
        done += (uint64_t)n;
    }
    return 0;
}

/* Writes BYTES of the buffer; the rest moves to its start. */
static void flush(struct hl_map_text *text, uint64_t bytes) {
    text->result =
        text->most_bytes - text->written < bytes ? -EFBIG : hl_write_bytes(text->fd, text->at, bytes);
    if (text->result != 0)
        return;
    text->written += bytes;
    text->filled -= bytes;
    hl_copy_bytes(text->at, text->at + bytes, text->filled);
}

/* Makes room for one more line. */
static bool make_room(struct hl_map_text *text) {
    if (text->result == 0 && text->allocated_bytes - text->filled >= LINE_BYTES_MAX)
        return true;
    if (text->result != 0)
        return false;
    if (text->fd >= 0) {
        flush(text, text->filled / WRITE_BYTES * WRITE_BYTES);
        return text->result == 0;
    }
    long at = HL_CALL(__NR_mremap, text->at, text->allocated_bytes, 2 * text->allocated_bytes, MREMAP_MAYMOVE,
                      0, 0);
    if (hl_is_error(at)) {
        text->result = -ENOMEM;
        return false;
    }
    text->at = (char *)at;
    text->allocated_bytes *= 2;
    return true;
}

/* The last N of the four digits of NUMBER, which is below 65536.  Writes four bytes. */
static inline char *put_digits(char *to, uint32_t number, unsigned n) {
    uint32_t x = (number & 0xff) << 16 | number >> 8; /* then a byte for each digit, the first one lowest */
    x = (x & 0x000f000f) << 8 | (x >> 4 & 0x000f000f);
    uint32_t letters = (x + 0x06060606) >> 4 & 0x01010101;
    x = (x + 0x30303030 + letters * ('a' - '0' - 10)) >> (32 - 8 * n);
    __builtin_memcpy(to, &x, sizeof x);
    return to + n;
}

static inline char *put_hex(char *to, uint64_t number) {
    unsigned before_last = (63 - (unsigned)__builtin_clzll(number | 1)) / 4, shift = before_last / 4 * 16;
    to = put_digits(to, (uint32_t)(number >> shift), before_last % 4 + 1);
    while (shift > 0)
        to = put_digits(to, number >> (shift -= 16) & 0xffff, 4);
    return to;
}

static char *put_text(char *to, const char *from) {
    while (*from != '\0')
        *to++ = *from++;
    return to;
}

/* Copies eight bytes.  How many of them come before the first one that is zero, a control character, 0x7f or no ASCII.  Bytes behind a
   name's end are read but not used, so no sanitizer may complain. */
#define COPIED_AT_ONCE 8
#define EVERY_BYTE(x) ((uint64_t)-1 / 255 * (x))

__attribute__((no_sanitize_address)) static inline unsigned copy_some(char *to, const char *from) {
    uint64_t bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    __builtin_memcpy(to, &bytes, sizeof bytes);
    /* A carry makes more bytes special only above one that is special. */
    uint64_t special = ((bytes - EVERY_BYTE(' ')) | (bytes + EVERY_BYTE(1))) & EVERY_BYTE(0x80);
    return special != 0 ? (unsigned)__builtin_ctzll(special) / 8 : COPIED_AT_ONCE;
}

/* NAME, up to NAME_BYTES_MAX and a few bytes more, control characters as '?'.  The copied bytes may reach
   beyond its end, but never into another page. */
static inline char *put_name(char *to, const char *name) {
    for (const char *end = to + NAME_BYTES_MAX; to < end;) {
        if (((uintptr_t)name & PAGE_MASK) <= PAGE_MASK + 1 - COPIED_AT_ONCE) {
            unsigned plain = copy_some(to, name);
            if (plain == COPIED_AT_ONCE) { /* the next read need not wait for these bytes */
                name += COPIED_AT_ONCE;
                to += COPIED_AT_ONCE;
                continue;
            }
            name += plain;
            to += plain;
        }
        unsigned char c = (unsigned char)*name++;
        if (c == '\0')
            return to;
        *to++ = (char)(c < ' ' || c == 0x7f ? '?' : c);
    }
    return to;
}

static uint64_t count_bytes(const struct hl_map_text *text) { return text->written + text->filled; }

static void put_line(struct hl_map_text *text, uint64_t start, uint64_t end, const struct hl_symbols *symbols,
                     const struct hl_symbol *symbol) {
    if (symbol->kind != HL_IFUNC_STUB && symbol->name[0] == '\0')
        return;
    if (count_bytes(text) >= text->ends || !make_room(text))
        return;
    char *to = put_hex(text->at + text->filled, start);
    *to++ = ' ';
    to = put_hex(to, end - start);
    *to++ = ' ';
    const char *name = to;
    if (symbol->kind == HL_IFUNC_STUB)
        to = put_hex(put_text(to, "*ABS*+0x"), symbol->target - symbols->load_bias);
    else
        to = put_name(to, symbol->name);
    if (symbol->kind >= HL_STUB)
        to = put_text(to, "@plt");
    while (to - name < SHORTEST_NAME)
        *to++ = ' ';
    *to++ = '\n';
    text->filled = (uint64_t)(to - text->at);
    text->lines++;
}

/* The ranges, and the position of the lines in them. */
struct cursor {
    const struct hl_text_range *range;
    size_t n;
    uint64_t at; /* everything below is done */
};

/* The bytes [cursor->at, end) belong to SYMBOL: a line for each part that moved. */
static void put_piece(struct hl_map_text *text, struct cursor *cursor, uint64_t end,
                      const struct hl_symbols *symbols, const struct hl_symbol *symbol) {
    uint64_t start = cursor->at;
    if (end <= start)
        return;
    cursor->at = end;
    for (; cursor->n > 0; cursor->range++, cursor->n--) {
        uint64_t from = start > cursor->range->start ? start : cursor->range->start;
        uint64_t to = end < cursor->range->end ? end : cursor->range->end;
        if (from < to)
            put_line(text, from, to, symbols, symbol);
        if (cursor->range->end > end)
            return;
    }
}

/* Ends the open functions that end at or before START; whether a function is left that contains START. */
static bool close_until(struct hl_map_text *text, struct cursor *cursor, const struct hl_symbols *symbols,
                        const uint32_t *open, size_t *n_open, uint64_t start) {
    for (; *n_open > 0; --*n_open) {
        const struct hl_symbol *top = &symbols->symbol[open[*n_open - 1]];
        if (top->start + top->bytes > start)
            return true;
        put_piece(text, cursor, top->start + top->bytes, symbols, top);
    }
    return false;
}

/* Sweeps over the addresses with a stack of the functions that are open. */
int hl_write_symbols(struct hl_map_text *text, const struct hl_symbols *symbols,
                     const struct hl_text_range *range, size_t n) {
    struct cursor cursor = {range, n, 0};
    size_t n_open = 0;
    if (symbols->n_chosen == 0 || text->result != 0)
        return 0;
    text->ends = count_bytes(text) + HL_TEXT_PER_FILE * symbols->file_bytes + TEXT_MORE;
    uint32_t *open = symbols->open;
    for (size_t i = 0; i < symbols->n_chosen; i++) {
        const struct hl_symbol *symbol = &symbols->symbol[symbols->chosen[i]];
        bool inside = close_until(text, &cursor, symbols, open, &n_open, symbol->start);
        if (symbol->bytes == 0 || (inside && symbol->kind == HL_LABEL))
            continue; /* a label inside a function names no function */
        if (inside)
            put_piece(text, &cursor, symbol->start, symbols, &symbols->symbol[open[n_open - 1]]);
        cursor.at = symbol->start;
        open[n_open++] = (uint32_t)symbols->chosen[i];
    }
    close_until(text, &cursor, symbols, open, &n_open, UINT64_MAX);
    return count_bytes(text) >= text->ends ? -ENOEXEC : 0;
}

int hl_finish_map(struct hl_map_text *text) {
    if (make_room(text))
        put_mark(text);
    if (text->fd >= 0 && text->result == 0)
        flush(text, text->filled);
    return text->result;
}

/* NUMBER in decimal behind TO, which has room; terminated. */
static char *put_number(char *to, uint64_t number) {
    char digits[20];
    unsigned n = 0;
    do
        digits[n++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (n > 0)
        *to++ = digits[--n];
    return to;
}

void hl_name_map(char name[HL_MAP_NAME_BYTES], uint64_t pid) {
    char *to = put_text(put_number(put_text(name, "perf-"), pid), ".map");
    *to = '\0';
}

static void unlink_map(const struct hl_new_map *map) {
    HL_CALL(__NR_unlinkat, map->folder, map->temporary, 0, 0, 0, 0);
}

long hl_move_up(long fd) {
    if (hl_is_error(fd) || fd > 2)
        return fd;
    long higher = HL_CALL(__NR_fcntl, fd, 1030 /* F_DUPFD_CLOEXEC */, 3, 0, 0, 0);
    hl_close((int)fd);
    return higher;
}

int hl_create_map(struct hl_new_map *map, int folder, uint64_t pid) {
    uint64_t random = 0;
    map->folder = folder;
    hl_name_map(map->name, pid);
    for (unsigned try = 0; try < 8; try++) {
        long n = HL_CALL(__NR_getrandom, &random, sizeof random, 1 /* GRND_NONBLOCK */, 0, 0, 0);
        if (n != sizeof random) /* early at boot: any name will do, O_EXCL makes it safe */
            random = (uint64_t)&random + random * 3 + try;
        char *to = put_text(put_text(map->temporary, "."), map->name);
        to = put_hex(put_text(to, "."), random);
        *to = '\0';
        long fd = HL_CALL(__NR_openat, folder, map->temporary,
                          O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600, 0, 0);
        if (fd == -EEXIST)
            continue;
        long higher = hl_move_up(fd);
        map->fd = (int)higher;
        if (hl_is_error(higher) && !hl_is_error(fd))
            unlink_map(map);
        return hl_is_error(higher) ? (int)higher : 0;
    }
    return -EEXIST;
}

int hl_place_map(struct hl_new_map *map) {
    hl_close(map->fd);
    long result = HL_CALL(__NR_renameat2, map->folder, map->temporary, map->folder, map->name, 0, 0);
    if (hl_is_error(result))
        unlink_map(map);
    return hl_is_error(result) ? (int)result : 0;
}

void hl_drop_map(struct hl_new_map *map) {
    hl_close(map->fd);
    unlink_map(map);
}

const char *hl_explain_map_error(int result) {
    switch (-result) {
    case EPERM:
    case EACCES:
        return "another user's file or folder is in the way; remove it, or use hugeld perf-map --output";
    case EBUSY:
        return "hugeld did not write this map (a JIT did?); add to it with --append, or remove it";
    case EISDIR:
        return "a folder has its name; remove it";
    case ENOSPC:
    case EDQUOT:
        return "its file system is full; make room there";
    case EFBIG:
        return "it is larger than the limit for files; raise ulimit -f";
    case EROFS:
    case ENOENT:
    case ENOTDIR:
        return "/tmp is no folder that can be written to; mount one";
    case ENOMEM:
        return "there is no memory for it";
    case EMFILE:
    case ENFILE:
        return "there is no file descriptor left; raise ulimit -n";
    case ENOEXEC:
        return "its file has a broken symbol table; check it with readelf -sW";
    case ESTALE:
        return "its file was replaced since it was mapped; start the program again";
    case EOVERFLOW:
        return "it has 64 MiB already; open objects once, or use hugeld perf-map";
    case ENODATA:
        return "its file names no function there; install its debug symbols and use hugeld perf-map";
    default:
        return NULL;
    }
}
