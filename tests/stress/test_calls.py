# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's answers to a program that maps, moves, protects, forks and traces, beside its own text and in it, are
the same as without hugeld; but hugetlb refuses a part of a huge page with EINVAL, as doc/limits.md says, and does not
grow. (LTP has programs for each of these calls and is not packaged, so these are our own.)"""

import pytest

FAMILIES = ["mmap", "munmap", "mremap", "madvise", "mprotect", "brk", "fork", "ptrace", "userfaultfd"]


def expect(plain, backend):
    """The output that a program whose text is on BACKEND should give where it prints PLAIN otherwise."""
    if backend == "thp":
        return plain
    return "".join(line.rpartition(": ")[0] + ": EINVAL\n" if line.startswith(("4k ", "growing ")) else line
                   for line in plain.splitlines(True))


@pytest.mark.check_all
@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family(run_side, workshop, count_moves, pool, thp, family, backend, way):
    pool(32)
    argv = [workshop / "calls", family]
    plain = run_side(argv)
    assert plain.returncode == 0 and "WRONG" not in plain.stdout and "sum " in plain.stdout, plain
    moved = run_side(argv, way, f"backend={backend},verbose=2", patterns="main")
    assert (moved.returncode, moved.stdout) == (0, expect(plain.stdout, backend)), moved
    assert count_moves(moved.stderr, "calls", backend) > 0, moved.stderr
