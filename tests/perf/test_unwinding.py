# SPDX-License-Identifier: LGPL-2.1-or-later
"""Call chains.  By frame pointers they are complete, whenever perf came.  By DWARF they are as good as plain when perf
recorded from the start; when it came later the chain ends in the first moved function, since a map has no unwind tables, as the
documentation says."""

import re
import shutil

import pytest

import helpers
import profiles

def record_from_start(program, output, call_graph, library=None):
    run = [library.parent / "hugeld", "run", "-o", "backend=hugetlb,verbose=2", "--"] if library else []
    process = profiles.from_the_start([*run, *program.argv], output, call_graph=call_graph, frequency=499)
    try:
        said = program.work(process)
        assert not library or f"hugeld: {program.name}: text" in said
    finally:
        helpers.end_process(process)
    return profiles.read(output)


def record_late(program, start_stopped, output, call_graph, options="backend=hugetlb"):
    """(as perf sees it, as it would with the text in its file)"""
    with start_stopped(program, options) as process:
        profiles.write_map(process.pid)
        with profiles.attached(process.pid, output, call_graph, 499):
            program.work(process)
    as_file = profiles.as_if_in_file(output, output.with_name("file.data"), process.placed)
    return profiles.read(output), profiles.read(as_file)


VIEWS = ("plain", "from the start", "attached late", "the same recording, text in its file")


@pytest.mark.check_all
@pytest.mark.parametrize("call_graph", ["fp", pytest.param("dwarf", marks=pytest.mark.check_all)])
def test_chains(deep, start_stopped, library, folder, pool, figure, call_graph):
    """A program with frame pointers, and one without."""
    pool(16)
    program = deep(500, frame_pointers=call_graph == "fp")
    plain = record_from_start(program, folder / "plain.data", call_graph)
    moved = record_from_start(program, folder / "moved.data", call_graph, library)
    late, late_as_file = record_late(program, start_stopped, folder / "late.data", call_graph)
    leaves = [profiles.from_deep_leaf(samples) for samples in (plain, moved, late, late_as_file)]
    shares = dict(zip(VIEWS, (profiles.share(samples, profiles.is_complete) for samples in leaves)))
    figure(f"deep.c, {call_graph}, complete chains: " + ", ".join(f"{view} {shares[view]:.1%}" for view in VIEWS))
    assert min(map(len, leaves)) > 100
    lost = call_graph == "dwarf" and shares.pop("attached late")
    assert min(shares.values()) >= profiles.LEAST
    assert lost == 0 and (call_graph == "fp" or all(len(s) == 1 for s in leaves[2])), "the documentation says so"


def test_frame_pointers_on_thp(deep, start_stopped, folder, pool, thp):
    pool(0)
    late, _ = record_late(deep(400), start_stopped, folder / "data", "fp", "backend=thp")
    leaves = profiles.from_deep_leaf(late)
    assert len(leaves) > 100 and profiles.share(leaves, profiles.is_complete) >= profiles.LEAST


@pytest.mark.check_all
def test_gdb(deep, start_stopped, pool):
    """A debugger reads the unwind tables of the file, so attaching late costs it nothing."""
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")
    pool(16)
    program = deep(20000, frame_pointers=False)
    with start_stopped(program, "backend=hugetlb") as process:
        process.resume()

        def backtrace():
            said = helpers.run(["gdb", "-nx", "-batch", "-p", process.pid, "-ex", "backtrace"]).stdout
            return re.findall(r"^#\d+ +(?:0x[0-9a-f]+ in )?(\w+)", said, re.M)

        helpers.wait_until(lambda: backtrace() == profiles.CHAIN, what="gdb showing the chain")
        assert helpers.state_of(process.pid) in ("R", "S")


@pytest.mark.check_all
def test_dwarf_of_cc1plus(cc1plus, start_stopped, library, folder, pool, figure):
    pool(64)
    plain = record_from_start(cc1plus, folder / "plain.data", "dwarf")
    moved = record_from_start(cc1plus, folder / "moved.data", "dwarf", library)
    late, late_as_file = record_late(cc1plus, start_stopped, folder / "late.data", "dwarf")
    # hugeld's own work comes before libc's calls, and is in no program.
    in_text = [[s for s in samples if "cc1plus" in s[0].dso or s[0].dso.endswith(".map")]
               for samples in (plain, moved, late, late_as_file)]
    shares = [profiles.share(samples, profiles.reaches_start) for samples in in_text]
    figure("cc1plus, DWARF, chains that reach the start: " + ", ".join(f"{v} {s:.1%}" for v, s in zip(VIEWS, shares)))
    room = max(0.05, 3 * (0.5 / min(map(len, in_text))) ** 0.5)  # three standard deviations: some recordings have fifty samples
    assert shares[1] >= shares[0] - room and shares[3] >= shares[0] - room
    assert shares[2] < 0.1, "the documentation says that callers are lost"
