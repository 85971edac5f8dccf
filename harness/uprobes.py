# SPDX-License-Identifier: LGPL-2.1-or-later
"""A uprobe on a file, for tests of its later state."""

import contextlib
import pathlib
import subprocess

import pytest

import helpers
from objects import PT_LOAD, read_headers

EVENT = f"hugeld_test/hit_{helpers.MARK_VALUE.replace('-', '')[:12]}"  # uprobe_profile has no groups
REMOVE = f'if cd "$1/events/{EVENT}"; then echo 0 > enable; cd "$1"; echo "-:{EVENT}" >> uprobe_events; fi 2> /dev/null'


@contextlib.contextmanager
def mount_tracefs(folder):
    """Where tracefs is, after mounting it on FOLDER if it is nowhere."""
    mounted = [line.split()[1] for line in open("/proc/mounts") if line.split()[2] == "tracefs"]
    if mounted:
        yield pathlib.Path(mounted[0])
        return
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tracefs", "none", folder], capture_output=True).returncode != 0:
        pytest.skip("tracefs cannot be mounted")
    with helpers.at_end('umount "$1"', folder):
        yield folder


@contextlib.contextmanager
def probing(tracefs):
    """Gives a function that makes a Probe for a path; it is removed at the end."""
    with helpers.at_end(REMOVE, tracefs):
        yield lambda path, address=None: Probe(tracefs, path, address)


class Probe:
    """A uprobe at ADDRESS of a file, or in the middle of its moved text."""

    def __init__(self, tracefs, path, address=None):
        if not (tracefs / "uprobe_events").exists():
            pytest.skip("the kernel has no uprobes (CONFIG_UPROBE_EVENTS)")
        if address is None:
            symbols = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines()
            address = next(int(s.split()[0], 16) for s in symbols if s.endswith(" text_a")) + 2000 * 1024
        loads = [h for h in read_headers(path) if h.type == PT_LOAD]
        load = next(h for h in loads if h.vaddr <= address < h.vaddr + h.file_bytes)
        self.tracefs = tracefs
        # One shell command, because stop-at runs it too.
        self.set_command = (
            f"echo 'p:{EVENT} {path}:{address - load.vaddr + load.offset:#x}' >> {tracefs}/uprobe_events && "
            f"echo 1 > {tracefs}/events/{EVENT}/enable"
        )

    def set(self):
        subprocess.run(self.set_command, shell=True, check=True)

    def hits(self):
        lines = [line.split() for line in (self.tracefs / "uprobe_profile").read_text().splitlines()]
        return next(int(hits) for _, event, hits in lines if event == EVENT.split("/")[1])
