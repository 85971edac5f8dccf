# SPDX-License-Identifier: LGPL-2.1-or-later
"""Huge pages on one node and a process that is held to another: it moves with pages of the right node, or stays with
the reason; no process dies, and pages that were promised and are missing are noticed before the program's own memory is
touched."""

import pytest

from vmguest import ALL, RODATA, SHORT, TEXT

PAGES = TEXT + RODATA


@pytest.fixture(params=["cpuset v1", "cpuset v2", "bind"])
def held(request, under, group):
    """held(node): a command prefix that allows this node alone."""

    def hold(node):
        if request.param == "bind":
            return under(f"bind={node}")
        folder = group("cpuset", int(request.param[-1]))
        (folder / "cpuset.cpus").write_text("0-1")
        (folder / "cpuset.mems").write_text(str(node))
        return under(f"join={folder}")

    return hold


# --- node 0 has pages, node 1 has none ---


def test_held_to_the_empty_node(builder, row, nodes, held):
    nodes(64, 0)
    app = builder.executable("nopie")
    found = row([app], {}, "backend=hugetlb", held(1))
    assert found.nodes == (0, 0)
    assert f"hugeld: {app.name}: {SHORT}" in found.stderr


# --- both nodes have pages ---


@pytest.mark.parametrize("node", [0, 1])
def test_held(builder, row, nodes, held, node):
    nodes(32, 32)
    app = builder.executable("nopie")
    assert row([app], {app.name: ALL}, "backend=hugetlb", held(node)).nodes[node] == PAGES


@pytest.mark.parametrize("rule, options, wanted", [
    ("prefer=1", "numa=any", (0, PAGES)),
    ("cpu=1", "numa=local", (0, PAGES)),
    ("cpu=0", "numa=local", (PAGES, 0)),
    ("interleave=1", "numa=any", (PAGES // 2, PAGES // 2)),
    ("cpu=1", "numa=interleave", (PAGES // 2, PAGES // 2)),
])
def test_chosen(builder, row, nodes, under, rule, options, wanted):
    nodes(32, 32)
    app = builder.executable("nopie")
    found = row([app], {app.name: ALL}, f"backend=hugetlb,{options}", under(rule)).nodes
    # Interleaving counts from an offset: two spans of 5 and 1 pages may both begin on the same node.
    assert found == wanted or ("interleave" in rule + options and sorted(found) == [2, 4]), found


def test_interleave_in_a_cpuset(builder, row, nodes, held):
    """numa=interleave spreads over the nodes that are allowed, not over all."""
    nodes(32, 32)
    app = builder.executable("nopie")
    assert row([app], {app.name: ALL}, "backend=hugetlb,numa=interleave", held(1)).nodes == (0, PAGES)


# --- the own node has a few ---


@pytest.mark.parametrize("own", [TEXT - 1, TEXT])
def test_a_few_on_the_own_node(builder, row, nodes, held, own):
    """Text is on huge pages as a whole or not at all, and never on the other node."""
    nodes(64, own)
    app = builder.executable("nopie")
    moved = ("text",) if own == TEXT else ("rodata",)
    found = row([app], {app.name: moved}, "backend=hugetlb", held(1))
    assert found.nodes == (0, TEXT if own == TEXT else RODATA)
    assert (SHORT in found.stderr) == (own < TEXT), found.stderr


# --- surplus pages ---


@pytest.mark.parametrize("node", [0, 1])
def test_surplus(builder, row, nodes, overcommit, held, node):
    """The pool is empty and may grow: by pages of the own node."""
    nodes(0, 0)
    overcommit(16)
    app = builder.executable("nopie")
    found = row([app], {app.name: ALL}, "backend=hugetlb", held(node), counted=False)
    assert (found.nodes[node], found.nodes[1 - node]) == (PAGES, 0)


def test_too_little_surplus(builder, row, nodes, overcommit, held):
    nodes(64, 0)
    overcommit(TEXT - 1)
    app = builder.executable("nopie")
    found = row([app], {app.name: ("rodata",)}, "backend=hugetlb", held(1), counted=False)
    assert found.nodes == (0, RODATA) and SHORT in found.stderr


# --- thp ---


def test_thp(builder, row, nodes, held, thp):
    nodes(0, 0)
    app = builder.executable("nopie")
    row([app], {app.name: ALL}, "backend=thp", held(1), backend="thp")
