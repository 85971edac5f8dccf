# SPDX-License-Identifier: LGPL-2.1-or-later
"""data=hugetlb and bss=hugetlb, which there once were, are refused with one line each, and the program runs on as if
they were not there: moving writable data back at fork was safe only as long as nothing had happened to it since."""

import pathlib
import re

import pytest

import helpers

HERE = pathlib.Path(__file__).resolve().parent
REFUSED = ["data=hugetlb", "bss=hugetlb", "data=hugetlb,bss=hugetlb"]
HOW = ["guard", "read", "shared", "replaced", "clone"]


def ways(library):
    """name -> a function of options that gives a command prefix and an environment."""
    linker = helpers.BUILD / "ldso" / "ld.so"
    return {
        "preload": lambda options: ([], helpers.preload(library, patterns="main", options=options)),
        "ldso": lambda options: ([helpers.HUGELD, "run", "--ld-so", linker, "--"],
                                 helpers.environment(LD_HUGEPAGES="main", LD_HUGEPAGES_OPTIONS=options)),
    }


@pytest.fixture(params=["preload", "ldso"])
def run(request, library):
    """run(argv, options): by either way in."""
    if request.param == "ldso" and not (helpers.BUILD / "ldso" / "ld.so").exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")

    def start(argv, options):
        prefix, env = ways(library)[request.param](options)
        return helpers.run([*prefix, *argv], env)

    return start


@pytest.fixture(scope="session")
def rearrange(builder):
    return builder.once("rearrange", lambda folder: builder.compile(
        folder / "rearrange", HERE / "rearrange.c", "-O1", "-Wall", "-Wextra", "-no-pie"))


@pytest.mark.parametrize("options", REFUSED)
def test_as_without_it(program, run, pool, thp, options):
    pool(64)
    app = program("nopie")
    default, refused = (run([app], f"backend=hugetlb,verbose=2,data=thp,{o}") for o in ("verbose=2", options))
    lines = "".join(f"hugeld: LD_HUGEPAGES_OPTIONS: {o}: no such value; ignored\n" for o in options.split(","))
    assert re.search(r"data \d pages? thp", default.stderr)
    assert (refused.returncode, refused.stdout, refused.stderr) == (0, default.stdout, lines + default.stderr)


@pytest.mark.parametrize("options", ["data=thp,bss=thp", *REFUSED])
@pytest.mark.parametrize("how", HOW)
def test_rearranged(rearrange, run, pool, thp, how, options):
    """Programs that reprotect, replace or share parts of their data, and fork."""
    pool(64)
    plain = helpers.run([rearrange, how])
    assert plain.returncode == 3 and plain.stdout.count("status 0\n") == 2, plain
    moved = run([rearrange, how], f"data=thp,{options},verbose=2")
    assert (moved.returncode, moved.stdout) == (3, plain.stdout), moved.stderr
    assert re.search(r"^hugeld: rearrange: .*\bdata \d+ pages? thp", moved.stderr, re.M), moved.stderr
    assert ("bss" in moved.stderr.replace("bss=", "")) == ("bss=thp" in options), moved.stderr
