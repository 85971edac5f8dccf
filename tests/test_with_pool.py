# SPDX-License-Identifier: LGPL-2.1-or-later
"""tools/with-pool gives COMMAND its pages, passes its exit status on, and puts the pool back, also when it is killed."""

import os
import pathlib
import signal
import subprocess

import pytest

import helpers
from hugepages import NR_HUGEPAGES as SETTING, free_pages

WITH_POOL = pathlib.Path(__file__).resolve().parents[1] / "tools/with-pool"


def read_pool():
    return int(SETTING.read_text())


@pytest.fixture(autouse=True)
def previous(pool):
    """The pool before the test, to which it must return."""
    value = read_pool()
    yield value
    helpers.wait_until(lambda: read_pool() == value, what="the pool's size before")


@pytest.fixture
def command(previous):
    """The command line that wants two pages more than are free now, and its environment."""
    env = {name: value for name, value in os.environ.items() if name != "WITH_POOL_OUTERMOST"}
    return lambda *argv: ([WITH_POOL, str(free_pages() + 2), "--", *argv], env)


def run(command, *argv):
    argv, env = command(*argv)
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)


def test_pages_are_there_and_go(command, previous):
    outcome = run(command, "cat", SETTING)
    assert outcome.returncode == 0
    assert int(outcome.stdout) == previous + 2
    assert read_pool() == previous


@pytest.mark.parametrize("script, status", [("exit 0", 0), ("exit 77", 77), ("kill -TERM $$", 143), ("kill -KILL $$", 137)])
def test_exit_status(command, script, status):
    assert run(command, "sh", "-c", script).returncode == status


def test_command_that_is_not_there(command):
    assert run(command, "/nowhere/at-all").returncode == 127


def test_standard_input_arrives(command):
    argv, env = command("cat")
    assert subprocess.run(argv, env=env, input=b"through", stdout=subprocess.PIPE, timeout=60).stdout == b"through"


def test_command_changes_the_pool(command, previous):
    assert run(command, "sh", "-c", f"echo {previous + 1} > {SETTING}").returncode == 0
    assert read_pool() == previous


def test_nested(command, previous):
    inner = f"{WITH_POOL} 5 -- true; cat {SETTING}"
    assert int(run(command, "sh", "-c", inner).stdout) == previous + 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_reaches_the_command(command, number):
    argv, env = command("sh", "-c", "echo started; exec sleep 60")
    argv = ["env", f"--default-signal={number}", *argv]  # nohup ignores SIGHUP, which a shell cannot trap then
    with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number


def test_killed(command, previous):
    argv, env = command("sh", "-c", "echo $$; exec sleep 60")
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as process:
        left_alone = int(process.stdout.readline())
        assert read_pool() == previous + 2
        process.kill()
        os.kill(left_alone, signal.SIGKILL)


@pytest.mark.parametrize("arguments", [[], ["x", "--", "true"], ["1", "true"], ["1", "--"], ["-1", "--", "true"]])
def test_wrong_use(arguments):
    outcome = subprocess.run([WITH_POOL, *arguments], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 2
    assert outcome.stderr.count("\n") == 1 and "usage" in outcome.stderr
