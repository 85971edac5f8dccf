/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads the processor's own description of its TLBs.  Nothing is guessed from its name: without a description, nothing is known. */
#include "command/tlb/reach.h"

#if defined __x86_64__
#include <cpuid.h>
#endif

#define SMALL_PAGE ((uint64_t)4096)
#define HUGE_PAGE ((uint64_t)2 << 20)
/* "Hygo", AMD's design; compilers before 2020 have no name for it. */
#define HYGON 0x6f677948
/* No processor has more; a hypervisor may claim any number. */
#define SUBLEAVES_MAX 32
#define ENTRIES_MAX 65536

static bool is_sane(const struct hl_tlb_reach *reach) {
    unsigned most = 0;
    for (unsigned level = 0; level < 2; level++) {
        most = reach->small_entries[level] > most ? reach->small_entries[level] : most;
        if (reach->small_entries[level] > ENTRIES_MAX || reach->huge_entries[level] > ENTRIES_MAX)
            return false;
    }
    return most > 0;
}

/* Bits 0 to 11 of a register of leaf 6, if the associativity above them shows that there is such a TLB. */
static unsigned second_level(uint32_t word) { return (word >> 12 & 0xf) != 0 ? word & 0xfff : 0; }

struct hl_tlb_reach hl_decode_amd_tlb(const struct hl_cpuid *leaf5, const struct hl_cpuid *leaf6) {
    struct hl_tlb_reach reach = {.small_entries = {leaf5->ebx & 0xff, second_level(leaf6->ebx)},
                                 .huge_entries = {leaf5->eax & 0xff, second_level(leaf6->eax)}};
    reach.known = is_sane(&reach);
    return reach;
}

struct hl_tlb_reach hl_decode_intel_tlb(const struct hl_cpuid *leaf, size_t n) {
    enum { INSTRUCTIONS = 2, UNIFIED = 3 };
    struct hl_tlb_reach reach = {0};
    for (size_t i = 0; i < n; i++) {
        unsigned type = leaf[i].edx & 0x1f, level = leaf[i].edx >> 5 & 0x7;
        uint64_t entries = (uint64_t)(leaf[i].ebx >> 16) * leaf[i].ecx;
        if ((type != INSTRUCTIONS && type != UNIFIED) || level < 1 || level > 2)
            continue;
        entries = entries < ENTRIES_MAX ? entries : ENTRIES_MAX + 1;
        if (leaf[i].ebx & 1)
            reach.small_entries[level - 1] += (unsigned)entries;
        if (leaf[i].ebx & 2)
            reach.huge_entries[level - 1] += (unsigned)entries;
    }
    reach.known = is_sane(&reach);
    return reach;
}

#if defined __x86_64__
static struct hl_cpuid ask(unsigned leaf, unsigned subleaf) {
    struct hl_cpuid answer;
    __cpuid_count(leaf, subleaf, answer.eax, answer.ebx, answer.ecx, answer.edx);
    return answer;
}

void hl_read_tlb_reach(struct hl_tlb_reach *reach) {
    *reach = (struct hl_tlb_reach){0};
    struct hl_cpuid leaf[SUBLEAVES_MAX];
    uint32_t maker = ask(0, 0).ebx; /* "Auth", "Hygo", "Genu" */
    if ((maker == signature_AMD_ebx || maker == HYGON) && ask(0x80000000, 0).eax >= 0x80000006) {
        const struct hl_cpuid leaf5 = ask(0x80000005, 0), leaf6 = ask(0x80000006, 0);
        *reach = hl_decode_amd_tlb(&leaf5, &leaf6);
    } else if (maker == signature_INTEL_ebx && ask(0, 0).eax >= 0x18) {
        size_t n = ask(0x18, 0).eax;
        n = n < SUBLEAVES_MAX ? n + 1 : SUBLEAVES_MAX;
        for (unsigned i = 0; i < n; i++)
            leaf[i] = ask(0x18, i);
        *reach = hl_decode_intel_tlb(leaf, n);
    }
}
#else
void hl_read_tlb_reach(struct hl_tlb_reach *reach) { *reach = (struct hl_tlb_reach){0}; }
#endif

static uint64_t most(const unsigned *entries) { return entries[0] > entries[1] ? entries[0] : entries[1]; }

uint64_t hl_small_reach_bytes(const struct hl_tlb_reach *reach) {
    return reach->known ? most(reach->small_entries) * SMALL_PAGE : 0;
}

uint64_t hl_huge_reach_bytes(const struct hl_tlb_reach *reach) {
    return reach->known ? most(reach->huge_entries) * HUGE_PAGE : 0;
}
