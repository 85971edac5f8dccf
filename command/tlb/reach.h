/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The amount of text for which the processor's instruction TLB holds translations. */
#ifndef HL_TLB_REACH_H
#define HL_TLB_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Entries of the instruction TLBs, or of unified ones, at levels 1 and 2, for pages of 4 KiB and of 2 MiB. */
struct hl_tlb_reach {
    bool known;
    unsigned small_entries[2], huge_entries[2];
};

/* The registers after a cpuid instruction. */
struct hl_cpuid {
    uint32_t eax, ebx, ecx, edx;
};

/* AMD's leaves 0x80000005 and 0x80000006 (AMD64 Architecture Programmer's Manual, volume 3, appendix E.4.4). */
struct hl_tlb_reach hl_decode_amd_tlb(const struct hl_cpuid *leaf5, const struct hl_cpuid *leaf6);

/* Intel's leaf 0x18, N subleaves of it (Software Developer's Manual, volume 2A, CPUID). */
struct hl_tlb_reach hl_decode_intel_tlb(const struct hl_cpuid *leaf, size_t n);

/* Reads this processor's.  Unknown on AArch64, where neither a register nor sysfs tells it, and if a hypervisor hides it. */
void hl_read_tlb_reach(struct hl_tlb_reach *reach);

/* Bytes of text on small and on huge pages, by the level that holds most.  0: unknown. */
uint64_t hl_small_reach_bytes(const struct hl_tlb_reach *reach);
uint64_t hl_huge_reach_bytes(const struct hl_tlb_reach *reach);

#endif
