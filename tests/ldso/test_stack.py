# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much stack dlopen uses: the thread that calls it may have little, and knows nothing of hugeld.  The tests measure its
use beyond the installed linker's.  `pytest -s` prints the table of glibc-patches/README.md."""

import pathlib

import pytest

import helpers

HERE = pathlib.Path(__file__).resolve().parent

# Bytes for an object that nothing selects, and for one that is selected.
UNSELECTED, SELECTED = 512, 1024


@pytest.fixture(scope="module")
def depth(builder):
    return builder.once("depth", lambda folder: builder.compile(folder / "depth", "-O1", HERE / "depth.c", "-pthread"))


@pytest.fixture
def more(depth, ldso, installed):
    """more(library, patterns, options): the bytes beyond the installed linker's."""

    def measure(command, library, **variables):
        done = helpers.run([*command, library], helpers.environment(**variables))
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def beyond(library, patterns=None, options="", how=()):
        variables = {"LD_HUGEPAGES": patterns, "LD_HUGEPAGES_OPTIONS": options} if patterns else {}
        result = measure([ldso, depth, *how], library, **variables) - measure([installed, depth, *how], library)
        print(f"| {patterns} | {options} | {result} |")
        return result

    return beyond


@pytest.mark.parametrize("patterns", ["main", "/usr/bin/*", "no-such-object", "no-such-object.so*", "!libbig*:main"])
def test_of_what_is_not_selected(patterns, builder, more, thp):
    _, [library] = builder.with_library("dso")
    assert more(library) <= 128
    for backend in ("thp", "auto"):
        assert more(library, patterns, f"backend={backend}") <= UNSELECTED


def test_of_a_namespace(more, thp):
    """A new namespace has a libc of its own, which ours looks at more closely."""
    assert more("libm.so.6", how=["new"]) <= 128
    assert more("libm.so.6", "no-such-object.so*", "backend=thp", ["new"]) <= UNSELECTED
    assert more("libm.so.6", "*", "backend=thp", ["new"]) <= SELECTED


@pytest.mark.parametrize("backend", ["thp", "auto", "hugetlb", "image"])
@pytest.mark.parametrize("patterns", ["*", "libbig.so", "libbig.so.1", "lib*:!no-such-object.so"])
def test_of_what_is_selected(patterns, backend, builder, more, pool, thp):
    pool(32)
    _, [library] = builder.with_library("dso")
    assert more(library, patterns, f"backend={backend}") <= SELECTED


@pytest.mark.parametrize("added", [False, True], ids=["not-added", "added"])
def test_with_a_store(added, builder, more, images):
    """The stack with a store, without an image of the library and with one."""
    _, [library] = builder.with_library("dso")
    if added:
        images.add(library)
    assert more(library, "libbig*", images.options("backend=image")) <= SELECTED
