# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many processes, and a thief, want the same pages: pages that were free at the pool check are gone when they are taken.

A program runs on small pages then, with the same output and exit status as usual; its text is on huge pages as a whole
or not at all; nothing dies, and afterwards the pool is as full as before (the fixture nothing_left)."""

import collections
import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

import helpers
from hugepages import free_pages
from smaps import read_smaps

# app-nopie: five pages of text and one of read-only data, always.
TEXT, RODATA = 5, 1
APP = TEXT + RODATA
PROCESSES = 200
# Becomes its arguments, with $T_PRELOAD preloaded, when its standard input ends.
GATE = ["sh", "-c", 'read x; LD_PRELOAD=$T_PRELOAD exec "$@"', "sh"]
# Takes so many huge pages until its standard input ends.
THIEF = [sys.executable, "-c", """
import mmap, sys
pages = int(sys.argv[1])
memory = mmap.mmap(-1, pages << 21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)  # MAP_HUGETLB
for page in range(pages):
    memory[page << 21] = 1
print(pages, flush=True)
sys.stdin.read()
"""]

MOVED, SHORT = "text 5 pages hugetlb", "text stays: the huge page pool cannot serve it"


@pytest.fixture
def expected(builder):
    """The program's result without hugeld: (returncode, stdout)."""
    result = helpers.run([builder.executable("nopie")])
    return result.returncode, result.stdout


@contextlib.contextmanager
def waiting(argv, n, env):
    """N processes that become ARGV together, when release() is called; ended afterwards in any case."""
    processes, started = [], []
    read_end, write_end = os.pipe()
    try:
        for _ in range(n):
            processes.append(helpers.start([*GATE, *argv], env, stdin=read_end))
        os.close(read_end)
        started.append(write_end)

        def release():
            os.close(started.pop())

        yield processes, release
    finally:
        for fd in started:
            os.close(fd)
        for process in processes:
            helpers.end_process(process)


def collect(processes):
    """[(returncode, stdout)], and everything they said on stderr."""
    results, errors = [], []
    for process in processes:
        stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
        results.append((process.returncode, stdout))
        errors.append(stderr)
    return results, errors


def say(app, library):
    """What one run of APP says of its moves."""
    return helpers.run_preloaded([app], options="backend=hugetlb,verbose=2", library=library).stderr


def text_and_rodata(pid):
    """Pages of app-nopie's two spans that are on hugetlb, and bytes on thp."""
    mappings = [m for m in read_smaps(pid) if 0x400000 <= m.start < 0x1000000]
    text = sum(m.hugetlb_bytes for m in mappings if "x" in m.permissions)
    rodata = sum(m.hugetlb_bytes for m in mappings if "x" not in m.permissions)
    return text // helpers.HUGE, rodata // helpers.HUGE, sum(m.thp_bytes for m in mappings)


@pytest.mark.check_all
@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("backend", ["hugetlb", pytest.param("auto", marks=pytest.mark.check_all)])
def test_two_hundred_at_once(builder, library, pause_library, pool, thp, expected, backend):
    """They start together against a pool that serves a third of them, and hold their pages until all have stopped."""
    free = PROCESSES // 3 * APP
    pool(free)
    app = builder.executable("nopie")
    env = helpers.environment(T_PRELOAD=f"{library}:{pause_library}", T_PAUSE=app.name,
                              LD_HUGEPAGES_OPTIONS=f"backend={backend},data=off")
    with waiting([app], PROCESSES, env) as (processes, release):
        release()
        helpers.wait_until(lambda: all(helpers.state_of(p.pid) in "TZ" for p in processes), helpers.PATIENCE, "all stopping")
        assert all(helpers.state_of(p.pid) == "T" for p in processes)
        got = [text_and_rodata(p.pid) for p in processes]
        taken = sum(text + rodata for text, rodata, _ in got)
        assert {(text, rodata) for text, rodata, _ in got} <= {(TEXT, RODATA), (TEXT, 0), (0, RODATA), (0, 0)}
        assert free_pages() == free - taken, "pages are neither in the pool nor in a process"
        served = sum(text == TEXT for text, _, _ in got)
        # Those that fail take pages from each other for a moment: how many are served is chance, and it may be none.
        assert served <= free // TEXT, collections.Counter(got)
        if backend == "auto":
            assert any(on_thp for _, _, on_thp in got)
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)
        results, _ = collect(processes)
    assert set(results) == {expected}
    assert MOVED in say(app, library)


@pytest.mark.parametrize("backend", [pytest.param("hugetlb", marks=pytest.mark.check_all(ci=True)), pytest.param("auto", marks=pytest.mark.check_all)])
def test_without_a_pause(builder, library, pool, thp, expected, backend):
    """The same, running through: pages come back while others look for some.  Each forks a child, too."""
    pool(8 * APP)
    app = builder.executable("nopie")
    env = helpers.environment(T_PRELOAD=library, LD_HUGEPAGES_OPTIONS=f"backend={backend},verbose=2")
    with waiting([app], PROCESSES, env) as (processes, release):
        release()
        results, errors = collect(processes)
    assert set(results) == {expected}
    for error in errors:  # how many are served is chance, and it may be none
        assert re.search(r"text 5 pages (hugetlb|thp)", error) or SHORT in error, error
    assert MOVED in say(app, library)


# The rungs of the filling ladder: those above one are taken away.  A library is copied from memory.
RUNGS = {
    "file": ("main", []),
    "process_vm_readv": ("libbig*", []),
    "memory": ("libbig*", ["process_vm_readv"]),
}


@pytest.mark.parametrize("edges, pages, left", [("merge", TEXT, 0), ("merge", TEXT, 3), ("small", 3, 2)])
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.usefixtures("strace")
def test_theft_after_the_check(builder, library, pool, rung, edges, pages, left):
    """The pool check sees enough; then, while the program is held up before it fills, a thief comes, takes all but LEFT
    pages, and stays.  With some left the failure comes half-way, and the filled pages are given back.  edges=small
    has no page that is composed of pieces."""
    pool(16)
    selected, forbidden = RUNGS[rung]
    app = builder.executable("nopie") if selected == "main" else builder.with_library("dso")[0]
    variables = [f"LD_PRELOAD={library}", f"LD_HUGEPAGES={selected}",
                 f"LD_HUGEPAGES_OPTIONS={helpers.ALL_SEGMENTS},backend=hugetlb,verbose=3,edges={edges}"]
    with start_and_end([*hold_up(forbidden), "env", *variables, app]) as process:
        assert f"text needs {pages} pages, 16 available" in process.stderr.readline()
        with start_and_end([*THIEF, 16 - left], stdin=subprocess.PIPE) as taker:
            assert int(taker.stdout.readline()) == 16 - left
            os.kill(process.pid, signal.SIGCONT)
            stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    plain = helpers.run([app])
    assert (process.returncode, stdout) == (plain.returncode, plain.stdout)
    assert SHORT in stderr and "text 3 pages" not in stderr and "text 5 pages" not in stderr, stderr
    assert ("rodata 1 page hugetlb" in stderr) == (left >= RODATA), stderr


def hold_up(forbidden):
    """A command prefix: the first line written, which is the pool check's with verbose=3, stops the program, and FORBIDDEN
    calls fail."""
    faults = ["write:signal=SIGSTOP:when=1", *(f"{call}:error=EPERM" for call in forbidden)]
    injections = [argument for fault in faults for argument in ("-e", f"inject={fault}")]
    return ["strace", "-D", "-o", "/dev/null", "-e", f"trace={','.join(['write', *forbidden])}", *injections]


@contextlib.contextmanager
def start_and_end(argv, **options):
    process = helpers.start(argv, **options)
    try:
        yield process
    finally:
        helpers.end_process(process)
