# SPDX-License-Identifier: LGPL-2.1-or-later
"""Helpers of this folder's tests: this kernel's abilities, and the nodes of huge pages."""

import collections
import ctypes
import functools
import pathlib
import platform
import re
import tarfile
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


def find_disk(at, magic):
    """The disk that has MAGIC there, or None: some kernels number disks as they find them."""
    for path in sorted(pathlib.Path("/dev").glob("nvme*n?")):
        with open(path, "rb") as disk:
            disk.seek(at)
            if disk.read(len(magic)) == magic:
                return path
    return None


@functools.cache
def load_modules():
    """Those that the guest has for this kernel, until no further one finds the modules that it needs.  The names of the loaded
    ones."""
    import lzma  # whose library the arm64 guests do not have, nor modules

    disk = find_disk(257, b"ustar")
    if disk is None:
        return []
    with tarfile.open(disk) as tar:
        left = {entry.name: tar.extractfile(entry).read() for entry in tar}
    loaded = []
    while True:
        done = [name for name, data in left.items() if load_module(lzma.decompress(data) if name.endswith(".xz") else data)]
        if not done:
            return loaded
        loaded += done
        left = {name: data for name, data in left.items() if name not in done}


def load_module(data):
    call = {"x86_64": 175, "aarch64": 105}[platform.machine()]  # init_module
    return libc.syscall(call, data, ctypes.c_ulong(len(data)), b"") == 0


def has_file_system(name):
    load_modules()
    return any(line.split()[-1] == name for line in pathlib.Path("/proc/filesystems").read_text().splitlines())


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
