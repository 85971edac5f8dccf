# SPDX-License-Identifier: LGPL-2.1-or-later
"""The patched dynamic linker on this kernel: the objects that it moves, by the proof of ../ldso."""

import sys

import pytest

import helpers

sys.path.append(str(helpers.ROOT / "tests" / "ldso"))

from linked import ALL, Linked, by_command, by_run  # noqa: E402  (its folder has just been added)


@pytest.fixture
def linked(pause_library):
    return Linked(helpers.BUILD / "ldso" / "ld.so", pause_library)


@pytest.mark.parametrize("way", [by_run, by_command])
def test_executable(builder, linked, nodes, way):
    nodes(0, 64)
    app = builder.executable("nopie")
    linked.prove([app], {app.name: ALL}, "main", "backend=hugetlb,data=off", way=way)


def test_library(builder, linked, nodes):
    nodes(64, 0)
    app, [library] = builder.with_library("dso")
    linked.prove([app], {library.name: ALL}, "libbig*", "backend=hugetlb,data=off")


def test_pool_too_small(builder, linked, nodes):
    nodes(1, 0)
    app = builder.executable("nopie")
    plain, result = helpers.run([app]), linked.run([app], "main", "backend=hugetlb,segments=text,verbose=1")
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
    assert "text stays: the huge page pool cannot serve it" in result.stderr
