# SPDX-License-Identifier: LGPL-2.1-or-later
"""perf (event cpu-clock:u) names the functions of moved text, and its call chains are complete: of a known program, so that nothing
hangs on how perf draws its samples.  Which names a map has, and all its lines, are the subject of tests/perf-maps."""

import pytest

import helpers
import profiles

pytestmark = pytest.mark.check_all

NOT_A_FILE = ("/anon_hugepage", "//anon", "/memfd:")


def finish(process):
    process.resume()
    _, stderr = process.communicate(timeout=helpers.PATIENCE)
    assert process.returncode == 0, stderr


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
@pytest.mark.parametrize("by_command", [False, True], ids=["own", "command"])
def test_attached_late(deep, start_stopped, folder, pool, thp, backend, by_command):
    """By frame pointers, with the map of the process itself and with the command's; without a map there are no names."""
    pool(16)
    with start_stopped(deep(500), f"backend={backend}" + ("" if by_command else ",perf_map=on")) as process:
        if by_command:
            profiles.write_map(process.pid)
        with profiles.attached(process.pid, folder / "data"):
            finish(process)
    profiles.check_complete(profiles.read(folder / "data"))
    process.map.unlink()
    assert not profiles.from_deep_leaf(profiles.read(folder / "data"))


@pytest.mark.parametrize("call_graph", ["fp", "dwarf"])
def test_from_the_start(deep, library, folder, pool, call_graph):
    """Text is moved by mremap, of which perf hears nothing: each frame is in the program's file still, and needs no map."""
    pool(16)
    program = deep(500, frame_pointers=call_graph == "fp")
    run = [library.parent / "hugeld", "run", "-o", "backend=hugetlb,verbose=2", "--"]
    result = helpers.run([*profiles.record(folder / "data", call_graph), "--", *run, *program.argv],
                         dict(helpers.environment(), HOME=str(folder)))
    assert result.returncode == 0 and f"hugeld: {program.name}: text" in result.stderr, result
    samples = profiles.read(folder / "data")
    profiles.check_complete(samples)
    assert not [dso for sample in samples for _, dso in sample if dso.startswith(NOT_A_FILE)]


FORBID = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0: sys.exit(77)  # PR_SET_MDWE
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_memfd(deep, library, folder, pool, map_of):
    """Where writable memory may not become executable (and before Linux 5.16) text comes by a memfd, of which perf
    hears.  From the start it takes names from the map then."""
    forbid = ["/usr/bin/python3", "-c", FORBID]
    if helpers.run([*forbid, "true"]).returncode == 77:
        pytest.skip("the kernel has no PR_SET_MDWE (6.3)")
    pool(16)
    program = deep(500)
    run = [library.parent / "hugeld", "run", "-o", f"backend=hugetlb,perf_map=on,exe={program.name}", "--"]
    result = helpers.run([*profiles.record(folder / "data"), "--", *forbid, *run, *program.argv],
                         dict(helpers.environment(), HOME=str(folder)))
    assert result.returncode == 0, result.stderr
    map_ = map_of(int(result.stdout))
    samples = profiles.read(folder / "data")
    profiles.check_complete(samples)
    assert {sample[0][1] for sample in samples if sample[0][0] == "deep_leaf"} == {str(map_)}
