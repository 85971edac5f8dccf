# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld survey: what can be enabled for the programs that it sees, and one line for the processes that it could not look at.  The
tests of its samples are in test_samples.py."""

import pathlib
import shlex
import shutil
import subprocess

import pytest

import helpers
from helpers import hugeld
from pagecache import on_small_pages
from watching import FOREVER, QUIET, look, name_of, row, running, survey, ticks


# --- which programs ---


def test_waiting_program(calls):
    """It has executed all of its text, and then none in the window; one line says so."""
    process = helpers.start([calls, "0", "wait"], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        answer = survey("--program", calls)
        assert row(answer, calls)["samples"] == 0 and row(answer, calls)["advice"]["way"] == "nothing"
        result = hugeld("survey", "--seconds", "0.3", "--program", calls)
        assert result.returncode == 1 and result.stdout.startswith(f"{QUIET}\n") and result.stderr == "", result
    finally:
        helpers.end_process(process)


# --- advice ---


def test_advice(calls):
    """The advice is the verdict of inspect, and hugeld takes its command."""
    [file] = helpers.hugeld_json("inspect", calls)["files"]
    with running([calls, FOREVER]):
        _, found = look(calls, "--program", calls)
    advice = found["advice"]
    assert advice["way"] == file["verdict"]["way"] in ("in-place", "image") and advice["hot_share"] > 0.8
    assert advice["pages"] == file["verdict"]["pages"] > 0
    assert advice["command"] == f"hugeld enable {calls}" and advice["reason"] is None


@pytest.mark.check_all
def test_path_with_spaces(roots_folder, calls):
    """A shell reads the command as the same words."""
    program = roots_folder / "a folder's" / "pro grämm\\$x"
    program.parent.mkdir()
    shutil.copy(calls, program)
    on_small_pages(program)
    with running([program, FOREVER]):
        _, found = look(program, "--program", program)
    assert shlex.split(found["advice"]["command"]) == ["hugeld", "enable", str(program)]


# --- processes that cannot be looked at ---


def test_same_number_on_another_device(calls, root, tmp_path):
    """The path leads to another file from here, which has the same inode number on its own file system."""
    inside = tmp_path / "inside"
    inside.mkdir()
    script = f'mount -t tmpfs none {inside} && cp "$1" {inside}/program && stat -c %i {inside}/program > "$2" && shift 2 && exec "$@"'
    alone = ["unshare", "--mount", "sh", "-ec", script, "sh"]
    process = helpers.start([*alone, calls, tmp_path / "first", f"{inside}/program", FOREVER], stdout=subprocess.DEVNULL)
    try:
        helpers.wait_until(lambda: name_of(process.pid) == "program" and ticks(process.pid) > 20)
        _, found = look(f"{inside}/program", "--pid", process.pid, prefix=[*alone, "/bin/bash", tmp_path / "second"])
    finally:
        helpers.end_process(process)
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text()
    assert found["advice"]["command"] is None and "not found by their paths from here" in found["advice"]["reason"]


# --- its cost to the programs ---


def test_it_changes_nothing(calls):
    """The maps of a process are the same afterwards, and it goes on."""
    with running([calls, FOREVER]) as [process]:
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        before, worked = maps.read_text(), ticks(process.pid)
        survey("--program", calls)
        assert maps.read_text() == before
        helpers.wait_until(lambda: ticks(process.pid) > worked + 5)
        assert helpers.state_of(process.pid) in "RS"
