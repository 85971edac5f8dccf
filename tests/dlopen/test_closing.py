# SPDX-License-Identifier: LGPL-2.1-or-later
"""dlclose gives the pages back, opening again moves again, nothing is left of hundreds of rounds, and no child dies of them."""

import os
import re

import pytest

import helpers

# 10000 were run once (tests/README.md); a leak of one mapping, descriptor or page in each round shows in these.
ROUNDS = os.environ.get("ROUNDS", "400")


@pytest.mark.check_all
def test_rounds(workshop, library, way, pool):
    pool(64)
    dsos = [workshop / f"lib{name}.so" for name in ("table1", "table2", "aligned")]
    command, env = way(library, "lib*", "backend=hugetlb,data=off")
    process = helpers.start([*command, workshop / "open-close", ROUNDS, *dsos], env)
    stdout, stderr = process.communicate(timeout=1800)
    helpers.end_process(process)
    assert process.returncode == 0, stderr
    numbers = [int(n) for n in re.findall(r"\d+", stdout)]
    start, end, (least, most) = numbers[:3], numbers[3:6], numbers[6:]
    assert start[:2] == end[:2], stdout
    assert end[2] - start[2] < 512, stdout
    # The address of a DSO decides whether a boundary page counts: two or three pages of text, one or two of data.
    assert least >= 3 * 3 * 2048 and most <= 3 * 6 * 2048, stdout
    # The fixture nothing_left proves that the pool has its pages back.


@pytest.mark.check_all
def test_pages_come_back_at_once(workshop, later, pool):
    """With room for one DSO only, each open gets the pages that the close before gave back: the host does not fork, since children
    have them a little longer."""
    pool(6)
    argv = [workshop / "open-close", "calm", 20, workshop / "libtable1.so"]
    process = later(argv, "lib*", "backend=hugetlb,verbose=1,data=off")
    stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    assert process.returncode == 0 and stderr == ""
    assert int(re.search(r"least (\d+)", stdout)[1]) >= 3 * 2048


def test_children_and_an_exact_pool(workshop, library, pool, way):
    """Threads fork while a library comes and goes, and the pool has just the pages that are needed: no process gets a signal."""
    def run(*words):
        command, env = way(library, "libgap.so", "backend=hugetlb,data=off,segments=text")
        result = helpers.run([*command, workshop / "open-close", *words, workshop / "libgap.so"], env, timeout=600)
        assert (result.returncode, result.stderr) == (0, ""), result
        return int(re.search(r"most (\d+)", result.stdout)[1]) * 1024 // helpers.HUGE

    pool(32)
    pages = run("calm", "1")
    assert pages >= 2
    pool(pages)
    assert run("100") == pages
