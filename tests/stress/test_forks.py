# SPDX-License-Identifier: LGPL-2.1-or-later
"""Children of every kind are made while an object comes and goes, and the pool has just the pages that are needed:
no process gets a signal.  T_STRESS=all: 10,000 rounds instead of 500."""

import re

import helpers
from rounds import LONG

ROUNDS = 10000 if LONG else 500


def test_exact_pool(run_side, workshop, pool, way):
    argv = [workshop / "forks", ROUNDS, workshop / "libgap.so"]
    plain = run_side(argv)
    assert (plain.returncode, plain.stderr) == (0, ""), plain
    # With all that it could want, once: the addresses are not random, so the next run wants the same.
    pool(32)
    options = "backend=hugetlb,data=off,segments=text"
    patterns = "main:libgap.so"
    once = run_side([argv[0], 0, argv[2]], way, options, patterns=patterns)
    pages = int(re.search(r"most (\d+)", once.stdout)[1]) * 1024 // helpers.HUGE
    assert pages >= 4, once
    pool(pages)
    moved = run_side(argv, way, options, patterns=patterns, timeout=1800)
    assert (moved.returncode, moved.stderr) == (0, ""), moved
    for result in (plain, moved):
        assert result.stdout.startswith(f"opened {ROUNDS}, wrong 0\n"), result.stdout
    *children, times, most = map(int, re.findall(r"\d+", moved.stdout.splitlines()[1]))
    assert all(children) and times > 0 and most * 1024 == pages * helpers.HUGE, moved.stdout
