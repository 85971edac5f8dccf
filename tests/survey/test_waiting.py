# SPDX-License-Identifier: LGPL-2.1-or-later
"""What looks at many processes leaves out those that keep it waiting, says so in one line, and shows the others."""

import contextlib
import json
import shutil
import subprocess

import pytest

import helpers
from calls import build_calls
from watching import FOREVER, running
from waiting import beside, is_said, pipe

USER = 65534

# Is called waiting-test, as root or as another user.
NAMED = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'waiting-test'); print(flush=True); sys.stdin.read()"


@contextlib.contextmanager
def named(*users):
    """Their numbers."""
    with contextlib.ExitStack() as stack:
        pids = []
        for user in users:
            process = helpers.start([*helpers.become(user), "/usr/bin/python3", "-c", NAMED] if user else ["/usr/bin/python3", "-c", NAMED],
                                    stdin=subprocess.PIPE)
            stack.callback(helpers.end_process, process)
            assert process.stdout.readline() == "\n", process.stderr.read()
            pids.append(process.pid)
        yield pids


def shown(result):
    """The numbers of those of which `hugeld status` draws a map."""
    return [int(line.split()[0]) for line in result.stdout.splitlines() if line.endswith(" python3") or line.endswith(" waiting-test")]


@pytest.mark.parametrize("at", ["open", "read"])
def test_status_by_name(root, tmp_path, at):
    """Of root's processes one at a time is left out."""
    with named(0, 0, 0, 0) as pids, pipe(tmp_path, at) as path:
        result = helpers.run([*beside(path, *pids[:3]), helpers.HUGELD, "status", "waiting-test"])
        assert shown(result) == [pids[3]] and is_said(result, "shown", pids[:1], more=2), result


def test_other_processes_of_the_user(root, tmp_path):
    """One wait for all of a user's, so that no number of them stops anything; others' are shown."""
    with named(USER, USER, USER, 0, USER) as pids, pipe(tmp_path) as path:
        result = helpers.run([*beside(path, *pids[:3]), helpers.HUGELD, "status", "waiting-test"])
        assert shown(result) == [pids[3]] and is_said(result, "shown", pids[:1], USER), result


HUGE = """
import mmap, sys
memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE)
memory.write(bytes(4 << 20))
memory.madvise(25)  # MADV_COLLAPSE
print(flush=True)
sys.stdin.read()
"""


def test_status_of_all(root, tmp_path):
    huge = helpers.start(["/usr/bin/python3", "-c", HUGE], stdin=subprocess.PIPE)
    try:
        assert huge.stdout.readline() == "\n", huge.stderr.read()
        with named(USER) as pids, pipe(tmp_path) as path:
            result = helpers.run([*beside(path, *pids), helpers.HUGELD, "status", "--all"])
            assert f"{huge.pid:8}  python3" in result.stdout and is_said(result, "shown", pids, USER), result
    finally:
        helpers.end_process(huge)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Two files that execute much text."""
    folder = tmp_path_factory.mktemp("programs")
    first = build_calls(folder / "first", "-no-pie", mib=6)
    second = folder / "second"
    shutil.copy(first, second)
    return first, second


@pytest.mark.parametrize("at", ["open", "read"])
@pytest.mark.parametrize("way", [["--seconds", "6"], ["--seconds", "1", "--exact"]], ids=["samples", "exact"])
def test_survey(root, tmp_path, curve, programs, way, at):
    with running(*([program, FOREVER] for program in programs)) as processes, pipe(tmp_path, at) as path:
        first = processes[0].pid
        result = helpers.run([*beside(path, first), helpers.HUGELD, "survey", "--json", *way])
        assert result.returncode == 0 and is_said(result, "counted", [first]), result
        rows = {row["path"]: row for row in json.loads(result.stdout)["programs"]}
        assert rows[str(programs[1])]["hot_bytes"] > 0
        assert rows.get(str(programs[0]), {"hot_bytes": 0})["hot_bytes"] == 0
