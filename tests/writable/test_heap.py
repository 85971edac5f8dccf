# SPDX-License-Identifier: LGPL-2.1-or-later
"""The heap behind .bss survives: its bytes are unchanged, it grows and shrinks, and malloc goes on using it.

Without address-space randomisation it begins in the last, partly used huge page of .bss."""

import pytest

from writable import ALL, FIXED

EVERYTHING = "backend=hugetlb,data=thp,bss=thp"
KINDS = (*ALL, "data")
# The bytes that an earlier constructor took: none; a few; more than the page.
EARLY = {"none": "", "small": "sbrk:8000,malloc:8000", "small sbrk": "sbrk:8000", "sbrk": "sbrk:480000",
         "malloc": "malloc:480000", "both": "fill,sbrk:150000,malloc:480000"}


def heap_lines(outcome):
    return [line for line in outcome.stdout.splitlines() if line.startswith(("malloc uses", "arena"))]


@pytest.mark.parametrize("random", [True, False], ids=["random", "fixed"])
@pytest.mark.parametrize("variant", ["nopie", "pie", "aligned", "aligned-pie"])
@pytest.mark.parametrize("before", EARLY)
def test_glibc(program, compare, pool, thp, variant, random, before):
    pool(64)
    outcome = compare([program(variant), "heap"], KINDS, EARLY[before], [] if random else FIXED, options=EVERYTHING)
    assert heap_lines(outcome) == ["malloc uses the heap: yes", "arena grows: yes"] * 2
    assert outcome.stderr == ""
