# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that unmaps the destination of a mapping, and then refuses (5.10), for an object that ld.so has just
mapped: it is mapped again from its file; or loading it fails, and nothing of another thread's is touched."""

import re

import helpers
import pytest
from hugepages import free_pages

from injector import Fault
from sweep import LOST

# MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE and MAP_FIXED_NOREPLACE: the claim of elf/map-again.c.
CLAIM = 0x2 | 0x20 | 0x4000 | 0x100000
TRIES = 4  # HL_TRIES
PAGES = 64


def last_moves(one):
    """The calls that bring the spans of the object into place: the last ones, and how many calls of the kind there are."""
    kinds = [(call, detail) for call, detail in one.good.calls if call == "mremap"]
    spans = len(one.spans)
    assert len(kinds) >= spans > 0 and len(set(kinds)) == 1
    return [Fault(*kinds[0], nth, "destroy", "ENOMEM") for nth in range(len(kinds) - spans + 1, len(kinds) + 1)]


@pytest.fixture(autouse=True)
def pages(pool, thp):
    pool(PAGES)


@pytest.fixture(params=["ldso-needed-hugetlb", "ldso-dlopen-hugetlb", "ldso-dlopen-threads-hugetlb", "ldso-dlopen-thp"])
def one(request, sweep):
    return sweep(request.param)


@pytest.mark.check_all
def test_mapped_again(one):
    """...for each span, also where the claim fails at first; so are the spans that moved before it."""
    with one.inject() as inject:
        for fault in last_moves(one):
            for error in ("EINVAL", "ENOMEM"):
                for more in ((), (Fault("mmap", CLAIM, 1, "fail", "ENOMEM"),)):
                    faults = fault._replace(error=error), *more
                    outcome = inject.run(*faults)
                    wrong, _ = one.judge(outcome, faults)
                    assert not wrong, f"{faults}: {wrong}"
                    assert ("mmap", CLAIM) in outcome.calls
                    assert one.compare(outcome.looks[0], 0, False) == []


# The rest of the object goes with its zero-initialised data, which lie behind its last mapping of the file.
UNMAPS_THE_END = re.compile(r"munmap \[\w+, (\w+)\), of which \[\w+, \1\)\n")


def check_lost(one, outcome):
    trespasses = UNMAPS_THE_END.sub("", outcome.trespasses)
    assert not trespasses, trespasses
    assert outcome.status == (1 if "dlopen" in one.setting.name else 127), outcome
    assert f"libtarget.so: {LOST}" in outcome.err and not outcome.looks
    assert "stays: a failed system call unmapped it" in outcome.err
    helpers.wait_until(lambda: free_pages() == PAGES, what="a full pool")
    for left in re.findall(r"^left (\d+)$", outcome.err, re.M):  # a program may try again and again
        assert int(left) << 10 <= max(span.end - span.start for span in one.spans)


@pytest.mark.check_all
def test_no_memory_for_it(one):
    """The claim fails as often as it is tried; or so does the call that maps a segment over it, which is tried once more than that."""
    with one.inject() as inject:
        for fault in last_moves(one):
            check_lost(one, inject.run(fault, *(Fault("mmap", CLAIM, i + 1, "fail", "ENOMEM") for i in range(TRIES))))
            over = next(detail for call, detail in inject.run(fault).calls[::-1] if call == "mmap" and detail & 0x10)
            outcome = inject.run(fault)
            nth = [kind for kind in outcome.calls if kind == ("mmap", over)]
            check_lost(one, inject.run(fault, *(Fault("mmap", over, len(nth) + i, "fail", "ENOMEM") for i in range(TRIES + 1))))


@pytest.mark.check_all
def test_another_thread_was_faster(one):
    """Another thread has mapped something in the hole before that could be claimed."""
    with one.inject() as inject:
        for fault in last_moves(one):
            check_lost(one, inject.run(fault._replace(how="steal")))


@pytest.mark.check_all
def test_no_way_back(sweep):
    """What is aside does not come back, however often that is tried: the program ends with a line, and does not run on over a hole."""
    one = sweep("start-hugetlb")
    moves = [call for call in one.good.calls if call[0] == "mremap"]
    faults = [Fault(*moves[-1], moves.count(moves[-1]) + i, "fail", "ENOMEM") for i in range(1 + 3 * TRIES)]
    with one.inject() as inject:
        outcome = inject.run(*faults)
    assert outcome.status == 127 and not outcome.looks, outcome
    assert "stays: a failed system call unmapped it" in outcome.err
