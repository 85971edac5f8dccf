# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects move while others use the same memory who are no threads of the process that opens them: a process made by
clone(CLONE_VM), the parent of a vfork child.  At no moment is there a hole, or other text; not on the way back either."""

import platform
import re

import pytest

import helpers

OPENED = 3
BACKENDS = [pytest.param("hugetlb", marks=pytest.mark.check_all), "thp"]


@pytest.fixture(params=BACKENDS)
def opened(workshop, library, pool, thp, request):
    """opened(way, nth): the numbers that share.c prints, and the lines of hugeld."""

    def run(way, nth=0):
        pool(64)
        options = f"backend={request.param},segments=text+rodata,data=off,verbose=1"
        env = helpers.preload(library, patterns="libtable1*", options=options)
        argv = [workshop / "share", way, str(nth), *[workshop / "libtable1.so"] * OPENED]
        result = helpers.run(argv, env=env)
        found = {name: int(number) for name, number in re.findall(r"(\w+) (\d+)", result.stdout)}
        assert result.returncode == 0 and found["status"] == 0, f"{result.stdout}{result.stderr}"
        return found, result.stderr

    return run


@pytest.mark.parametrize("way", ["clone", "vfork", "alone"])
def test_no_hole(opened, way):
    found, stderr = opened(way)
    assert (found["opened"], found["wrong"], found["holes"]) == (OPENED, 0, 0) and stderr == "", stderr
    assert found["looked"] > 50


@pytest.mark.skipif(platform.machine() != "x86_64", reason="share.c knows the registers of x86-64")
@pytest.mark.parametrize("way", ["clone", "vfork"])
def test_no_hole_on_the_way_back(opened, way):
    """One mremap into place fails, the first one's or a later one's: all of the object stays.  (The probe's comes before them.)"""
    spans_failed = 0
    for nth in range(1, 6):
        found, stderr = opened(way, nth)
        assert (found["opened"], found["wrong"], found["holes"]) == (OPENED, 0, 0), f"{nth}: {found} {stderr}"
        if "vm.max_map_count" not in stderr:
            continue
        assert found["failed"] == OPENED
        for kind in ("text", "rodata"):
            assert stderr.count(f"{kind} stays: vm.max_map_count is nearly reached") == OPENED, stderr
        spans_failed += 1
    assert spans_failed == 2


@pytest.mark.skipif(platform.machine() != "x86_64", reason="share.c knows the registers of x86-64")
@pytest.mark.parametrize("way, reason", [("poke", "it was changed in memory"), ("seal", "one of its mappings is sealed")])
def test_changed_meanwhile(opened, way, reason):
    """The change holds and the object stays.  A part that is sealed or protected is a mapping of its own, and no sign of loss."""
    if way == "seal" and tuple(map(int, platform.release().split(".")[:2])) < (6, 10):
        pytest.skip("mseal(2) (Linux 6.10)")
    found, stderr = opened(way)
    assert (found["opened"], found["wrong"], found["holes"]) == (OPENED, 0, 0)
    assert stderr.count(f"text stays: {reason}") == OPENED, stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="share.c knows the registers of x86-64")
def test_protected_meanwhile_and_failed(opened):
    """The same where a call that brings new memory into place fails, whichever."""
    for nth in range(1, 6):
        found, stderr = opened("protect", nth)
        assert (found["opened"], found["wrong"], found["holes"]) == (OPENED, 0, 0), f"{nth}: {found} {stderr}"


def test_locked(opened):
    """MREMAP_DONTUNMAP would unlock what is beside the spans."""
    found, stderr = opened("locked")
    assert (found["opened"], found["wrong"], found["holes"]) == (OPENED, 0, 0)
    assert stderr.count("text stays: it is locked or mapped in a special way") == OPENED, stderr
