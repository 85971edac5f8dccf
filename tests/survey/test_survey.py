# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld survey: what can be enabled for the programs that it sees, and one line for the processes that it could not look at.  The
tests of its samples are in test_samples.py."""

import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess

import pytest

import helpers
from calls import build_calls
from helpers import hugeld, one_line
from watching import FOREVER, MIB, QUIET, look, name_of, row, running, survey, ticks


# --- wrong use ---


@pytest.mark.parametrize("arguments", [
    ["--seconds", "0"], ["--seconds", "x"], ["--seconds", "-1"], ["--seconds", "nan"], ["--seconds", "1e9"], ["--seconds"],
    ["--program", "/no/such/program"], ["--program"], ["--exact"], ["--calibrate"],
    ["--report", "/no-such-folder/x.html"], ["--no-such-option"], ["--pid", "x"], ["--pid", "0"], ["true"], ["--", "true"],
    ["--pid", "1", "--all-users"],
], ids=" ".join)
def test_survey_wrong_use(arguments):
    one_line(hugeld("survey", *arguments), 2)


def test_survey_32_bit(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\1" + pathlib.Path("/bin/true").read_bytes()[5:])
    program.chmod(0o755)
    one_line(hugeld("survey", "--program", program), 2, "it is a 32-bit program")


# --- which programs ---


def test_two_processes(calls):
    """They are one program, and their text is counted once."""
    with running([calls, FOREVER], [calls, FOREVER]):
        answer, found = look(calls, "--program", calls)
    assert found["processes"] == 2 and len(answer["programs"]) == 1 and answer["processes"]["watched"] == 2
    assert found["likely_hot_bytes"] <= found["text_bytes"] < 20 * MIB
    assert 0.1 < found["cpu_share"] < os.cpu_count() + 0.5


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


@pytest.mark.check_all
def test_filter(calls):
    with running([calls, FOREVER], ["sleep", "60"]) as (_, sleeping):
        answer = survey("--program", calls, "--program", "sleep")
        names = {p["path"]: p for p in answer["programs"]}
        assert set(names) >= {calls} and names[os.readlink(f"/proc/{sleeping.pid}/exe")]["processes"] >= 1


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
    with running([program, FOREVER]):
        _, found = look(program, "--program", program)
    assert shlex.split(found["advice"]["command"]) == ["hugeld", "enable", str(program)]


def test_static_program(roots_folder):
    """Nothing can be preloaded: only the executable itself can be shared."""
    static = build_calls(roots_folder / "static", "-static", "-Wl,-z,max-page-size=4096")
    with running([static, FOREVER]):
        _, found = look(static, "--program", static)
    assert found["advice"]["way"] in ("in-place", "image") and found["advice"]["command"] == f"hugeld enable {static}"


@pytest.mark.check_all
def test_small_text(tmp_path):
    """More text than 2 MiB, but none that fills a huge page: the answer says so with the reason."""
    source = tmp_path / "many.c"
    source.write_text("int main(void) { return 0; }\n")
    folder = helpers.ROOT / "harness"
    libraries = []
    for i in range(6):
        library = tmp_path / f"libpart{i}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-DTEXT_MIB=1", "-Wl,-Bsymbolic", "-o", library, folder / "text.S"],
                       check=True, timeout=60)
        libraries.append(library)
    main = tmp_path / "many"
    source.write_text("#include <dlfcn.h>\n#include <stdint.h>\nint main(int n, char **v) { volatile uint64_t r = 0; char *at[8];\n"
                      "for (int i = 1; i < n; i++) at[i] = dlsym(dlopen(v[i], RTLD_NOW), \"text_start\");\n"
                      "for (;;) for (int i = 1; i < n; i++) for (uint64_t f = 0; f < 256; f++)\n"
                      "r = ((uint64_t(*)(uint64_t))(at[i] + f * 4096 + (f * 7 % 61 + 1) * 64))(r); }\n")
    subprocess.run(["gcc", "-O1", "-o", main, source], check=True, timeout=60)
    process = helpers.start([main, *libraries], stdout=subprocess.DEVNULL)
    try:
        helpers.wait_until(lambda: ticks(process.pid) > 10)
        _, found = look(main, "--pid", process.pid, samples=2000)
    finally:
        helpers.end_process(process)
    assert found["likely_hot_bytes"] > 2 * MIB and found["advice"]["command"] is None
    assert found["advice"]["way"] == "nothing" and "no whole huge page lies inside" in found["advice"]["reason"], found


@pytest.mark.check_all
def test_already_huge_is_shown(calls, library, pool):
    """Already huge text is shown beside a program that would gain."""
    pool(32)
    copy = pathlib.Path(calls).parent / "moved"
    shutil.copy(calls, copy)
    env = helpers.preload(library, options="backend=hugetlb")
    with running([copy, FOREVER], env=env), running([calls, FOREVER]):
        for seconds in (2, 6, 18):
            lines = hugeld("survey", "--seconds", seconds, "--program", calls, "--program", copy).stdout.splitlines()
            shown = [line for line in lines if line.split()[-2:] == ["(huge)", str(copy)]]
            if shown and f"hugeld enable {calls}" in lines:
                break
    assert len(shown) == 1 and f"hugeld enable {calls}" in lines, lines


# --- processes that cannot be looked at ---


@pytest.mark.check_all
def test_processes_that_end():
    """They are counted."""
    short = helpers.start(["sh", "-c", "for i in $(seq 1 2 60); do sleep $i & done; wait"])  # whenever the window begins, one ends in it
    try:
        answer = survey("--program", "sleep", seconds=3)
    finally:
        helpers.end_process(short)
    assert answer["processes"]["ended"] >= 1


@pytest.mark.check_all
def test_other_namespaces(calls, root, tmp_path):
    """A program in namespaces of its own, whose file cannot be found by its path from here."""
    inside = tmp_path / "inside"
    inside.mkdir()
    script = f"mount -t tmpfs none {inside} && cp {calls} {inside}/hidden && exec {inside}/hidden {FOREVER}"
    process = helpers.start(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
                            stdout=subprocess.DEVNULL)
    try:
        hidden = helpers.wait_until(lambda: [pid for pid in helpers.marked_processes() if name_of(pid) == "hidden"
                                             and ticks(pid) > 20])[0]
        _, found = look(f"{inside}/hidden", "--all-users")
        assert found["pid"] == hidden and found["advice"]["command"] is None
        assert "not found by their paths from here" in found["advice"]["reason"]
    finally:
        helpers.end_process(process)


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


@pytest.mark.check_all
def test_vanished_executable(calls, tmp_path):
    """The file was removed while it runs: the kernel's " (deleted)" is no part of a command that works."""
    copy = tmp_path / "gone"
    shutil.copy(calls, copy)
    process = helpers.start([copy, FOREVER], stdout=subprocess.DEVNULL)
    try:
        helpers.wait_until(lambda: ticks(process.pid) > 20)
        copy.unlink()
        _, found = look(f"{copy} (deleted)", "--all-users")
    finally:
        helpers.end_process(process)
    assert found["advice"]["command"] is None and found["advice"]["reason"]


@pytest.mark.check_all
def test_thousand_processes():
    script = 'for i in $(seq 1000); do sleep 600 & done; echo ready; wait'
    process = helpers.start(["sh", "-c", script], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = survey("--program", "sleep", timeout=300)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        helpers.end_process(process)
    [found] = answer["programs"]
    assert found["processes"] >= 1000 and answer["processes"]["watched"] >= 1000
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds / answer["processes"]["watched"] < 0.005  # of processor time


# --- its cost to the programs ---


def test_progress():
    shown = helpers.shown_on_terminal([helpers.HUGELD, "survey", "--seconds", "0.5", "--program", "true"])
    assert "s to go" in shown and shown.endswith("\r\x1b[K")


def test_it_changes_nothing(calls):
    """The maps of a process are the same afterwards, and it goes on."""
    with running([calls, FOREVER]) as [process]:
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        before, worked = maps.read_text(), ticks(process.pid)
        survey("--program", calls)
        assert maps.read_text() == before
        helpers.wait_until(lambda: ticks(process.pid) > worked + 5)
        assert helpers.state_of(process.pid) in "RS"


def test_others_are_told_of(root):
    """Processes of other users are reported even if the own ones gain nothing: those may gain."""
    other = helpers.start([*helpers.become(12345), "sleep", "60"])
    try:
        helpers.wait_until(lambda: pathlib.Path(f"/proc/{other.pid}").stat().st_uid == 12345)
        assert re.search(r"\b\d+ process(es)? of other users left out; fix: run hugeld survey\s+--all-users", hugeld("survey", "--seconds", "0.5").stdout)
    finally:
        other.kill()
        other.communicate()
