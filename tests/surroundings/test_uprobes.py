# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel writes to the text, for a uprobe on the file.  Copied along, its breakpoint kills the program
with SIGTRAP; left behind, the probe is never hit.  So an object with a probe stays, also when the probe arrives while it
moves, and its probe is hit as often as without hugeld."""

import platform

import pytest

import helpers
from smaps import read_smaps
from surroundings import ALL, RODATA, TEXT

MODIFIED = "text stays: it was changed in memory (a uprobe, a patch)"
MREMAP, IOCTL = {"x86_64": (25, 16), "aarch64": (216, 29)}[platform.machine()]
# The programs sum the large text before the fork, in the child, and after it.
HITS = 3


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


# hugetlb, app-nopie: ioctl 1 looks at all pages, and 2 again after they have been copied.  mremap 1 is tried out, 2 brings the text into
# place, and 3 the read-only data.
@pytest.mark.parametrize("call, n", [(IOCTL, 1), (IOCTL, 2), (MREMAP, 1)])
def test_set_while_it_moves(builder, surround, pool, probe, tool, call, n):
    """Everything stays, with the probe."""
    check_set_while_it_moves(builder, surround, pool, probe, tool, call, n)


@pytest.mark.parametrize("n", [2, 3])
def test_set_as_it_moves(builder, surround, pool, probe, tool, n):
    """After the last look it is like one that is set when the text has moved: the new pages are the file's."""
    pool(64)
    app = builder.executable("nopie")
    probe = probe(app)
    prefix = [tool("stop-at", "-static"), MREMAP, n, probe.set_command]
    surround([app], {app.name: ALL}, prefix=prefix, plain_prefix=[], options="backend=hugetlb,verbose=1")
    assert probe.hits() == 0


# Other code ran before, so the old pages are kept until it is over.  mremap 1 is tried out, 2 to 4 move the three mappings of the text's
# span aside, 5 that of the read-only data, whose new memory 6 brings into place, and 7 that of the text; then the old pages are looked
# at again.
@pytest.mark.parametrize("call, n", [(IOCTL, 4), *((MREMAP, n) for n in range(1, 8))])
def test_set_while_others_run(builder, surround, pool, probe, tool, first, call, n):
    """Everything goes back, with the probe."""
    check_set_while_it_moves(builder, surround, pool, probe, tool, call, n, first=[first])


# mremap 3 and 4 move the text aside, one mapping after the other.
@pytest.mark.parametrize("call, n", [(IOCTL, 4), *((MREMAP, n) for n in (2, 3, 5))])
def test_set_beside_threads(builder, surround, pool, probe, tool, first, call, n):
    """Hugetlb pages with text and read-only data could not be taken back: the old pages are looked at before they come."""
    check_set_while_it_moves(builder, surround, pool, probe, tool, call, n, first=[first], T_FIRST="threads:2")


def check_set_while_it_moves(builder, surround, pool, probe, tool, call, n, **changes):
    pool(64)
    app = builder.executable("nopie")
    probe = probe(app)
    prefix = [tool("stop-at", "-static"), call, n, probe.set_command]
    outcome = surround([app], {}, prefix=prefix, plain_prefix=[], options="backend=hugetlb,verbose=1", **changes)
    assert f"hugeld: {app.name}: {MODIFIED}" in outcome.stderr
    assert "rolled back, but" not in outcome.stderr
    assert probe.hits() == HITS


def test_set_when_it_has_moved(builder, library, pause_library, pool, probe):
    """A probe set after the move is never hit, as the manual says; the program does not notice."""
    pool(64)
    app = builder.executable("nopie")
    probe, plain = probe(app), helpers.run([app])
    with helpers.paused([app], helpers.preload(library, pause_library), app.name) as process:
        probe.set()
        assert sum(m.hugetlb_bytes for m in read_smaps(process.pid)) == (TEXT + RODATA) * helpers.HUGE
        assert process.finish() == (plain.returncode, plain.stdout, plain.stderr)
    assert probe.hits() == 0
