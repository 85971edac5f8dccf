# SPDX-License-Identifier: LGPL-2.1-or-later
"""The harness while the pool changes: while another process takes huge pages, no test blames hugeld (while_pool_changes.py, which is run
here); a leak of ours is red all the same."""

import contextlib
import ctypes
import pathlib
import re
import subprocess
import sys

import pytest

import helpers

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.check_all
NR_HUGEPAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
IPC_RMID = 0


@pytest.fixture
def among(pool, tmp_path):
    """among(case, act): runs the CASE; when it says so, ACT() is done once.  Gives [(outcome, reason)]."""
    pool(32)
    # The lock is ours.
    env = helpers.environment(T_ACT=tmp_path, T_LEAK=tmp_path / "leak", STRICT=None,
                              WITH_POOL_OUTERMOST=NR_HUGEPAGES.read_text().strip())

    def run(case, act=lambda: None):
        (tmp_path / "waiting").touch()
        process = helpers.start([sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=no", "-q",
                                 HERE / "while_pool_changes.py", "-k", case], env)
        try:
            helpers.wait_until(lambda: (tmp_path / "now").exists(), 60, "the moment")
            act()
            (tmp_path / "waiting").unlink()
            stdout, stderr = process.communicate(timeout=120)
        finally:
            helpers.end_process(process)
        found = re.findall(r"^(PASSED|SKIPPED|FAILED|ERROR) (?:\[\d+\] )?\S+(.*)", stdout, re.M)
        assert found, stdout + stderr
        return found

    yield run
    if (tmp_path / "leak").exists():
        ctypes.CDLL(None).shmctl(int((tmp_path / "leak").read_text()), IPC_RMID, None)


@pytest.fixture
def thief(builder):
    """thief(): another process, which takes three pages and keeps them until the test ends."""
    source = HERE / "pool/thief.c"
    program = builder.once("thief", lambda folder: builder.compile(folder / "thief", "-D_GNU_SOURCE", source))
    with contextlib.ExitStack() as stack:
        def take():
            process = helpers.start([program, 3, "hold"], stdin=subprocess.PIPE)
            stack.callback(helpers.end_process, process)
            assert int(process.stdout.readline()) == 3

        yield take


def test_other_process_takes_some(among, thief):
    found = among("counters", thief)  # the test and its end
    assert {outcome for outcome, _ in found} == {"SKIPPED"}, found
    assert all(re.search(r"another process took huge pages: thief \(\d+\) holds 3 pages", reason) for _, reason in found), found


@pytest.mark.parametrize("neighbour", [False, True])
def test_leak_is_red(among, thief, neighbour):
    """A leak is found also beside a process that holds the same pages all the time."""
    if neighbour:
        thief()
    found = among("leak")
    assert [outcome for outcome, _ in found] == ["PASSED", "ERROR"] and "pool" in found[1][1], found
