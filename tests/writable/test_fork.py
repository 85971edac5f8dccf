# SPDX-License-Identifier: LGPL-2.1-or-later
"""Children live, whatever they do with writable data while not one huge page is free.

On hugetlb a write after fork(2) needs a new page, and when there is none the kernel takes the child's and kills it.  So
the default is thp; data=hugetlb goes back to small pages at the first fork, if no other thread runs."""

import itertools
import os

import pytest

import helpers
from writable import ALL, FIXED

CHILDREN, THREADS = 50 if os.environ.get("T_VM") else 200, 8  # in a guest the processor is emulated
WARNING = ("hugeld: fork with threads: data stays on hugetlb, and a child may die when the pool is empty; "
           "use data=thp\n")
BACK = "hugeld: fork: data is back on small pages\n"


@pytest.fixture
def run_exhausted(library, pause_library, pool):
    """run_exhausted(argv, options): ARGV stopped after its constructors, for which there were pages enough; the test then
    takes all free ones out of the pool and lets it finish()."""

    def run(argv, options, prefix=()):
        pool(64)
        env = helpers.preload(library, pause_library, options=f"verbose=1,{options}")
        return helpers.paused([*prefix, *argv], env, argv[0].name, 120)

    return run


def hugetlb_bytes(pid, writable):
    """Bytes of PID's writable (or else other) mappings on hugetlb pages."""
    return sum(m.hugetlb_bytes for m in helpers.read_smaps(pid) if ("w" in m.permissions) == writable)


def planned_pages(process, app, options, *kinds):
    [plan] = helpers.read_plans(process.pid, [app], options).values()
    return plan.pages(*kinds)


@pytest.mark.parametrize("threads", [0, THREADS], ids=["alone", "threads"])
@pytest.mark.parametrize("options", [f"backend={b},{d}" for b, d in itertools.product(
    ["hugetlb", "thp", "auto"], ["data=thp", "data=off", "data=thp,bss=thp"])] + ["backend=thp,data=hugetlb"])
def test_no_signal_ever(program, run_exhausted, pool, thp, options, threads):
    """200 children read and write all of their data, and so does the parent, with and without eight more threads."""
    app = program("nopie")
    with run_exhausted([app, "fork", CHILDREN, threads], options) as process:
        pool(0)
        text = 0 if "backend=thp" in options else planned_pages(process, app, options, *ALL) * helpers.HUGE
        assert (hugetlb_bytes(process.pid, False), hugetlb_bytes(process.pid, True)) == (text, 0)
        returncode, stdout, stderr = process.finish()
    assert f"\nexited {CHILDREN}, wrong 0, killed 0\n" in stdout and (returncode, stderr) == (0, ""), (stdout, stderr)


@pytest.mark.parametrize("variant, prefix", [("nopie", ()), ("pie", ()), ("aligned", FIXED), ("aligned-pie", FIXED)])
@pytest.mark.parametrize("options", ["data=hugetlb", "data=hugetlb,bss=hugetlb"])
@pytest.mark.parametrize("backend", ["hugetlb", "auto"])
def test_first_fork_moves_back(program, run_exhausted, pool, variant, prefix, backend, options):
    """With one thread: the first fork brings writable data back to small pages, the pool gets its pages, all live."""
    app = program(variant)
    with run_exhausted([app, "fork", CHILDREN, 0, "stop"], f"backend={backend},{options}", prefix) as process:
        pool(0)
        pages = planned_pages(process, app, options, "data", "bss")
        assert hugetlb_bytes(process.pid, True) == pages * helpers.HUGE > 0
        text = hugetlb_bytes(process.pid, False)
        total, *_ = helpers.pool_counts()
        process.resume()
        helpers.wait_until(lambda: helpers.state_of(process.pid) == "T", what="the first fork")
        assert (hugetlb_bytes(process.pid, True), hugetlb_bytes(process.pid, False)) == (0, text)
        assert helpers.free_pages() == pages and helpers.pool_counts()[0] == total
        assert not [m for m in helpers.read_smaps(process.pid) if m.is_hugetlb and "w" in m.permissions]
        pool(0)
        returncode, stdout, stderr = process.finish()
    assert f"\nexited {CHILDREN}, wrong 0, killed 0\n" in stdout and returncode == 0, (stdout, stderr)
    assert stderr == BACK


def test_moving_back_fails(program, pool, library, strace, tmp_path):
    """Each mremap fails once, those of the handler among them: what is not moved back stays on huge pages, unchanged."""
    pool(64)
    argv = [program("nopie"), "fork", 3, 0]
    plain = helpers.run(argv)
    options = f"backend=hugetlb,data=hugetlb,bss=hugetlb,verbose=1,only={argv[0].name}"
    env = helpers.preload(library, options=options)
    helpers.run(["strace", "-e", "trace=mremap", "-o", tmp_path / "trace", *argv], env)
    calls = (tmp_path / "trace").read_text().count("mremap(")
    stayed = 0
    for when in range(1, calls + 1):
        result = helpers.run([*strace("mremap", "ENOMEM", when), *argv], env)
        assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), when
        stayed += "hugeld: fork: data stays on hugetlb" in result.stderr
    assert 2 <= stayed < calls


def test_threads_are_warned_of(program, run_exhausted, pool):
    """data=hugetlb with threads cannot be made safe; it is said.  Whether children live is the kernel's affair."""
    app = program("nopie")
    with run_exhausted([app, "fork", 8, THREADS], "backend=hugetlb,data=hugetlb") as process:
        pool(0)
        _, stdout, stderr = process.finish()
    assert WARNING in stderr and BACK not in stderr
    assert stdout.count("exited") == 1, "the parent itself lives"


@pytest.mark.parametrize("options", ["data=thp", "data=off", "data=thp,bss=thp", "data=hugetlb",
                                     "data=hugetlb,bss=hugetlb"])
@pytest.mark.parametrize("variant, prefix", [("nopie", FIXED), ("pie", ())])
def test_other_ways(program, run_exhausted, pool, thp, variant, prefix, options):
    """vfork, posix_spawn, system, popen, double fork, children of children, daemon; and where no handler is needed,
    _Fork and clone, which call none."""
    app = program(variant)
    raw = [] if "hugetlb" in options else ["raw"]
    plain = helpers.run([app, "children", *raw])
    assert plain.returncode == 0 and "\ndaemon: right\n" in plain.stdout and "WRONG" not in plain.stdout
    with run_exhausted([app, "children", *raw], f"backend=hugetlb,{options}", prefix) as process:
        pool(0)
        returncode, stdout, stderr = process.finish()
    assert (returncode, stdout, stderr) == (0, plain.stdout, "" if raw else BACK)


def test_shared_memory_children_keep_it(program, run_exhausted, pool):
    """vfork and posix_spawn copy nothing: the data stays on huge pages."""
    app = program("nopie")
    with run_exhausted([app, "spawn"], "backend=hugetlb,data=hugetlb") as process:
        pool(0)
        before = hugetlb_bytes(process.pid, True)
        process.resume()
        helpers.wait_until(lambda: helpers.state_of(process.pid) == "T", what="the program's own stop")
        assert hugetlb_bytes(process.pid, True) == before > 0
        returncode, stdout, stderr = process.finish()
    assert (returncode, stderr) == (0, "") and "WRONG" not in stdout
