# SPDX-License-Identifier: LGPL-2.1-or-later
"""The heap behind .bss survives: its bytes are unchanged, it grows and shrinks, and malloc goes on using it.

Without address-space randomisation it begins in the last, partly used huge page of .bss."""

import pathlib
import subprocess

import pytest

from writable import ALL, FIXED

EVERYTHING = "backend=hugetlb,data=thp,bss=thp"
KINDS = (*ALL, "data")
# The bytes that an earlier constructor took: none; a few; more than the page.
EARLY = {"none": "", "small": "sbrk:8000,malloc:8000", "small sbrk": "sbrk:8000", "sbrk": "sbrk:480000",
         "malloc": "malloc:480000", "both": "fill,sbrk:150000,malloc:480000"}
SONAMES = {"jemalloc": "libjemalloc.so.", "tcmalloc": "libtcmalloc_minimal.so.", "mimalloc": "libmimalloc.so."}


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


@pytest.mark.parametrize("variant", ["nopie", "pie"])
@pytest.mark.parametrize("before", ["none", "small", "both"])
@pytest.mark.parametrize("name", SONAMES)
def test_other_malloc(program, compare, pool, thp, name, variant, before):
    """They take their memory from where they take it without hugeld."""
    library = find_library(SONAMES[name])
    pool(64)
    compare([program(variant), "heap"], KINDS, EARLY[before], FIXED, libraries=[library], options=EVERYTHING)


def find_library(soname):
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    for line in cache.splitlines():
        if line.strip().startswith(soname):
            return pathlib.Path(line.split()[-1])
    pytest.skip(f"{soname} is not installed (libjemalloc2, libtcmalloc-minimal4, libmimalloc)")
    return None
