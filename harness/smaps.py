# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads /proc/PID/smaps."""

import dataclasses
import pathlib
import re

from helpers import PAGE


@dataclasses.dataclass
class Mapping:
    start: int
    end: int
    permissions: str
    offset: int
    inode: int
    name: str
    kb: dict
    flags: list  # the kernel's two letters for each

    @property
    def bytes(self):
        return self.end - self.start

    @property
    def hugetlb_bytes(self):
        return (self.kb["Private_Hugetlb"] + self.kb["Shared_Hugetlb"]) * 1024

    @property
    def is_hugetlb(self):
        return self.kb["KernelPageSize"] * 1024 > PAGE

    @property
    def is_copy(self):
        """Anonymous, or the memfd of a copy whose program may move it away."""
        return self.inode == 0 or self.name == "/memfd:hugeld (deleted)"

    @property
    def thp_bytes(self):
        return (self.kb["AnonHugePages"] + (self.kb["ShmemPmdMapped"] if self.is_copy else 0)) * 1024


def read_smaps(pid):
    """The mappings of PID, ascending."""
    return parse_smaps(pathlib.Path(f"/proc/{pid}/smaps").read_text(errors="surrogateescape"))


def parse_smaps(text):
    mappings = []
    for line in text.split("\n"):
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) \S+ (\d+) *(.*)$", line)
        if head:
            start_, end, permissions, offset, inode, name = head.groups()
            numbers = int(start_, 16), int(end, 16), permissions, int(offset, 16), int(inode)
            mappings.append(Mapping(*numbers, name, {}, []))
        elif line.endswith(" kB"):
            key, value = line[:-3].split(":")
            mappings[-1].kb[key] = int(value)
        elif line.startswith("VmFlags:"):
            mappings[-1].flags += line.split()[1:]
    return mappings


def pieces(mappings, start, end):
    """[start, end) cut at mappings: (start, end, permissions), '' where nothing is mapped; equal neighbours join."""
    found, at = [], start

    def add(to, permissions):
        nonlocal at
        if to > at:
            if found and found[-1][2] == permissions:
                found[-1] = (found[-1][0], to, permissions)
            else:
                found.append((at, to, permissions))
            at = to

    for mapping in mappings:
        if mapping.end > start and mapping.start < end:
            add(mapping.start, "")
            add(min(mapping.end, end), mapping.permissions)
    add(end, "")
    return found
