# SPDX-License-Identifier: LGPL-2.1-or-later
"""The harness among strangers: while somebody else takes huge pages, gives them back, or sets the pool, no test blames
hugeld (among_strangers.py, which is run here); without that a leak is red."""

import contextlib
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import pytest

import helpers

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.whole
NR_HUGEPAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
STRANGER = "somebody else took huge pages: "
IPC_RMID = 0


@pytest.fixture
def thief(builder):
    source = HERE / "pool/thief.c"
    return builder.once("thief", lambda folder: builder.compile(folder / "thief", "-D_GNU_SOURCE", source))


@pytest.fixture
def among(pool, tmp_path):
    """among(case, act): runs the CASE; when it says so, ACT() is done once, which may give what it has to undo.  Gives
    [(outcome, reason)]."""
    pool(32)
    # The lock is ours.
    env = helpers.environment(T_ACT=tmp_path, T_LEAK=tmp_path / "leak", STRICT=None,
                              WITH_POOL_OUTERMOST=NR_HUGEPAGES.read_text().strip())

    def run(case, act=None):
        if act:
            (tmp_path / "waiting").touch()
        process = helpers.start([sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=no", "-q",
                                 HERE / "among_strangers.py", "-k", case], env)
        with contextlib.ExitStack() as undo:
            undo.callback(helpers.end_process, process)
            if act:
                helpers.wait_until(lambda: (tmp_path / "now").exists(), 60, "the moment")
                undo.enter_context(act())
                (tmp_path / "waiting").unlink()
            stdout, stderr = process.communicate(timeout=120)
        found = re.findall(r"^(PASSED|SKIPPED|FAILED|ERROR) (?:\[\d+\] )?\S+(.*)", stdout, re.M)
        assert found, stdout + stderr
        return found

    yield run
    if (tmp_path / "leak").exists():
        ctypes.CDLL(None).shmctl(int((tmp_path / "leak").read_text()), IPC_RMID, None)


def blames_strangers(found):
    return all(outcome == "PASSED" or outcome == "SKIPPED" and STRANGER in reason for outcome, reason in found)


@contextlib.contextmanager
def holding(thief, pages=3):
    process = helpers.start([thief, pages, "hold"], stdin=subprocess.PIPE)
    try:
        assert int(process.stdout.readline()) == pages
        yield process
    finally:
        helpers.end_process(process)


@contextlib.contextmanager
def unseen():
    """Pages come and go that no process has mapped."""
    stop, file = threading.Event(), os.memfd_create("unseen", os.MFD_HUGETLB)

    def work():
        while not stop.wait(0.02):
            os.posix_fallocate(file, 0, 2 * helpers.HUGE)
            time.sleep(0.02)
            os.ftruncate(file, 0)

    os.posix_fallocate(file, 0, helpers.HUGE)
    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()
    os.close(file)


@contextlib.contextmanager
def setting_the_pool():
    NR_HUGEPAGES.write_text(str(int(NR_HUGEPAGES.read_text()) + 2))
    yield


@pytest.mark.parametrize("case", ["proof", "counters", "nothing"])
def test_takes_some(among, thief, case):
    found = among(case, lambda: holding(thief))
    assert blames_strangers(found) and re.search(r"thief \(\d+\) holds 3 pages", str(found)), found


def test_gives_some_back(among, thief):
    with holding(thief) as process:
        found = among("counters", lambda: contextlib.nullcontext(helpers.end_process(process)))
    assert blames_strangers(found) and re.search(r"thief \(\d+\) gave back 3 pages", str(found)), found


@pytest.mark.parametrize("case", ["counters", "nothing"])
def test_sets_the_pool(among, case):
    found = among(case, setting_the_pool)
    assert blames_strangers(found) and "somebody set vm.nr_hugepages from" in str(found), found


def test_cannot_be_seen(among):
    found = among("counters", unseen)
    assert blames_strangers(found) and "somebody unseen takes huge pages" in str(found), found


def test_takes_and_gives_back_all_the_time(among, thief):
    process = helpers.start([thief, 3, "random"], stdin=subprocess.PIPE)
    found = among("proof or counters or nothing")
    helpers.end_process(process)
    # pool() may have skipped already.
    assert all(outcome in ("PASSED", "SKIPPED") for outcome, _ in found), found


def test_nobody_is_there(among):
    assert {outcome for outcome, _ in among("proof or counters or nothing")} == {"PASSED"}


@pytest.mark.parametrize("neighbour", [False, True])
def test_leak_is_red(among, thief, neighbour):
    """Also beside one who holds the same pages all the time."""
    with holding(thief) if neighbour else contextlib.nullcontext():
        found = among("leak")
    assert [outcome for outcome, _ in found] == ["PASSED", "ERROR"] and "pool" in found[1][1], found
