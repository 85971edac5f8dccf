# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads ELF files, and finds where they lie in a process."""

import collections
import dataclasses
import os
import pathlib
import struct

from helpers import PAGE
from stores import is_image

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_GNU_RELRO = 1, 2, 3, 0x6474E552
PF_X, PF_W, PF_R = 1, 2, 4


@dataclasses.dataclass
class Header:
    type: int
    flags: int
    offset: int
    vaddr: int
    file_bytes: int
    memory_bytes: int
    position: int  # in the file


def read_headers(path):
    """The program headers of an ELF64 file of this machine's byte order."""
    with open(path, "rb") as file:
        head = file.read(64)
        assert head[:5] == b"\x7fELF\x02", path
        phoff, phentsize, phnum = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        file.seek(phoff)
        table = file.read(phentsize * phnum)
    headers = []
    for i in range(phnum):
        kind, flags, offset, vaddr, _, filesz, memsz, _ = struct.unpack_from("<IIQQQQQQ", table, i * phentsize)
        headers.append(Header(kind, flags, offset, vaddr, filesz, memsz, phoff + i * phentsize))
    return headers


def page_down(address):
    return address & -PAGE


def page_up(address):
    return -(-address // PAGE) * PAGE


def read_auxv(pid):
    words = struct.iter_unpack("QQ", pathlib.Path(f"/proc/{pid}/auxv").read_bytes())
    return dict(words)


@dataclasses.dataclass
class Object:
    """An ELF file as it lies in a process."""

    path: str
    bias: int
    start: int
    end: int
    relro: tuple
    loads: list

    @property
    def name(self):
        return os.path.basename(self.path)


def object_at(path, bias):
    headers = read_headers(path)
    loads = [h for h in headers if h.type == PT_LOAD and h.memory_bytes]
    relro = [h for h in headers if h.type == PT_GNU_RELRO]
    # The dynamic linker protects whole pages inside it.
    relro = [(page_down(bias + h.vaddr), page_down(bias + h.vaddr + h.memory_bytes)) for h in relro] or [(0, 0)]
    start_ = bias + page_down(min(h.vaddr for h in loads))
    end = bias + page_up(max(h.vaddr + h.memory_bytes for h in loads))
    return Object(path, bias, start_, end, relro[0], loads)


def find_bias(path, mappings):
    """The load bias that most of the file mappings of PATH vote for."""
    votes = collections.Counter()
    for mapping in mappings:
        for h in read_headers(path):
            in_file = page_down(h.offset) <= mapping.offset < h.offset + h.file_bytes
            if h.type == PT_LOAD and in_file:
                votes[mapping.start - mapping.offset + page_down(h.offset) - page_down(h.vaddr)] += 1
    return votes.most_common(1)[0][0]


def origin_of(image):
    """The file that IMAGE, in a store, was made of."""
    return os.readlink(os.path.join(os.path.dirname(image), ".origin"))


def read_objects(pid, mappings):
    """The ELF objects of PID, the executable first, from the remains of their file mappings.  None remain of those that
    the patched linker has mapped from their images; they are there with the image's path."""
    executable = os.readlink(f"/proc/{pid}/exe")
    by_name, images = collections.defaultdict(list), collections.defaultdict(list)
    for mapping in mappings:
        if mapping.inode and mapping.name.startswith("/") and not mapping.is_hugetlb:
            (images if is_image(mapping.name) else by_name)[mapping.name].append(mapping)
    by_name.update({name: found for name, found in images.items() if origin_of(name) not in (*by_name, executable)})
    objects = []
    entry = read_auxv(pid)[9]  # AT_ENTRY
    with open(executable, "rb") as file:
        objects.append(object_at(executable, entry - struct.unpack("<Q", file.read(32)[24:])[0]))
    for name, found in by_name.items():
        if name == executable or not os.path.exists(name):
            continue
        with open(name, "rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        objects.append(object_at(name, find_bias(name, found)))
    return objects
