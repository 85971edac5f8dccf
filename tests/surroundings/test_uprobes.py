# SPDX-License-Identifier: LGPL-2.1-or-later
"""Somebody else writes to the text: the kernel, for a uprobe on the file.  Copied along, its breakpoint kills the program
with SIGTRAP; left behind, the probe is never hit.  So an object with a probe stays, also when the probe arrives while it
moves, and its probe is hit as often as without hugeld."""

import pathlib
import platform
import subprocess

import pytest

import helpers
from surroundings import ALL, RODATA, TEXT, at_end

MODIFIED = "text stays: somebody wrote to it (a uprobe, a patch)"
EVENT = f"hugeld_test_{helpers.MARK_VALUE.replace('-', '')[:12]}/hit"
MREMAP, IOCTL = {"x86_64": (25, 16), "aarch64": (216, 29)}[platform.machine()]
# What the programs do: sum the large text before the fork, in the child, and after it.
HITS = 3


@pytest.fixture
def tracefs(root, tmp_path):
    mounted = [line.split()[1] for line in open("/proc/mounts") if line.split()[2] == "tracefs"]
    if mounted:
        yield pathlib.Path(mounted[0])
        return
    folder = tmp_path / "tracing"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tracefs", "none", folder], capture_output=True).returncode != 0:
        pytest.skip("tracefs cannot be mounted")
    with at_end('umount "$1"', folder):
        yield folder


class Probe:
    """A uprobe in the middle of a file's moved text."""

    def __init__(self, tracefs, path):
        if not (tracefs / "uprobe_events").exists():
            pytest.skip("the kernel has no uprobes (CONFIG_UPROBE_EVENTS)")
        symbols = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines()
        address = next(int(s.split()[0], 16) for s in symbols if s.endswith(" text_a")) + 2000 * 1024
        loads = [h for h in helpers.read_headers(path) if h.type == helpers.PT_LOAD]
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


@pytest.fixture
def probe(tracefs):
    """probe(path): a Probe, removed at the end."""
    remove = f'if cd "$1/events/{EVENT}"; then echo 0 > enable; cd "$1"; echo "-:{EVENT}" >> uprobe_events; fi 2> /dev/null'
    with at_end(remove, tracefs):
        yield lambda path: Probe(tracefs, path)


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_set_before_the_start(builder, surround, pool, thp, probe, backend):
    """The library with the probe stays; the other one moves."""
    pool(64)
    app, [probed, other] = builder.with_library("dso", 2)
    probe = probe(probed)
    probe.set()
    plain = helpers.run([app])
    assert probe.hits() == HITS
    outcome = surround([app], {other.name: ALL}, patterns="libbig*", options=f"backend={backend},verbose=1", backend=backend)
    assert f"hugeld: {probed.name}.1: {MODIFIED}" in outcome.stderr
    assert (outcome.returncode, outcome.stdout) == (plain.returncode, plain.stdout)
    assert probe.hits() == 3 * HITS  # and once more by the plain run of surround


# hugetlb, app-nopie: ioctl 3 registers the range of the text, 4 copies it, 5 and 6 do so for the read-only data.  mremap
# 1 is tried out, 2 to 4 move the three mappings of the text's span aside, 5 brings the new one into place, 6 and 7 the
# same for the read-only data; then the old pages are looked at.
@pytest.mark.parametrize("call, n", [(IOCTL, n) for n in (1, 3, 4, 6)] + [(MREMAP, n) for n in range(1, 8)])
def test_set_while_it_moves(builder, surround, pool, probe, tool, call, n):
    """Everything goes back, with the probe."""
    pool(64)
    app = builder.executable("nopie")
    probe = probe(app)
    prefix = [tool("stop-at", "-static"), call, n, probe.set_command]
    outcome = surround([app], {}, prefix=prefix, plain_prefix=[], options="backend=hugetlb,verbose=1")
    assert f"hugeld: {app.name}: {MODIFIED}" in outcome.stderr
    assert "rolled back, but" not in outcome.stderr
    assert probe.hits() == HITS


def test_set_when_it_has_moved(builder, library, pause_library, pool, probe):
    """Never hit, as the manual says; the program does not notice."""
    pool(64)
    app = builder.executable("nopie")
    probe, plain = probe(app), helpers.run([app])
    with helpers.paused([app], helpers.preload(library, pause_library), app.name) as process:
        probe.set()
        assert sum(m.hugetlb_bytes for m in helpers.read_smaps(process.pid)) == (TEXT + RODATA) * helpers.HUGE
        assert process.finish() == (plain.returncode, plain.stdout, plain.stderr)
    assert probe.hits() == 0
