# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that run while `hugeld attach` and `hugeld detach` work on them (target.c), and the answers about their memory."""

import contextlib
import os
import pathlib
import re
import subprocess
import threading

import helpers
from hugepages import SMALL_PAGES, compact_memory
from pagecache import on_small_pages
from smaps import read_smaps
from stores import is_image

HERE = pathlib.Path(__file__).resolve().parent
ARMED = 13  # the first step of steps.c at which the frame is in place


class Target:
    """A running program that has text on huge pages, or not."""

    def __init__(self, process, path):
        self.process, self.path, self.pid = process, str(path), process.pid

    def mappings(self):
        return read_smaps(self.pid)

    def text(self):
        """Its own file's executable mappings and those that have replaced them: (start, end, permissions, name)."""
        names = (self.path, "/memfd:hugeld:", "/hugeld:")
        found = [m for m in self.mappings() if m.name.startswith(names) or is_image(m.name)]
        return [m for m in found if "x" in m.permissions]

    def huge_bytes(self):
        """The bytes of its text on an image's huge pages."""
        images = [m for m in self.text() if not m.name.startswith(self.path)]
        return sum(m.kb["ShmemPmdMapped"] + m.kb["FilePmdMapped"] for m in images) * 1024

    def layout(self):
        """The mappings, without the stack's end, and with neighbours joined that do not differ."""
        names = [(m.start, m.end, m.permissions, m.name) for m in self.mappings() if m.name != "[stack]"]
        joined = []
        for start, end, *rest in names:
            if joined and joined[-1][1] == start and joined[-1][2:] == rest and rest[1]:
                start = joined.pop()[0]
            joined.append([start, end, *rest])
        return joined

    def descriptors(self):
        return sorted(os.listdir(f"/proc/{self.pid}/fd"), key=int)

    def masks(self):
        """The signal masks of all threads."""
        texts = [path.read_text() for path in pathlib.Path(f"/proc/{self.pid}/task").glob("*/status")]
        return sorted(re.search(r"^SigBlk:\s*(\w+)", text, re.M)[1] for text in texts)

    def finish(self, timeout=helpers.PATIENCE):
        """Wakes it and returns (exit status, its output since)."""
        self.process.stdin.close()
        self.process.stdin = None
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out + err


def compile_target(folder, name, mibs, *flags):
    path = folder / name
    command = ["gcc", "-O2", f"-DMIBS={mibs}", f'-DCOUNT="{mibs * 1024}"', "-o", path, HERE / "target.c", *flags, "-pthread", "-lrt"]
    subprocess.run(command, check=True, timeout=helpers.PATIENCE)
    on_small_pages(path)
    return path


def compile_preloaded(folder, source):
    """The library of SOURCE, to be preloaded into hugeld."""
    library = (folder / source).with_suffix(".so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, HERE / source, "-ldl"], check=True, timeout=helpers.PATIENCE)
    return library


@contextlib.contextmanager
def running(path, mode, threads=0, prefix=(), **options):
    """Runs the target until it waits as MODE says."""
    process = helpers.start([*prefix, path, mode, threads], stdin=subprocess.PIPE, **options)
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        if mode == "futex":
            wait_in_call(process.pid)
        yield Target(process, path)
    finally:
        helpers.end_process(process)


MOMENT = "did not stop within|did not run for|sleep in (a )?system call"


def again(run, moment=MOMENT):
    """RUN(), again where memory lies in pieces, or for a reason of the MOMENT: a thread was late, or in the wrong call."""
    for _ in range(10):
        result = run()
        if SMALL_PAGES in result.stderr:
            compact_memory()
        elif not re.search(moment, result.stderr):
            break
    return result


def ask(command, *arguments, moment=MOMENT, **options):
    """`hugeld COMMAND`, so."""
    return again(lambda: helpers.hugeld(command, *arguments, **options), moment)


def call_of(pid):
    """The number of the system call that the thread PID waits in, or None."""
    with contextlib.suppress(OSError, ValueError):
        return int(pathlib.Path(f"/proc/{pid}/syscall").read_text().split()[0])


def wait_in_call(pid):
    """Waits until the thread PID sleeps in a system call, the same one twice."""
    def is_there():
        first = call_of(pid)
        return first is not None and first >= 0 and helpers.state_of(pid) == "S" and call_of(pid) == first
    helpers.wait_until(is_there, what="the wait")


def check_rest(path, mode, move, plain_output):
    """MOVE(target) succeeds, and the program, which sleeps as MODE says, finds no rest of a sleep.

    If it wakes and sleeps again after the last look at it, it may find one (doc/attach.md).  A machine that is late meets such a
    moment, but not three times running."""
    for _ in range(3):
        with running(path, mode) as target:
            wait_in_call(target.pid)
            said = move(target)
            found = target.finish()
        if found[0] != 9 or not found[1].startswith("nanosleep"):
            break
    assert found == plain_output, (found, said)
    assert said[0] == 0, said


@contextlib.contextmanager
def asking_again(argv):
    """A client that is started again until the block ends, and its output each time."""
    said, over = [], threading.Event()

    def ask():
        while not over.is_set() and (not said or said[-1].returncode == 0):
            said.append(helpers.run(argv, timeout=helpers.PATIENCE))

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield said
    finally:
        over.set()
        client.join()
    assert said[-1].returncode == 0, said[-1]
