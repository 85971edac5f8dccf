# SPDX-License-Identifier: LGPL-2.1-or-later
"""perf attached to a process whose text has moved: with a map its names are the plain ones, frame by frame in the same
recording; without a map there are none."""

import shutil

import pytest

import profiles

OPTIONS = "backend=hugetlb,perf_map=on"


@pytest.mark.check_all
def test_names(program, start_stopped, folder, pool, figure):
    """One recording, resolved with the file, with the map written by the process itself, with the command's, and with none."""
    pool(128)
    with start_stopped(program, OPTIONS) as process:
        own = folder / "own.map"
        shutil.move(process.map, own)
        profiles.write_map(process.pid)
        with profiles.attached(process.pid, folder / "moved.data", frequency=program.frequency):
            program.work(process)

    whole = profiles.read(folder / "moved.data")
    as_file = profiles.read(profiles.as_if_in_file(folder / "moved.data", folder / "file.data", process.placed))
    placed, map_ = process.placed, process.map
    count = profiles.judge(figure, f"{program.name}, the command's map", as_file, whole, placed, map_)
    assert count > 500  # PLT stubs, one frame in a hundred, could be seen missing

    # The process reads its own files only.
    paths = {p.path for p in placed}
    shutil.move(own, map_)
    by_own, as_file_alone = profiles.read(folder / "moved.data"), profiles.read(folder / "file.data", alone=paths)
    profiles.judge(figure, f"{program.name}, the process's own map", as_file_alone, by_own, placed, map_)

    map_.unlink()
    for tally in profiles.compare(as_file, profiles.read(folder / "moved.data"), placed, map_):
        assert tally.same == 0 and {seen for _, seen in tally.other} == {profiles.UNKNOWN}
