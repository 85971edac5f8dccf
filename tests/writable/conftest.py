# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shared by the tests of writable data: writable.c in every way of linking, early.c, and a proof like `prove` with
early.c's constructor in front."""

import pathlib
import sys
import typing

import pytest

import helpers
from proof import check_memory, read_image, read_plans

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "surroundings"))  # setting()

VARIANTS = {
    "nopie": ["-no-pie"],
    "pie": ["-pie"],
    "aligned": ["-no-pie", "-Wl,-z,max-page-size=0x200000"],
    "aligned-pie": ["-pie", "-Wl,-z,max-page-size=0x200000"],
}


class Outcome(typing.NamedTuple):
    plans: dict
    plain: object  # proof.Image
    image: object
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def program(builder):
    """program(variant, *macros): writable.c with the large text and read-only data of programs.py inside."""

    def make(variant, *macros):
        name = f"writable-{variant}" + "".join(macros)

        def link(folder):
            return builder.compile(folder / f"writable-{variant}", HERE / "writable.c", "-O2", "-Wall", "-Wextra",
                                   "-fPIE", "-rdynamic", "-pthread", *macros, *builder.object(), *VARIANTS[variant])

        return builder.once(name, link)

    return make


@pytest.fixture(scope="session")
def early(builder):
    return builder.once("early", lambda folder: builder.compile(
        folder / "early.so", HERE / "early.c", "-Wall", "-Wextra", "-shared", "-fPIC", "-Wl,-z,initfirst", "-pthread"))


@pytest.fixture
def compare(library, empty_library, pause_library, early):
    """compare(argv, moved, ...): runs ARGV without hugeld and on huge pages, each stopped after its constructors, with
    early.c's in front (BEFORE: its T_EARLY), and proves with smaps that the kinds of span in MOVED are on huge pages and
    everything else is as in the plain run.  Then both end well, with the same output.

    PREFIX: a command that becomes ARGV; LIBRARIES: more to preload."""

    def run(argv, moved, before="", prefix=(), libraries=(), options="", backend="hugetlb", timeout=helpers.PATIENCE):
        name = pathlib.Path(argv[0]).name

        def stopped(hugeld):
            env = helpers.preload(pause_library, hugeld, early, *libraries, T_EARLY=before,
                                  options=options if hugeld == library else None)
            return helpers.paused([*prefix, *argv], env, name, timeout)

        with stopped(empty_library) as process:
            plain_image = read_image(process.pid)
            plain = process.finish()
        with stopped(library) as process:
            image = read_image(process.pid)
            plans = read_plans(process.pid, [image.objects[0].path], options)
            check_memory(image, plain_image, plans, {name: moved} if moved else {}, backend)
            result = process.finish()
        assert "WRONG" not in result[1] and (plain[0], result[0]) == (0, 0), f"plain: {plain}\nmoved: {result}"
        assert plain[1] == result[1], f"plain: {plain}\nmoved: {result}"
        return Outcome(plans, plain_image, image, *result)

    return run
