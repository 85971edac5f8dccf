# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of hugeld survey share."""

import contextlib
import pathlib
import subprocess

import helpers

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
FOREVER = "1000000000000"


def row(answer, path):
    [found] = [p for p in answer["programs"] if p["path"] == str(path)]
    return found


@contextlib.contextmanager
def running(*argvs, env=None):
    """Starts all, and waits until each is the program that is meant and has been everywhere once."""
    processes = [helpers.start(argv, env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for argv in argvs]
    try:
        for process, argv in zip(processes, argvs):
            helpers.wait_until(lambda p=process, a=argv: ticks(p.pid) > 20 or a[-1] != FOREVER, what="work")
        yield processes
    finally:
        for process in processes:
            helpers.end_process(process)


def ticks(pid):
    return sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:13]))


def name_of(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
