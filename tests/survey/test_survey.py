# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld survey: samples of a known program, what can be enabled for it, and one line where nothing can be sampled.  What is made of samples is
tested in unit/test-survey.c."""

import contextlib
import errno
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

import helpers
from helpers import one_line
from pagecache import on_small_pages
from watching import FOREVER, NOBODY, look, name_of, running, survey, ticks

MIB = 1 << 20


def without_events(error, *words):
    """The command WORDS, in which perf_event_open(2) fails with ERROR."""
    pytest.importorskip("seccomp", reason="needs python3-seccomp")
    return ["/usr/bin/python3", "-c", "import os, seccomp, sys\nf = seccomp.SyscallFilter(seccomp.ALLOW)\n"
            f"f.add_rule(seccomp.ERRNO({error}), 'perf_event_open')\nf.load()\nos.execvp(sys.argv[1], sys.argv[1:])", *words]


# --- what it sees ---


def test_hot_text(calls):
    """The sampled text is at most the executed text, and the likely amount is about the real one.  The advice is the verdict of inspect."""
    [file] = helpers.hugeld_json("inspect", calls)["files"]
    with running([calls, FOREVER]) as [process]:
        answer, found = look(calls, "--pid", process.pid, samples=400)
    assert answer["sampling"]["of_threads"] is True and answer["sampling"]["processors"] >= 1
    assert found["processes"] == 1 and found["huge_samples"] == 0 and found["huge_bytes"] == 0
    assert 16 * MIB <= found["text_bytes"] < 20 * MIB
    assert found["hot_bytes"] <= 16.5 * MIB and found["hot_bytes"] / 4096 <= found["samples"]
    assert 4 * MIB < found["likely_hot_bytes"] <= found["text_bytes"] and found["hot_bytes"] < found["likely_hot_bytes"]
    assert len(found["objects"][0]["chunks"]) >= 8
    advice = found["advice"]
    assert advice["way"] == file["verdict"]["way"] in ("in-place", "image") and advice["hot_share"] > 0.8
    assert advice["pages"] == file["verdict"]["pages"] > 0
    assert advice["command"] == f"hugeld enable {calls}" and advice["reason"] is None


def test_nothing_is_walked(calls, tmp_path):
    """No file whose reading walks page tables is opened, and no process is traced."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    log = tmp_path / "log"
    with running([calls, FOREVER]):
        survey("--program", calls, seconds=2,
               prefix=["strace", "-f", "-qq", "-e", "trace=openat,openat2,open,ptrace,process_vm_readv", "-o", log])
    seen = set(re.findall(r'open\w*\([^"\n]*"(?:/proc/\d+/)?(\w+)"', log.read_text()))
    assert not re.search("ptrace|process_vm_readv", log.read_text())
    assert {"maps", "exe"} <= seen and not seen & {"clear_refs", "smaps", "smaps_rollup", "numa_maps", "pagemap", "mem"}


def test_without_sys(calls, root):
    """A container may have no /sys: no processor is isolated for that."""
    alone = ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /sys && exec "$@"', "sh"]
    with running([calls, FOREVER]):
        sampling = survey("--program", calls, prefix=alone)["sampling"]
    assert sampling["processors"] >= 1 and sampling["processors_left_out"] == 0


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
    assert found["advice"]["command"] is None and "not found at their paths from here" in found["advice"]["reason"]


def test_32_bit_program(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\1" + pathlib.Path("/bin/true").read_bytes()[5:])
    program.chmod(0o755)
    one_line(helpers.hugeld("survey", "--program", program), 2, "it is a 32-bit program")


# --- what it may not see ---


@pytest.mark.check_all
def test_without_privileges(calls, library, root):
    """Users sample their own processes, that run already, and their children; no other user's, also where the kernel would let them."""
    of_threads = int(pathlib.Path("/proc/sys/kernel/perf_event_paranoid").read_text()) > 0
    command = library.parent / "hugeld"
    with running([*NOBODY, calls, FOREVER]) as [process], running([calls, FOREVER]) as [other]:
        answer, found = look(calls, prefix=NOBODY, command=command, samples=50)
        result = helpers.run([*NOBODY, command, "survey", "--seconds", "1"], env=helpers.environment(COLUMNS=200))
        refused = helpers.run([*NOBODY, command, "survey", "--seconds", "1", "--pid", str(other.pid)])
        everybody = survey("--all-users", prefix=NOBODY, command=command)
        there = sum(has_program(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    assert answer["sampling"]["of_threads"] is of_threads and answer["sampling"]["hz"] == 97 and found["frames"] is None
    assert found["processes"] == 1 and found["pid"] == process.pid
    assert "of other users left out" in result.stdout
    assert result.stderr == "" and ("run hugeld as root" in result.stdout or "no program" in result.stdout)
    one_line(refused, 1, "another user's process; run hugeld as its owner or as root")
    assert 0 < everybody["processes"]["refused"] < 1.5 * there  # each counts once


def has_program(pid):
    with contextlib.suppress(OSError):
        return bool(os.readlink(f"/proc/{pid}/exe"))
    return False


@pytest.mark.parametrize("paranoid, who, said", [(3, NOBODY, "kernel.perf_event_paranoid is above 2"), (2, NOBODY, "as root"), (2, [], "CAP_PERFMON")])
def test_refused(calls, library, root, tmp_path, paranoid, who, said):
    """A kernel's setting, as Debian's, or a container's filter: one line says what would help."""
    (tmp_path / "paranoid").write_text(f"{paranoid}\n")
    script = f'mount --bind {tmp_path}/paranoid /proc/sys/kernel/perf_event_paranoid && exec "$@"'
    words = without_events(errno.EACCES, library.parent / "hugeld", "survey", "--seconds", "0.3")
    with running([*who, calls, FOREVER]):  # there may be no other process of theirs
        result = helpers.run(["unshare", "--mount", "sh", "-ec", script, "sh", *who, *words])
    one_line(result, 1, said)
