# SPDX-License-Identifier: LGPL-2.1-or-later
"""Helpers of this folder's tests: this kernel's abilities, and the nodes of huge pages."""

import collections
import ctypes
import pathlib
import re
import typing

import pytest

NODES = (0, 1)
libc = ctypes.CDLL(None, use_errno=True)

ALL = ("text", "rodata")
TEXT, RODATA = 5, 1  # app-nopie: text on 5 pages, read-only data on 1
SHORT = "text stays: the huge page pool cannot serve it"


# --- the kernel's abilities: tried, never told from its version ---


def knows_mdwe():
    """prctl(2)'s PR_SET_MDWE; asked by PR_GET_MDWE."""
    return libc.prctl(66, 0, 0, 0, 0) != -1


def absent(reason):
    pytest.skip(f"n/a: {reason}")


# --- nodes ---


def node_file(node, name):
    return pathlib.Path(f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/{name}")


def node_counts(name):
    return tuple(int(node_file(node, name).read_text()) for node in NODES)


def pages_by_node(pid):
    """{(is on hugetlb pages, node): pages of 2 MiB} of PID's mappings, from numa_maps."""
    found = collections.Counter()
    for line in pathlib.Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        huge = "kernelpagesize_kB=2048" in line
        for node, pages in re.findall(r" N(\d+)=(\d+)", line):
            found[huge, int(node)] += int(pages)
    return found


class Row(typing.NamedTuple):
    pages: int
    nodes: tuple  # hugetlb pages on node 0 and node 1 while the program ran
    stderr: str
    plans: dict
