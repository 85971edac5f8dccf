# SPDX-License-Identifier: LGPL-2.1-or-later
"""tools/with-pool gives COMMAND its pages, passes its exit status on, and puts the pool back, also when it is killed."""

import fcntl
import os
import pathlib
import signal
import subprocess
import time

import pytest

import helpers
from hugepages import NR_HUGEPAGES as SETTING

WITH_POOL = pathlib.Path(__file__).resolve().parents[1] / "tools/with-pool"


def read_pool():
    return int(SETTING.read_text())


@pytest.fixture(autouse=True)
def previous(pool):
    """The pool before the test, to which it must return."""
    value = read_pool()
    yield value
    helpers.wait_until(lambda: read_pool() == value, what="the pool's size before")


def run(*command):
    return subprocess.run([WITH_POOL, "2", "--", *command], capture_output=True, text=True, timeout=helpers.PATIENCE)


def test_pages_are_there_and_go(previous):
    outcome = run("cat", SETTING)
    assert outcome.returncode == 0
    assert int(outcome.stdout) == previous + 2
    assert read_pool() == previous


@pytest.mark.parametrize("script, status", [("exit 0", 0), ("exit 77", 77), ("kill -TERM $$", 143), ("kill -KILL $$", 137)])
def test_exit_status(script, status):
    assert run("sh", "-c", script).returncode == status


def test_side_by_side(previous):
    """Neither waits for the other, and each takes away what it has added."""
    with subprocess.Popen([WITH_POOL, "2", "--", "cat", SETTING, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert int(process.stdout.readline()) == previous + 2
        assert int(run("cat", SETTING).stdout) == previous + 4
        assert read_pool() == previous + 2
        process.stdin.close()
        assert process.wait(timeout=helpers.PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_reaches_the_command(number):
    argv = ["env", f"--default-signal={number}",  # nohup ignores SIGHUP, which a shell cannot trap then
            WITH_POOL, "2", "--", "sh", "-c", "echo started; exec sleep 60"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=helpers.PATIENCE) == 128 + number


def test_killed(previous):
    with subprocess.Popen([WITH_POOL, "2", "--", "sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE) as process:
        left_alone = int(process.stdout.readline())
        assert read_pool() == previous + 2
        process.kill()
        os.kill(left_alone, signal.SIGKILL)


def test_signals_while_the_pages_go(previous):
    """A signal that comes while they are taken away takes no others away."""
    script = ["sh", "-c", "echo $$; exec sleep 60"]
    with subprocess.Popen([WITH_POOL, "4", "--", "cat"], stdin=subprocess.PIPE) as beside, \
         subprocess.Popen([WITH_POOL, "2", "--", *script], stdout=subprocess.PIPE) as process, open(SETTING) as setting:
        command = int(process.stdout.readline())
        helpers.wait_until(lambda: read_pool() == previous + 6, what="the pages")
        fcntl.flock(setting, fcntl.LOCK_EX)
        os.kill(command, signal.SIGKILL)
        helpers.wait_until(lambda: not os.path.exists(f"/proc/{command}"), what="the command's end")
        for _ in range(20):
            process.terminate()
            time.sleep(0.01)
        fcntl.flock(setting, fcntl.LOCK_UN)
        process.wait(timeout=helpers.PATIENCE)
        assert read_pool() == previous + 4
        beside.stdin.close()
