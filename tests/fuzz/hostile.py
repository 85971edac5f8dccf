# SPDX-License-Identifier: LGPL-2.1-or-later
"""ELF64 files that are wrong in one place: a real one, with one field of its headers changed."""

import struct

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PHDR = struct.Struct("<IIQQQQQQ")
FIELDS = ["type", "flags", "offset", "vaddr", "paddr", "filesz", "memsz", "align"]
PT_LOAD, PT_NOTE, PT_GNU_RELRO = 1, 4, 0x6474E552
R, W, X = 4, 2, 1


class Elf:
    """A little-endian ELF64 file's headers, which may be changed, in the rest of its bytes."""

    def __init__(self, data):
        self.data = bytes(data)
        self.header = list(HEADER.unpack_from(data))
        self.phoff, self.phnum = self.header[5], self.header[10]
        self.phdr = [
            dict(zip(FIELDS, PHDR.unpack_from(data, self.phoff + i * PHDR.size))) for i in range(self.phnum)
        ]

    def loads(self):
        return [ph for ph in self.phdr if ph["type"] == PT_LOAD]

    def spare(self):
        """A program header that is not needed."""
        return next(ph for ph in reversed(self.phdr) if ph["type"] not in (PT_LOAD, 2, 3, 6, 7, PT_GNU_RELRO))

    def relro(self):
        return next(ph for ph in self.phdr if ph["type"] == PT_GNU_RELRO)

    def headers(self):
        return b"".join(PHDR.pack(*(ph[field] & (2**64 - 1) for field in FIELDS)) for ph in self.phdr)

    def pack(self):
        data = bytearray(self.data)
        HEADER.pack_into(data, 0, *self.header)
        packed = self.headers()
        data[self.phoff : self.phoff + len(packed)] = packed
        return bytes(data)


def reaches_out(data):
    """RELRO is not inside the object: the dynamic linker then reprotects other memory beside it."""
    elf = Elf(data)
    loads = [ph for ph in elf.loads() if ph["memsz"]]
    start, end = min(ph["vaddr"] for ph in loads) & -4096, max(ph["vaddr"] + ph["memsz"] for ph in loads)
    return any(
        ph["memsz"] and not start <= ph["vaddr"] <= ph["vaddr"] + ph["memsz"] <= end + -end % 4096
        for ph in elf.phdr
        if ph["type"] == PT_GNU_RELRO
    )


WILD = {
    "type": [0, PT_LOAD, PT_NOTE, PT_GNU_RELRO],
    "flags": [0, R, W, X, R | W, R | X, R | W | X],
    "offset": [0, 1, 0x1000, 2**32, 2**63, 2**64 - 1],
    "vaddr": [0, 1, 0x1FF000, 0x200000, 2**47 - 0x1000, 2**62, 2**64 - 0x1000],
    "filesz": [0, 1, 2**32, 2**63, 2**64 - 1],
    "memsz": [0, 1, 0x200000, 2**40, 2**62, 2**63, 2**64 - 1],
    "align": [0, 1, 3, 0x1000, 0x200000, 2**62, 2**63],
}


def one_field(data):
    """(the change, file), each with one field of one PT_LOAD or PT_GNU_RELRO changed."""
    for i, ph in enumerate(Elf(data).phdr):
        if ph["type"] not in (PT_LOAD, PT_GNU_RELRO):
            continue
        for field, values in WILD.items():
            for value in values:
                elf = Elf(data)
                if elf.phdr[i][field] != value:
                    elf.phdr[i][field] = value
                    yield f"{i}-{field}-{value:#x}", elf.pack()
        elf = Elf(data)
        elf.phdr[i]["filesz"] = elf.phdr[i]["memsz"] + 1
        yield f"{i}-filesz-above-memsz", elf.pack()


def _swap(elf):
    loads = [i for i, ph in enumerate(elf.phdr) if ph["type"] == PT_LOAD]
    first, second = loads[0], loads[1]
    elf.phdr[first], elf.phdr[second] = elf.phdr[second], elf.phdr[first]


def _overlap(elf):
    first, second = elf.loads()[:2]
    first["memsz"] = second["vaddr"] - first["vaddr"] + 0x1000


def _share_page(elf, step=0):
    first, second = elf.loads()[:2]
    at = second["vaddr"] + 0x10
    first.update(filesz=at - first["vaddr"], memsz=at - first["vaddr"])
    second.update(vaddr=at, paddr=at, offset=second["offset"] + 0x10 + step, filesz=second["filesz"] - 0x10, memsz=second["memsz"] - 0x10)


def _hole(elf):
    elf.loads()[-1]["vaddr"] += 0x40000000


def _relro(elf, vaddr, memsz):
    elf.relro().update(vaddr=vaddr, memsz=memsz)


def _relro_on(elf, which):
    load = elf.loads()[which]
    _relro(elf, load["vaddr"], load["memsz"])


def _second_relro(elf, which):
    load = elf.loads()[which]
    elf.spare().update(type=PT_GNU_RELRO, flags=R, vaddr=load["vaddr"], memsz=load["memsz"])


def _second_relro_same(elf):
    elf.spare().update(elf.relro())


def _end(elf):
    return max(ph["vaddr"] + ph["memsz"] for ph in elf.loads())


SHAPES = {
    "unsorted": _swap,
    "overlapping": _overlap,
    "sharing-a-page": _share_page,
    "two-pages-of-the-file-at-one-address": lambda elf: _share_page(elf, 0x1000),
    "a-hole-of-1-GiB": _hole,
    "zero-size-load": lambda elf: elf.spare().update(type=PT_LOAD, vaddr=_end(elf) + 0x400000, filesz=0, memsz=0),
    "zero-size-load-inside": lambda elf: elf.spare().update(type=PT_LOAD, vaddr=0x1000, filesz=0, memsz=0),
    "relro-on-first": lambda elf: _relro_on(elf, 0),
    "relro-on-text": lambda elf: _relro_on(elf, 1),
    "relro-on-rodata": lambda elf: _relro_on(elf, -2),
    "relro-on-data": lambda elf: _relro_on(elf, -1),
    "relro-behind-the-end": lambda elf: _relro(elf, _end(elf) + 0x200000, 0x1000),
    "relro-around-all": lambda elf: _relro(elf, 0, _end(elf) + 0x1000),
    "relro-without-bytes": lambda elf: _relro(elf, elf.loads()[-1]["vaddr"], 0),
    "relro-one-byte": lambda elf: _relro(elf, elf.loads()[-1]["vaddr"], 1),
    "two-relros": _second_relro_same,
    "second-relro-on-data": lambda elf: _second_relro(elf, -1),
    "second-relro-on-rodata": lambda elf: _second_relro(elf, -2),
    "align-0": lambda elf: [ph.update(align=0) for ph in elf.loads()],
    "align-1": lambda elf: [ph.update(align=1) for ph in elf.loads()],
    "align-3": lambda elf: [ph.update(align=3) for ph in elf.loads()],
    "align-2^21": lambda elf: [ph.update(align=2**21) for ph in elf.loads()],
    "align-2^63": lambda elf: [ph.update(align=2**63) for ph in elf.loads()],
}


def shapes(data):
    """(the change, file), each wrong or unusual in a way that takes more than one number."""
    for what, change in SHAPES.items():
        elf = Elf(data)
        try:
            change(elf)
        except StopIteration:  # there is no such header to change
            continue
        yield what, elf.pack()


def many_headers(data, count=65535):
    """The file with COUNT program headers at its end: its own, and then empty ones."""
    elf = Elf(data)
    headers = elf.headers() + PHDR.pack(0, 0, 0, 0, 0, 0, 0, 0) * (count - elf.phnum)
    elf.header[5], elf.header[10] = len(data) + -len(data) % 8, count
    out = bytearray(data) + bytes(-len(data) % 8) + headers
    HEADER.pack_into(out, 0, *elf.header)
    return bytes(out)
