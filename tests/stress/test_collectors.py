# SPDX-License-Identifier: LGPL-2.1-or-later
"""Code that looks at stacks from a signal handler finds the thread's own there while objects come and go: a
collector that reads them (libgc), one that preempts and profiles on alternate stacks (Go), and programs of ours that
compare each stack pointer.  T_STRESS=all: twenty times as many rounds."""

import re

import pytest

from rounds import LONG

ROUNDS = 2000 if LONG else 100


@pytest.fixture(params=["hugetlb", "thp"])
def backend(request, pool, thp):
    pool(32)
    return request.param


def check(plain, moved, stdout):
    """Both have STDOUT as their first line."""
    for result in (plain, moved):
        assert result.returncode == 0 and result.stdout.partition("\n")[0] == stdout, (result.stdout, result.stderr)


def test_libgc(run_side, workshop, collected, count_moves, way, backend):
    """Four threads' lists, of which only stacks know, lose nothing in any collection."""
    argv = [collected, ROUNDS, workshop / "libtable1.so"]
    moved = run_side(argv, way, f"backend={backend},verbose=2", timeout=1800)
    check(run_side(argv), moved, f"opened {ROUNDS}, objects {600 * ROUNDS}, wrong 0, lost 0")
    assert int(re.search(r"collections (\d+)", moved.stdout)[1]) > 1
    assert count_moves(moved.stderr, "libtable1.so", backend) > 0, moved.stderr


def test_stacks(run_side, workshop, count_moves, way, backend):
    """Every handler, with and without SA_ONSTACK, runs where it should and interrupted a thread on its own stack."""
    argv = [workshop / "stacks", ROUNDS, workshop / "libtable1.so", workshop / "libtable2.so"]
    moved = run_side(argv, way, f"backend={backend},verbose=2", timeout=1800)
    check(run_side(argv), moved, f"opened {ROUNDS} {ROUNDS}, foreign 0, changed 0")
    on_alternate, on_own, _ = map(int, re.search(r"signals (\d+) (\d+) (\d+)", moved.stdout).groups())
    assert on_alternate > 0 and on_own > 0
    assert count_moves(moved.stderr, "libtable2.so", backend) > 0, moved.stderr


@pytest.mark.check_all
def test_goroutines(run_side, workshop, goroutines, count_moves, way, backend):
    """Go collects, preempts (SIGURG) and profiles (SIGPROF) while cgo opens and closes."""
    argv = [goroutines, ROUNDS, workshop / "libtable1.so", workshop / "libtable2.so"]
    moved = run_side(argv, way, f"backend={backend},verbose=2", timeout=1800)
    check(run_side(argv), moved, f"opened {ROUNDS} {ROUNDS}, wrong 0")
    assert count_moves(moved.stderr, "libtable1.so", backend) > 0, moved.stderr
