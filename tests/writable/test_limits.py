# SPDX-License-Identifier: LGPL-2.1-or-later
"""Under limits and policies that an earlier constructor or the administrator set, the program does the same as without
hugeld; parts that cannot move stay as they were, and the reason is printed."""

import pytest

from surroundings import setting
from writable import ALL, FIXED

NO_MEMORY = "no address space or memory for the copy; free memory, or raise RLIMIT_AS, RLIMIT_DATA or vm.max_map_count"
NO_THP = "transparent huge pages are disabled for this process (PR_SET_THP_DISABLE)"
NO_EXECUTE = "a policy forbids making written memory executable"
LOCKED = "it is locked or mapped in a special way"
DATA = (*ALL, "data")

# name -> an earlier constructor's steps, options, the kinds that move all the same, the reason (for each kind) of planned
# spans that don't
LIMITS = {
    "RLIMIT_DATA, nothing": ("data:100000", "", (), NO_MEMORY),
    "RLIMIT_DATA, nothing on thp": ("data:100000", "backend=thp", (), NO_MEMORY),
    "RLIMIT_DATA, no text": ("data:600000", "", ("rodata",), NO_MEMORY),
    "RLIMIT_DATA, enough": ("data:1800000", "backend=hugetlb", DATA, None),
    "RLIMIT_AS, nothing": ("as:100000", "", (), NO_MEMORY),
    "RLIMIT_AS, no text": ("as:600000", "backend=hugetlb,segments=text", (), NO_MEMORY),
    "RLIMIT_AS, no commit": ("as:1200000", "backend=hugetlb", (), NO_MEMORY),
    "RLIMIT_AS, enough": ("as:6000000", "backend=hugetlb", DATA, None),
    # MCL_FUTURE would lock the copies, but never locks hugetlb memory.
    "mlockall": ("lock", "", ALL, LOCKED),
    "mlockall, hugetlb": ("lock", "backend=hugetlb", ALL, LOCKED),
    "mlockall, thp": ("lock", "backend=thp", (), LOCKED),
    "mdwe": ("mdwe", "backend=hugetlb", DATA, None),
    "mdwe, thp": ("mdwe", "backend=thp", ("rodata", "data"), NO_EXECUTE),
    "no thp": ("no-thp", "", ALL, NO_THP),
    "no thp, hugetlb": ("no-thp", "backend=hugetlb", ALL, NO_THP),
    "no thp, thp": ("no-thp", "backend=thp", (), NO_THP),
    "no thp, bss": ("no-thp", "data=off,bss=thp", ALL, NO_THP),
}


def check(outcome, moved, reason):
    """Every planned kind that did not move has its line."""
    planned = {s.kind for s in outcome.plans.popitem()[1].spans}
    for kind in planned - set(moved):
        assert f"{kind} stays: {reason}" in outcome.stderr, outcome.stderr
    assert outcome.stderr.count(" stays: ") == len(planned - set(moved)), outcome.stderr


@pytest.mark.parametrize("limit", ["as", "data"])
@pytest.mark.parametrize("pages, backend", [(0, "thp"), (16, "hugetlb")])
def test_limit_beside_threads(program, compare, pool, thp, limit, pages, backend):
    """A copy takes nothing of RLIMIT_AS or RLIMIT_DATA once it is in place; but before, a thread could miss what it takes."""
    pool(pages)
    for more, moved in ((f"{limit}:40000000,", ()), ("", ALL)):
        outcome = compare([program("nopie"), "check"], moved, f"fill,sbrk:8000,{more}threads:2", FIXED, options="verbose=1", backend=backend)
        assert ("text stays: private copies count against its memory limit" in outcome.stderr) == (not moved), outcome.stderr


@pytest.mark.parametrize("variant, prefix", [("nopie", FIXED), ("pie", ())])
@pytest.mark.parametrize("name", LIMITS)
def test_limit(program, compare, pool, thp, name, variant, prefix):
    before, options, moved, reason = LIMITS[name]
    pool(64)
    backend = "thp" if "backend=thp" in options else "hugetlb"
    outcome = compare([program(variant), "check"], moved, f"fill,sbrk:8000,{before}", prefix,
                      options=f"verbose=1,data=thp,{options}", backend=backend)
    check(outcome, moved, reason)


@pytest.mark.guest
@pytest.mark.check_all
@pytest.mark.parametrize("options", ["", "backend=thp", "backend=hugetlb,bss=thp"])
def test_overcommit_memory(program, compare, pool, thp, root, options):
    """vm.overcommit_memory=2: every private writable mapping counts, also the scratch one.  Most of CommitLimit is left here."""
    pool(64)
    with setting("/proc/sys/vm/overcommit_memory", "2"):
        outcome = compare([program("pie"), "check"], DATA, "sbrk:8000", FIXED, options=f"data=thp,{options}",
                          backend="thp" if options == "backend=thp" else "hugetlb")
    assert outcome.stderr == ""


@pytest.mark.parametrize("variant, prefix", [("nopie", FIXED), ("pie", ())])
@pytest.mark.parametrize("options", ["", "backend=hugetlb,bss=thp", "backend=thp,bss=thp"])
def test_threads(program, compare, pool, thp, variant, prefix, options):
    """Threads write to the data while hugeld is at work: data stay, with the reason; bss is only advised."""
    pool(64)
    backend = "thp" if "backend=thp" in options else "hugetlb"
    outcome = compare([program(variant), "check"], ALL, "fill,malloc:8000,threads:4", prefix,
                      options=f"verbose=1,data=thp,{options}", backend=backend)
    check(outcome, (*ALL, "bss"), "threads that could write to it are already running; preload hugeld as the last object, or use hugeld run --via=ldso")
