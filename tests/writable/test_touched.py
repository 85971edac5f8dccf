# SPDX-License-Identifier: LGPL-2.1-or-later
"""data=auto, the default: writable data moves only if most of its pages were written to before, as by relocation.  So a copy takes
no memory that the program did not have already, or at most as much again."""

import re

import pytest

import helpers
from writable import HERE

BYTES, PAGES = 8 << 20, 2048
SLACK = 512 << 10  # hugeld's own pages, and what a start takes more or less
STAYS = ("hugeld: touched: data stays: data=auto copies writable data only if most of it has been written to, and never beside an "
         "image; set data=thp\n")
MOVES = "hugeld: touched: data 4 pages thp\n"


@pytest.fixture(scope="session")
def touched(builder):
    """touched(name): a program of touched.c, or "early", its library."""
    flags = {"zeros": ["-no-pie"], "large text": ["-no-pie", *builder.object()], "relocated": ["-pie", "-fPIE", "-DRELOCATED"],
             "early": ["-DEARLY", "-shared", "-fPIC", "-Wl,-z,initfirst"]}

    def make(name):
        return builder.once(f"touched-{name}".replace(" ", "-"), lambda folder: builder.compile(
            folder / ("early-touched.so" if name == "early" else "touched"), HERE / "touched.c", "-O1", "-Wall", "-Wextra", "-rdynamic",
            *flags[name]))

    return make


@pytest.fixture
def run(touched, empty_library, library):
    """run(name, written, options): standard error, and the bytes of its own that the program has: without hugeld, with it, and of
    these the huge ones."""

    def start(name, written, options):
        found = []
        for lib in empty_library, library:
            env = helpers.preload(lib, touched("early"), options=options, T_WRITTEN=str(written))
            result = helpers.run([touched(name)], env)
            assert result.returncode == 0, result
            found += [int(kib) * 1024 for kib in re.findall(r"^Anon\w+: +(\d+) kB$", result.stdout, re.M)]
        plain, _, own, huge = found
        return result.stderr, plain, own, huge

    return start


@pytest.mark.parametrize("written, moves", [(0, False), (PAGES // 2, False), (PAGES // 2 + 1, True), (PAGES, True)])
@pytest.mark.parametrize("backend", ["auto", "thp"])
def test_written(run, pool, thp, backend, written, moves):
    """Pages that were only read don't count."""
    pool(0)
    said, plain, own, huge = run("zeros", written, f"backend={backend},verbose=2")
    assert (said, huge) == ((MOVES, BYTES) if moves else (STAYS, 0))
    assert own <= plain + SLACK + (BYTES - written * helpers.PAGE if moves else 0)


def test_relocated(run, pool, thp):
    pool(0)
    said, plain, own, huge = run("relocated", 0, "verbose=2,segments=text")
    assert (said, huge) == (MOVES, BYTES) and own <= plain + SLACK


@pytest.mark.parametrize("written", [0, PAGES])
def test_asked_for(run, pool, thp, written):
    pool(0)
    said, _, _, huge = run("zeros", written, "data=thp,verbose=2")
    assert (said, huge) == (MOVES, BYTES)


@pytest.mark.parametrize("options, moves", [("verbose=2", False), ("verbose=2,data=thp", True)])
def test_beside_an_image(run, touched, images, thp, options, moves):
    """Data is not copied where text and read-only data are mapped from an image, even if all of it was written to."""
    images.add(touched("large text"))
    said, plain, own, huge = run("large text", PAGES, images.options(options))
    on_image = "hugeld: touched: text 5 pages image, rodata 1 page image"
    assert (said, huge) == ((f"{on_image}, data 4 pages thp\n", BYTES) if moves else (f"{STAYS}{on_image}\n", 0))
    assert own <= plain + SLACK


@pytest.mark.parametrize("options", ["verbose=1", "strict=on"])
def test_staying_is_no_failure(run, pool, thp, options):
    """It has no line of its own below verbose=2, and strict=on does not end the program."""
    pool(0)
    said, plain, own, huge = run("zeros", 0, options)
    assert (said, huge) == ("", 0) and own <= plain + SLACK
