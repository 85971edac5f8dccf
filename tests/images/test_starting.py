# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld run: what it leaves alone, and when it preloads."""

import shutil

import pytest

import helpers
from worlds import APP, SYSTEM


# --- preloading ---


@pytest.fixture
def store(world):
    """The system's store of that namespace."""
    made = world.run("sh", "-c", f"mkdir -m 755 {SYSTEM} && mount -t tmpfs -o mode=755,huge=always,size=256m none {SYSTEM} && "
                     f"touch -d '1 hour ago' {SYSTEM}/.lock && chmod 600 {SYSTEM}/.lock")
    assert made.returncode == 0, made
    return world.path(SYSTEM)


def run(world, *words, prefix=(), **options):
    return world.run(*prefix, "/run/bin/hugeld", "run", *words, **options)


@pytest.fixture
def library(world, builder):
    """A library at a path that only root can change, whose file name is not its soname, libbig.so.1."""
    _, [dso] = builder.with_library("dso-aligned")
    shutil.copy(dso, world.path("/run/programs/large.so"))
    shutil.copy(helpers.LIBRARY, world.path("/run/bin"))
    return "/run/programs/large.so"


def test_preloads_only_for_what_is_shared(world, store, library):
    """Nothing of hugeld is in a program for which the store has none of the named objects, even if it has others."""
    plain = ["env", "-u", "LD_HUGEPAGES_OPTIONS"]

    def preloads(patterns, verbose=0):
        result = run(world, "-p", patterns, "-o", f"verbose={verbose}", "--", "sh", "-c", "cat /proc/self/maps; env", prefix=plain)
        assert result.returncode == 0 and ("libhugeld.so" in result.stdout) == ("LD_HUGEPAGES=" in result.stdout), result
        return "libhugeld.so" in result.stdout

    world.enable("--way=image", APP)
    assert not any(preloads(patterns, verbose) for patterns in ("main:libbig*", "main:*") for verbose in (0, 1))
    started = run(world, "-p", "main:libbig*", "-o", "verbose=1", "--", APP, prefix=plain)
    assert "there is no image of a library that is named" in started.stderr, started
    world.enable("--way=image", library)
    assert "started" not in world.hugeld("inspect", library).stdout  # no program
    assert all(preloads(patterns, verbose)
               for patterns in ("main:libbig*", "main:large.so", library, "main:*") for verbose in (0, 1))
    assert not any(preloads(patterns) for patterns in ("main:libother*", "main:!libbig*:*", "/run/other/libother*"))
    # By links, or another mount, the program has it at another path.
    assert preloads("main:/run/elsewhere/libbig.so.1") and preloads("main:/run/elsewhere/*")
    moved = world.path(library).parent.rename(world.path("/run/renamed"))
    assert preloads("main:libbig*")
    moved.rename(world.path(library).parent)
    world.path(library).chmod(0o700)  # the image is that of another file now
    assert not preloads("main:libbig*")


def test_strict_for_a_library(world, store, library):
    """The program could begin on its image, and does not run, since the other named object is not there."""
    world.enable("--way=image", APP)
    plain = ["env", "-u", "LD_HUGEPAGES_OPTIONS"]
    refused = run(world, "-p", "main:libnone.so.1", "-o", "strict=on", "--", APP, prefix=plain)
    assert (refused.returncode, refused.stdout) == (127, "") and "libnone.so.1: no object" in refused.stderr, refused
    assert run(world, "-p", "main:libnone.so.1", "--", APP, prefix=plain).returncode == world.run(APP).returncode
