/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sorts symbols, keeps one of several aliases, derives missing sizes.

   A profiler that reads the file itself has to choose as well, and a user who compares two profiles should
   see the same names.  So the order of preference is perf's (choose_best_symbol and symbols__fixup_end in
   tools/perf/util/symbol.c, Linux 6.18): one with a size; one with a type; not a weak one; a global one;
   fewer underscores in front; the longer name; the first of the table.  Of several without a size at one
   address only the last has any, because each ends where the next begins. */
#include "symbols.h"
#include "sys.h"
#include "line.h"

/* The sort keys: eight bytes for each symbol, the distance of its start from the first one, whether it has
   no size, and its index. */
#define INDEX_BITS 28
#define NO_SIZE ((uint64_t)1 << 27)
#define INDEX_MASK (NO_SIZE - 1)
#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)
#define AHEAD ((size_t)8)

/* One pass of a radix sort, by DIGIT_BITS from SHIFT on; stable. */
static void sort_pass(const uint64_t *from, uint64_t *to, size_t n, unsigned shift) {
    uint32_t place[DIGITS], sum = 0;
    for (size_t i = 0; i < DIGITS; i++)
        place[i] = 0;
    for (size_t i = 0; i < n; i++)
        place[from[i] >> shift & (DIGITS - 1)]++;
    for (size_t i = 0; i < DIGITS; i++) {
        uint32_t here = place[i];
        place[i] = sum;
        sum += here;
    }
    for (size_t i = 0; i < n; i++)
        to[place[from[i] >> shift & (DIGITS - 1)]++] = from[i];
}

/* Sorts FROM with the help of OTHER, as large; returns the one that has the result. */
static uint64_t *sort_keys(uint64_t *from, uint64_t *other, size_t n, uint64_t largest) {
    for (unsigned shift = INDEX_BITS; shift < 64 && (largest >> (shift - INDEX_BITS)) > 0;
         shift += DIGIT_BITS) {
        sort_pass(from, other, n, shift);
        uint64_t *sorted = other;
        other = from;
        from = sorted;
    }
    return from;
}

static size_t count_underscores(const char *name) {
    size_t n = 0;
    while (name[n] == '_')
        n++;
    return n;
}

/* > 0 if A is preferred, < 0 if B is, by name. */
static int compare_names(const struct hl_symbol *a, const struct hl_symbol *b) {
    if (a->kind == HL_IFUNC_STUB || b->kind == HL_IFUNC_STUB)
        return (b->kind == HL_IFUNC_STUB) - (a->kind == HL_IFUNC_STUB);
    size_t in_a = count_underscores(a->name), in_b = count_underscores(b->name);
    if (in_a != in_b)
        return in_a < in_b ? 1 : -1;
    in_a = hl_strlen(a->name);
    in_b = hl_strlen(b->name);
    return (in_a > in_b) - (in_a < in_b);
}

/* Whether A, which stands before B in the table and begins at the same address, is shown rather than B. */
static bool is_preferred(const struct hl_symbol *a, const struct hl_symbol *b) {
    if ((a->bytes == 0) != (b->bytes == 0))
        return a->bytes != 0;
    if ((a->kind == HL_LABEL) != (b->kind == HL_LABEL))
        return b->kind == HL_LABEL;
    if ((a->binding == STB_WEAK) != (b->binding == STB_WEAK))
        return b->binding == STB_WEAK;
    if ((a->binding == STB_GLOBAL) != (b->binding == STB_GLOBAL))
        return a->binding == STB_GLOBAL;
    return compare_names(a, b) >= 0;
}

/* The end of the section with ADDRESS. */
static uint64_t section_end(const struct hl_symbols *symbols, uint64_t address) {
    for (unsigned i = 0; i < symbols->n_sections; i++)
        if (address >= symbols->section[i].start && address < symbols->section[i].end)
            return symbols->section[i].end;
    return address;
}

/* The bytes from START to NEXT, at most to the end of the section. */
static uint32_t derive_bytes(const struct hl_symbols *symbols, uint64_t start, uint64_t next) {
    uint64_t end = section_end(symbols, start);
    uint64_t bytes = (next < end ? next : end) - start;
    return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

/* The best one of those with KEY[i] to KEY[last], which begin at the same address.  The last one gets a
   size. */
static uint64_t choose_one(const struct hl_symbols *symbols, const uint64_t *key, size_t i, size_t last) {
    struct hl_symbol *end = &symbols->symbol[key[last] & INDEX_MASK];
    if (end->bytes == 0)
        end->bytes = derive_bytes(symbols, end->start,
                                  last + 1 < symbols->n ? symbols->symbol[key[last + 1] & INDEX_MASK].start
                                                        : UINT64_MAX);
    uint64_t best = key[i] & INDEX_MASK;
    for (size_t j = i + 1; j <= last; j++)
        if (!is_preferred(&symbols->symbol[best], &symbols->symbol[key[j] & INDEX_MASK]))
            best = key[j] & INDEX_MASK;
    return best;
}

static bool is_alias(const struct hl_symbols *symbols, const uint64_t *key, size_t i) {
    return i + 1 < symbols->n && key[i] >> INDEX_BITS == key[i + 1] >> INDEX_BITS;
}

/* Fetches the memory that choose_one will read: sorted by address, symbols and names lie all over the
   memory. */
__attribute__((always_inline)) static inline void fetch_ahead(const struct hl_symbols *symbols,
                                                              const uint64_t *key, size_t i) {
    if (is_alias(symbols, key, i + 2 * AHEAD)) {
        __builtin_prefetch(&symbols->symbol[key[i + 2 * AHEAD] & INDEX_MASK]);
        __builtin_prefetch(&symbols->symbol[key[i + 2 * AHEAD + 1] & INDEX_MASK]);
    }
    if (is_alias(symbols, key, i + AHEAD)) {
        __builtin_prefetch(symbols->symbol[key[i + AHEAD] & INDEX_MASK].name);
        __builtin_prefetch(symbols->symbol[key[i + AHEAD + 1] & INDEX_MASK].name);
    }
}

/* Puts the index of one symbol for each start into TO, which may be KEY.  How many.  A symbol that is
   alone and has a size is not read. */
static size_t keep_best(const struct hl_symbols *symbols, const uint64_t *key, uint64_t *to) {
    size_t kept = 0;
    for (size_t i = 0, last; i < symbols->n; i = last + 1) {
        fetch_ahead(symbols, key, i);
        last = i;
        while (is_alias(symbols, key, last))
            last++;
        bool alone = last == i && !(key[i] & NO_SIZE);
        to[kept++] = alone ? key[i] & INDEX_MASK : choose_one(symbols, key, i, last);
    }
    return kept;
}

/* The stub of an IFUNC without a dynamic symbol gets the name at its address, if there is one. */
static void name_ifunc_stubs(const struct hl_symbols *symbols) {
    for (size_t i = 0; i < symbols->n_chosen; i++) {
        struct hl_symbol *stub = &symbols->symbol[symbols->chosen[i]];
        if (stub->kind != HL_IFUNC_STUB)
            continue;
        size_t low = 0, high = symbols->n_chosen;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (symbols->symbol[symbols->chosen[middle]].start < stub->target)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == symbols->n_chosen)
            continue;
        const struct hl_symbol *found = &symbols->symbol[symbols->chosen[low]];
        if (found->start == stub->target && found->kind == HL_FUNCTION) {
            stub->name = found->name;
            stub->kind = HL_STUB;
        }
    }
}

int hl_choose_symbols(struct hl_symbols *symbols) {
    uint64_t least = UINT64_MAX, most = 0, n = symbols->n;
    bool has_ifunc_stubs = false;
    if (n == 0)
        return 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t start = symbols->symbol[i].start;
        least = start < least ? start : least;
        most = start > most ? start : most;
        has_ifunc_stubs |= symbols->symbol[i].kind == HL_IFUNC_STUB;
    }
    if (n > INDEX_MASK || (most - least) >> (64 - INDEX_BITS) != 0)
        return -ENOEXEC; /* 64 GiB of text */
    symbols->chosen = hl_allocate_scratch(&symbols->scratch, 2 * n * sizeof *symbols->chosen);
    symbols->open = hl_allocate_scratch(&symbols->scratch, n * sizeof *symbols->open);
    if (symbols->chosen == NULL || symbols->open == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct hl_symbol *symbol = &symbols->symbol[i];
        symbols->chosen[i] = (symbol->start - least) << INDEX_BITS | (symbol->bytes == 0 ? NO_SIZE : 0) | i;
    }
    const uint64_t *sorted = sort_keys(symbols->chosen, symbols->chosen + n, n, most - least);
    symbols->n_chosen = keep_best(symbols, sorted, symbols->chosen);
    if (has_ifunc_stubs)
        name_ifunc_stubs(symbols);
    return 0;
}
