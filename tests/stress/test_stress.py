# SPDX-License-Identifier: LGPL-2.1-or-later
"""stress-ng's classes vm, fork and signal have the same verdicts as without hugeld while objects come and go
beside them (stress.py).  T_STRESS=all: all stressors, ten minutes a class, on thp too."""

import shutil

import pytest

import stress
from rounds import LONG

SECONDS = 600 if LONG else 0
MEMORY = 4 << 30


@pytest.fixture(scope="module")
def plainly(shared_folder, workshop):
    """plainly(name, prefix): the class without hugeld, once for both ways."""
    results = {}

    def run(name, prefix):
        if not shutil.which("stress-ng"):
            pytest.skip("stress-ng is not installed")
        if name not in results:
            results[name] = stress.run_class(name, workshop, shared_folder, prefix, ([], {}), SECONDS)
        return results[name]

    return run


@pytest.mark.check_all
@pytest.mark.parametrize("backend", ["hugetlb", "thp"] if LONG else ["hugetlb"])
@pytest.mark.parametrize("name", stress.CLASSES)
def test_class(plainly, library, shared_folder, workshop, cgroup, pool, thp, name, backend, way):
    pool(200)
    # The machine's memory is not stress-ng's.
    prefix = cgroup("memory", v2=("memory.max", MEMORY), v1=("memory.limit_in_bytes", MEMORY))
    plain = plainly(name, prefix)
    moved = stress.run_class(name, workshop, shared_folder, prefix, stress.ways(way, backend, library), SECONDS)
    assert plain.verdicts == moved.verdicts, f"{plain.verdicts}\n\n{moved.verdicts}\n\n{moved.log}"
    assert "passed" in plain.verdicts and plain.opened > 0 and plain.moved == 0
    assert moved.opened > 0 and moved.moved > 0, moved
    assert "opener:" not in moved.log
