# SPDX-License-Identifier: LGPL-2.1-or-later
"""Helpers of the tests of hugeld survey."""

import contextlib
import json
import pathlib
import subprocess

import helpers
from helpers import ticks

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
FOREVER = "1000000000000"


def row(answer, path):
    [found] = [p for p in answer["programs"] if p["path"] == str(path)]
    return found


def survey(*arguments, seconds=1, prefix=(), command=helpers.HUGELD, **options):
    result = helpers.run([*prefix, command, "survey", "--json", "--seconds", str(seconds), *arguments], **options)
    assert result.returncode in (0, 1) and result.stdout, result.stderr
    return json.loads(result.stdout)


def look(path, *arguments, samples=200, seconds=(1, 3, 9, 27, 81), **options):
    """(the answer, and its row for PATH), from as long a window as it takes on a busy machine."""
    for window in seconds:
        answer = survey(*arguments, seconds=window, **options)
        if row(answer, path)["samples"] >= samples and answer["sampling"]["decided"]:
            break
    found = row(answer, path)
    assert found["samples"] >= samples and answer["sampling"]["decided"]  # it has lost at most one in a hundred
    assert found["samples"] == sum(o["samples"] for o in found["objects"]) + found["memory_samples"]
    return answer, found


@contextlib.contextmanager
def running(*argvs, env=None):
    """Starts all, and waits until each has become its program and has run all of its text once."""
    processes = [helpers.start(argv, env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for argv in argvs]
    try:
        for process, argv in zip(processes, argvs):
            helpers.wait_until(lambda p=process, a=argv: ticks(p.pid) > 20 or a[-1] != FOREVER, what="work")
        yield processes
    finally:
        for process in processes:
            helpers.end_process(process)


def name_of(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
