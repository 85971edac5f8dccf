# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs to be recorded."""

import contextlib
import pathlib
import shutil

import pytest

import helpers
import profiles
from profiles import Program
from proof import check_plans

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def perf_works(tmp_path_factory):
    if not shutil.which("perf"):
        pytest.skip("perf is not installed (linux-perf)")
    folder = tmp_path_factory.mktemp("perf")
    result = helpers.run([*profiles.record(folder / "data"), "--", "/bin/true"])
    if result.returncode != 0:
        pytest.skip(f"perf cannot record here: {result.stderr.strip()}")


@pytest.fixture
def folder(perf_works, tmp_path):
    """The folder for recordings. They are large."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture
def map_of():
    """map_of(pid): where the map of that process is to be; removed after the test."""
    paths = []

    def path(pid):
        paths.append(pathlib.Path(f"/tmp/perf-{pid}.map"))
        return paths[-1]

    yield path
    for map_ in paths:
        map_.unlink(missing_ok=True)


@pytest.fixture
def start_stopped(library, pause_library, map_of):
    """start_stopped(program, options): the program on huge pages, stopped after its constructors; without hugeld
    if there are no OPTIONS."""

    @contextlib.contextmanager
    def start(program, options=None):
        libraries = [library, pause_library] if options else [pause_library]
        with helpers.paused(program.argv, helpers.preload(*libraries, options=options), program.name) as process:
            process.map = map_of(process.pid)
            if options:
                [path] = [word for word in program.argv if pathlib.Path(word).name == program.name]
                check_plans(process.pid, [path], options, "thp" if "thp" in options else "hugetlb")
            yield process

    return start


@pytest.fixture(scope="session")
def deep(tmp_path_factory):
    """deep(milliseconds, frame_pointers): deep.c."""
    folder = tmp_path_factory.mktemp("deep")
    for kind in ("with", "without"):
        # At -O0 every function has a frame, also one that needs none.
        flags = ["-O0" if kind == "with" else "-O1", "-fno-toplevel-reorder", "-fno-pie", "-no-pie"]
        result = helpers.run(["gcc", *flags, "-o", folder / f"deep-{kind}", HERE / "deep.c"])
        assert result.returncode == 0, result.stderr

    def make(milliseconds, frame_pointers=True):
        name = "deep-with" if frame_pointers else "deep-without"
        return Program(name, [folder / name, str(milliseconds)])

    return make
