# SPDX-License-Identifier: LGPL-2.1-or-later
"""Helpers of this folder's tests: this kernel's abilities, and the nodes of huge pages."""

import collections
import ctypes
import functools
import lzma
import mmap
import pathlib
import platform
import re
import tarfile
import typing

import pytest

import helpers

NODES = (0, 1)
MODULES = pathlib.Path("/modules.tar")  # of a guest whose root is an initramfs; of others it is a disk
MAP_NORESERVE, MAP_HUGETLB = 0x4000, 0x40000
MREMAP_MAYMOVE, MREMAP_FIXED = 1, 2
MPOL_BIND = 2
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
FAILED = ctypes.c_void_p(-1).value

ALL = ("text", "rodata")
TEXT, RODATA = 5, 1  # app-nopie: text on 5 pages, read-only data on 1
SHORT = "text stays: the huge page pool cannot serve it"


# --- the kernel's abilities: tried, never told from its version ---


def map_memory(size, flags):
    flags |= mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return libc.mmap(None, ctypes.c_size_t(size), 0, flags, -1, ctypes.c_long(0))


@functools.cache
def can_move_hugetlb():
    """mremap(2) of hugetlb pages."""
    huge, scratch = map_memory(helpers.HUGE, MAP_NORESERVE | MAP_HUGETLB), map_memory(2 * helpers.HUGE, 0)
    assert FAILED not in (huge, scratch)
    to = -(-scratch // helpers.HUGE) * helpers.HUGE
    size = ctypes.c_size_t(helpers.HUGE)
    moved = libc.mremap(ctypes.c_void_p(huge), size, size, MREMAP_MAYMOVE | MREMAP_FIXED, ctypes.c_void_p(to)) != FAILED
    for address, length in ((scratch, 2 * helpers.HUGE), (huge, 0 if moved else helpers.HUGE)):
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
    return moved


def knows_mdwe():
    """prctl(2)'s PR_SET_MDWE; asked by PR_GET_MDWE."""
    return libc.prctl(66, 0, 0, 0, 0) != -1


def knows_collapse():
    """madvise(2)'s MADV_COLLAPSE; the advice is checked before a length of 0."""
    return libc.madvise(None, 0, 25) == 0


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
    disk = MODULES if MODULES.exists() else find_disk(257, b"ustar")
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


def bind_thread(node):
    """Memory of the calling thread comes from NODE alone."""
    nodes = ctypes.c_ulong(1 << node)
    call = {"x86_64": 238, "aarch64": 237}[platform.machine()]  # set_mempolicy
    assert libc.syscall(call, MPOL_BIND, ctypes.byref(nodes), 8 * ctypes.sizeof(nodes) + 1) == 0, "set_mempolicy"


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
