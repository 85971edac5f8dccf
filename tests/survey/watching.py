# SPDX-License-Identifier: LGPL-2.1-or-later
"""Helpers of the tests of hugeld survey."""

import contextlib
import json
import pathlib
import signal
import subprocess

import helpers
from helpers import ticks

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
FOREVER = "1000000000000"
QUIET = "no program here executes more than 2 MiB of text on small pages"
MIB = 1 << 20
SECONDS = 150  # a busy machine gives few samples


def row(answer, path):
    [found] = [p for p in answer["programs"] if p["path"] == str(path)]
    return found


def survey(*arguments, seconds=1, prefix=(), command=helpers.HUGELD, **options):
    result = helpers.run([*prefix, command, "survey", "--json", "--seconds", str(seconds), *arguments], **options)
    assert result.returncode in (0, 1) and result.stdout, result.stderr
    return json.loads(result.stdout)


def look(path, *arguments, samples=200, seconds=(1, 3, 9, 27), **options):
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


class Observed:
    """A service in a mount namespace with a /run of its own."""

    def __init__(self, process, configuration):
        self.process, self.configuration = process, configuration
        self.root = pathlib.Path(f"/proc/{process.pid}/root")

    def run(self, *arguments):
        return helpers.run(["nsenter", "-t", self.process.pid, "-m", helpers.HUGELD, "service", *arguments,
                            "--config", self.configuration])

    def look(self):
        result = self.run("status", "--json")
        assert result.stderr == "", result
        return json.loads(result.stdout)["observed"]

    def wait(self, condition):
        """The observation, once CONDITION is true of it."""
        return helpers.wait_for(self.look, condition, SECONDS, pause=0.3)

    def wait_for(self, path, samples=3):
        return self.wait(lambda observed: observed_row(observed, path)["samples"] >= samples)

    def next_windows(self, n=2):
        before = self.wait(lambda observed: True)["windows"]
        return self.wait(lambda observed: observed["windows"] >= before + n)


def observed_row(observed, path):
    return next((file for file in observed["files"] if file["path"] == str(path)), {"samples": 0})


@contextlib.contextmanager
def observing(configuration, *eligible, lines=(), prefix=(), covers=()):
    """The service with this CONFIGURATION, a path, which looks at files of the patterns ELIGIBLE.  COVERS: pairs of files, of which
    the second has the contents of the first in its mount namespace."""
    write_configuration(configuration, *eligible, lines=lines)
    mounts = "".join(f"mount --bind {file} {path} && " for file, path in covers)
    script = f'mount -t tmpfs -o mode=0755 none /run && {mounts}exec "$@"'
    process = helpers.start(["unshare", "-m", "sh", "-c", script, "sh", *prefix, helpers.HUGELD, "service",
                             "--config", configuration])
    try:
        yield Observed(process, configuration)
        assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(helpers.PATIENCE) == 0, process.stderr.read()
    finally:
        helpers.end_process(process)


def write_configuration(path, *eligible, lines=()):
    path.write_text("".join(f"{line}\n" for line in (
        "observe = yes", "window = 1", "interval = 2", *(f"eligible = {pattern}" for pattern in eligible), *lines)))


def replace_text(path, text):
    """Replaces the text, so that a reader finds the old one or the new one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)
