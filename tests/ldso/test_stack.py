# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much stack dlopen uses: the thread that calls it may have little, and knows nothing of hugeld."""

import pathlib

import pytest

import helpers

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def depth(builder):
    return builder.once("depth", lambda folder: builder.compile(folder / "depth", "-O1", HERE / "depth.c", "-pthread"))


def measure(command, library, **variables):
    done = helpers.run([*command, library], helpers.environment(**variables))
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("patterns, most", [
    (None, 128), ("main", 512), ("/usr/bin/*", 512), ("no-such-object", 512), ("no-such-object.so*", 512), ("!libbig*:main", 512),
    ("*", 1024), ("libbig.so", 1024), ("libbig.so.1", 1024), ("lib*:!no-such-object.so", 1024),
])
def test_depth_of_dlopen(patterns, most, builder, depth, ldso, installed, thp):
    """No more than this beyond the installed linker: of the second number libbig is selected."""
    _, [library] = builder.with_library("dso")
    plain = measure([installed, depth], library)
    more = {"LD_HUGEPAGES": patterns, "LD_HUGEPAGES_OPTIONS": "backend=thp"} if patterns else {}
    assert measure([ldso, depth], library, **more) - plain <= most
