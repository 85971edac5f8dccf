# SPDX-License-Identifier: LGPL-2.1-or-later
"""Children live, with any use of writable data while not one huge page is free.

On hugetlb a write after fork(2) would need a new page, and where there is none the kernel takes the child's and kills it.
So writable data never goes there."""

import os

import pytest

import helpers
from proof import read_plans
from smaps import read_smaps
from writable import ALL

CHILDREN, THREADS = 50 if os.environ.get("T_VM") else 200, 8  # in a guest the processor is emulated


@pytest.fixture
def run_exhausted(library, pause_library, pool):
    """run_exhausted(argv, options): ARGV stopped after its constructors, for which there were pages enough; the test then
    takes all free ones out of the pool and lets it finish()."""

    def run(argv, options, prefix=()):
        pool(64)
        env = helpers.preload(library, pause_library, options=f"verbose=1,{options}")
        return helpers.paused([*prefix, *argv], env, argv[0].name)

    return run


def hugetlb_bytes(pid, writable):
    """Bytes of PID's writable (or else other) mappings on hugetlb pages."""
    return sum(m.hugetlb_bytes for m in read_smaps(pid) if ("w" in m.permissions) == writable)


def planned_pages(process, app, options, *kinds):
    [plan] = read_plans(process.pid, [app], options).values()
    return plan.pages(*kinds)


@pytest.mark.parametrize("threads", [0, pytest.param(THREADS, marks=pytest.mark.check_all)], ids=["alone", "threads"])
@pytest.mark.parametrize("options", ["backend=hugetlb,data=thp", *(pytest.param(options, marks=pytest.mark.check_all) for options in (
    "backend=hugetlb,data=thp,bss=thp", "backend=thp,data=thp,bss=thp", "backend=auto,data=off"))])
def test_no_signal_ever(program, run_exhausted, pool, thp, options, threads):
    """200 children read and write all of their data, and so does the parent, with and without eight more threads that write
    and others that map, fork and send signals."""
    app = program("nopie")
    with run_exhausted([app, "fork", CHILDREN, threads], options) as process:
        pool(0)
        text = 0 if "backend=thp" in options else planned_pages(process, app, options, *ALL) * helpers.HUGE
        assert (hugetlb_bytes(process.pid, False), hugetlb_bytes(process.pid, True)) == (text, 0)
        returncode, stdout, stderr = process.finish()
    assert f"\nexited {CHILDREN}, wrong 0, killed 0\n" in stdout and (returncode, stderr) == (0, ""), (stdout, stderr)
