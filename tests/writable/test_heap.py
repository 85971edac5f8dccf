# SPDX-License-Identifier: LGPL-2.1-or-later
"""The heap behind .bss survives: its bytes are what they were, it grows and shrinks, and malloc goes on using it.

Without address-space randomisation it begins in the last, partly used huge page of .bss, which bss=hugetlb moves."""

import pathlib
import subprocess

import pytest

from writable import ALL, FIXED

EVERYTHING = "backend=hugetlb,data=hugetlb,bss=hugetlb"
KINDS = (*ALL, "data", "bss")
# What an earlier constructor took: nothing; a little, so that the break has to be carried on; more than the page.
EARLY = {"none": "", "small": "sbrk:8000,malloc:8000", "small sbrk": "sbrk:8000", "sbrk": "sbrk:480000",
         "malloc": "malloc:480000", "both": "fill,sbrk:150000,malloc:480000"}
SONAMES = {"jemalloc": "libjemalloc.so.", "tcmalloc": "libtcmalloc_minimal.so.", "mimalloc": "libmimalloc.so."}


def heap_lines(outcome):
    return [line for line in outcome.stdout.splitlines() if line.startswith(("malloc uses", "arena"))]


@pytest.mark.parametrize("random", [True, False], ids=["random", "fixed"])
@pytest.mark.parametrize("variant", ["nopie", "pie", "aligned", "aligned-pie"])
@pytest.mark.parametrize("before", EARLY)
def test_glibc(program, compare, pool, variant, random, before):
    pool(64)
    outcome = compare([program(variant), "heap"], KINDS, EARLY[before], [] if random else FIXED, options=EVERYTHING,
                      data_backend="hugetlb")
    assert heap_lines(outcome) == ["malloc uses the heap: yes", "arena grows: yes"] * 2
    assert outcome.stderr == ""


@pytest.mark.parametrize("variant", ["nopie", "pie"])
@pytest.mark.parametrize("before", ["none", "small", "both"])
@pytest.mark.parametrize("name", SONAMES)
def test_other_malloc(program, compare, pool, name, variant, before):
    """They take their memory from where they take it without hugeld."""
    library = find_library(SONAMES[name])
    pool(64)
    compare([program(variant), "heap"], KINDS, EARLY[before], FIXED, libraries=[library], options=EVERYTHING,
            data_backend="hugetlb")


def find_library(soname):
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    for line in cache.splitlines():
        if line.strip().startswith(soname):
            return pathlib.Path(line.split()[-1])
    pytest.skip(f"{soname} is not installed (libjemalloc2, libtcmalloc-minimal4, libmimalloc)")
    return None


def break_of(image):
    return max(m.end for m in image.mappings if m.name == "[heap]")


@pytest.mark.parametrize("variant", ["nopie", "aligned-pie"])
def test_something_above_the_break(program, compare, pool, variant):
    """It cannot grow: it stays where it is, and so does the last page, with the reason; what else is planned moves."""
    pool(64)
    outcome = compare([program(variant), "heap"], KINDS, "fill,sbrk:8000,block", FIXED,
                      options=f"verbose=1,{EVERYTHING}", data_backend="hugetlb", all_but_last=True)
    assert "bss stays: the heap begins in its last page and cannot be carried past it" in outcome.stderr
    assert break_of(outcome.plain) == break_of(outcome.image)


@pytest.mark.parametrize("more", ["100000", "300000"], ids=["1 MiB left", "3 MiB left"])
@pytest.mark.parametrize("variant", ["nopie", "aligned-pie"])
def test_rlimit_data(program, compare, pool, variant, more):
    """Nothing can move, and the break is where it was: it could not grow, or it could and went back."""
    pool(64)
    outcome = compare([program(variant), "heap"], (), f"fill,sbrk:8000,data:{more}", FIXED,
                      options=f"verbose=1,segments=text,{EVERYTHING}")
    assert outcome.stderr.count(" stays: ") == len({s.kind for s in outcome.plans.popitem()[1].spans})
    assert "data stays: no address space or memory for the copy; raise RLIMIT_AS or RLIMIT_DATA" in outcome.stderr
    assert break_of(outcome.plain) == break_of(outcome.image)
