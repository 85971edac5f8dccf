# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads ELF64 files by itself, and compares an image with its original: every byte that is loaded, every header but for the
places in the file, and the bytes between."""

import itertools
import re
import struct

import helpers
from objects import PF_R, PF_W, PF_X, PT_GNU_RELRO, PT_INTERP, PT_LOAD, page_down, page_up

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PHDR = struct.Struct("<IIQQQQQQ")
SHDR = struct.Struct("<IIQQQQIIQQ")
SHT_NULL, SHT_NOBITS, SHF_ALLOC = 0, 8, 2
ET_EXEC, ET_DYN, PT_NULL = 2, 3, 0
TRAPS = {62: b"\xcc\xcc\xcc\xcc", 183: struct.pack("<I", 0xD4200000)}


class Phdr:
    def __init__(self, numbers):
        self.type, self.flags, self.offset, self.vaddr, self.paddr, self.filesz, self.memsz, self.align = numbers

    def moved_to(self, offset):
        return Phdr((self.type, self.flags, offset, self.vaddr, self.paddr, self.filesz, self.memsz, self.align))

    def kept(self):
        """The fields that an image may not change."""
        return self.type, self.flags, self.vaddr, self.paddr, self.filesz, self.memsz

    def whole_pages(self):
        """What is mapped of the file for this PT_LOAD: whole pages, but for the zeros behind data."""
        head = self.offset % helpers.PAGE if self.filesz else 0
        tail = page_up(self.vaddr + self.filesz) - (self.vaddr + self.filesz) if self.filesz == self.memsz else 0
        return Phdr((self.type, self.flags, self.offset - head, self.vaddr - head, self.paddr - head,
                     self.filesz + head + tail, self.memsz + head + tail, self.align))


def without_shared_pages(loads):
    """The LOADS, where a page that some share is the last one's; None for one that has no other page."""
    loads = [ph.moved_to(ph.offset) for ph in loads]
    for i in reversed(range(1, len(loads))):
        before, ph = loads[i - 1 : i + 1]
        if page_up(before.vaddr + before.memsz) > page_down(ph.vaddr):
            head = ph.vaddr % helpers.PAGE
            ph.vaddr, ph.paddr, ph.offset = ph.vaddr - head, ph.paddr - head, ph.offset - head
            ph.filesz, ph.memsz = ph.filesz + head, ph.memsz + head
            before.filesz = before.memsz = ph.vaddr - before.vaddr
            if before.memsz <= 0:
                loads[i - 1] = ph  # which the one before that is compared with
    return [None if ph is after else ph for ph, after in zip(loads, [*loads[1:], None])]


class Shdr:
    def __init__(self, numbers):
        self.name, self.type, self.flags, self.addr, self.offset, self.size, *self.rest = numbers
        self.align = self.rest[2]

    def kept(self):
        return self.name, self.type, self.flags, self.addr, self.size, tuple(self.rest)

    def has_bytes(self):
        return self.type not in (SHT_NULL, SHT_NOBITS)


class Elf:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.header = HEADER.unpack_from(self.data)
        self.type, self.machine = self.header[1:3]
        self.phoff, self.shoff = self.header[5:7]
        phnum, shnum = self.header[10], self.header[12]
        if shnum == 0 and self.shoff:
            shnum = Shdr(SHDR.unpack_from(self.data, self.shoff)).size
        if phnum == 0xFFFF:
            phnum = SHDR.unpack_from(self.data, self.shoff)[7]
        self.phdrs = [Phdr(PHDR.unpack_from(self.data, self.phoff + i * PHDR.size)) for i in range(phnum)]
        self.shdrs = [Shdr(SHDR.unpack_from(self.data, self.shoff + i * SHDR.size)) for i in range(shnum)]
        self.mapped = without_shared_pages([ph for ph in self.phdrs if ph.type == PT_LOAD and ph.memsz])
        self.loads = [ph for ph in self.mapped if ph]

    def bytes(self, offset, size):
        assert offset + size <= len(self.data)
        return self.data[offset : offset + size]

    def kept(self):
        """The ELF header but for the places of the tables."""
        return [number for i, number in enumerate(self.header) if i not in (5, 6)]

    def with_headers_of(self, other, moved):
        """This file's bytes with the ELF and program headers of OTHER where both copies of them are; MOVED: where a
        segment has the ELF header."""
        data = bytearray(self.data)
        head = other.bytes(0, HEADER.size)
        data[: HEADER.size] = head
        data[moved : moved + HEADER.size] = head
        size = len(self.phdrs) * PHDR.size
        data[self.phoff : self.phoff + size] = other.bytes(other.phoff, size)
        return bytes(data)


def move_headers(path, at):
    """Puts the program headers of PATH at the offset AT, as llvm-bolt puts them elsewhere."""
    data = bytearray(path.read_bytes())
    elf = Elf(path)
    size = len(elf.phdrs) * PHDR.size
    data[at : at + size] = elf.bytes(elf.phoff, size)
    struct.pack_into("<Q", data, 32, at)
    path.write_bytes(data)


def base_of(elf):
    bases = {ph.vaddr - ph.offset for ph in elf.loads}
    assert len(bases) == 1, "offsets do not go with addresses in one difference"
    return bases.pop()


def loaded_header(elf, base):
    """The offset in the image at which a segment has the original's first bytes; 0 if none has."""
    for ph in elf.loads:
        if ph.filesz and ph.offset < helpers.PAGE:
            return ph.vaddr - ph.offset - base
    return 0


def check_traps(original, image, base, huge):
    """Huge pages that hold text and nothing writable have traps wherever no page of the original is, and others have zeros
    there.  Returns the number of bytes of traps."""
    trap, taken = TRAPS[image.machine], bytearray(len(image.data))
    loads = [ph.whole_pages() for ph in original.loads]
    loads = [ph.moved_to(ph.vaddr - base) for ph in loads]
    for ph in loads:
        taken[ph.offset : ph.offset + ph.memsz] = b"\1" * len(taken[ph.offset : ph.offset + ph.memsz])
    taken[: HEADER.size] = b"\1" * HEADER.size
    checked, end_of_loads = 0, max(ph.offset + ph.memsz for ph in loads)
    for page in range(0, len(image.data), huge):
        inside = [ph for ph in loads if (ph.offset & -helpers.PAGE) < page + huge and ph.offset + ph.memsz > page]
        inside = [ph for ph in inside if page_up(ph.offset + ph.memsz) > page]
        text = [ph for ph in inside if ph.flags & PF_X and ph.filesz]
        traps = text and not any(ph.flags & PF_W for ph in inside)
        for free in re.finditer(rb"\0+", bytes(taken[page : min(page + huge, end_of_loads)])):
            start, end = page + free.start(), page + free.end()
            expected = (trap * ((end - start) // 4 + 2))[start % 4 :][: end - start] if traps else bytes(end - start)
            assert image.data[start:end] == expected, f"{start:#x} to {end:#x} is not {expected[:4]}"
            checked += end - start if traps else 0
        if traps:  # also behind the last segment
            assert not image.data[end_of_loads : page + huge].strip(trap), "no traps at the end"
    return checked


def is_only_read(ph):
    return ph.flags & (PF_R | PF_W) == PF_R


def pages_of(ph):
    return set(range(ph.vaddr // helpers.PAGE, page_up(ph.vaddr + ph.memsz) // helpers.PAGE))


def pages_with(elf, flag):
    return set().union(*(pages_of(ph) for ph in elf.loads if is_only_read(ph) and ph.flags & flag))


def executable_pages(original, huge):
    """The pages that edges=merge makes executable; and the huge pages among them that have to be mapped as a whole.  A
    region ends at the next segment that is written to."""
    small, whole = pages_with(original, PF_X), []
    relro = set().union(*(pages_of(ph) for ph in original.phdrs if ph.type == PT_GNU_RELRO and ph.memsz))
    limits = [min(pages_of(ph)) for ph in original.loads[1:]] + [max(pages_of(original.loads[-1])) + 1]
    for only_read, region in itertools.groupby(zip(original.loads, limits), lambda pair: is_only_read(pair[0])):
        region = list(region)
        start, end = min(pages_of(region[0][0])), region[-1][1]
        text = set().union(*(pages_of(ph) for ph, _ in region if ph.flags & PF_X))
        for at in range(start // (huge // helpers.PAGE) * (huge // helpers.PAGE), end, huge // helpers.PAGE) if only_read else ():
            pages = set(range(at, at + huge // helpers.PAGE))
            if at >= start and max(pages) < end and pages & text and not pages & relro:
                whole.append(pages)
    return small.union(*whole), whole


def check_rows(original, image, huge):
    """An executable's segments that are only read have the borders of huge pages between them: each huge page that holds text and
    nothing writable is executable as a whole, and nothing else that was not before.  No segment is empty."""
    mapped = iter(original.mapped)
    for before, after in zip(original.phdrs, image.phdrs):
        before = next(mapped) if before.type == PT_LOAD and before.memsz else before
        if before is None:
            assert after.type == PT_NULL
        elif after.type == PT_NULL and before.type == PT_LOAD:
            assert is_only_read(before) and after.kept() == (0, 0, 0, 0, 0, 0)
        elif before.type == PT_LOAD and before.memsz and is_only_read(before):
            assert (after.type, after.flags, after.paddr - after.vaddr) == (before.type, before.flags, before.paddr - before.vaddr)
            assert after.filesz == after.memsz > 0
        else:
            assert after.kept() == before.kept()
    assert [ph.vaddr for ph in image.loads] == sorted(ph.vaddr for ph in image.loads)
    wanted, whole = executable_pages(original, huge)
    assert pages_with(image, PF_X) == wanted
    assert pages_with(image, PF_R) == pages_with(original, PF_R) | wanted
    for pages in whole:
        assert len([ph for ph in image.loads if pages_of(ph) >= pages]) == 1


def is_executable(elf, path):
    """Whether it is an executable, and no library."""
    if elf.type == ET_EXEC:
        return True
    dynamic = helpers.run(["readelf", "-Wd", path]).stdout
    is_pie = re.search(r"FLAGS_1.*\bPIE\b", dynamic) is not None
    return is_pie or (any(ph.type == PT_INTERP for ph in elf.phdrs) and "SONAME" not in dynamic)


def check_header_page(original, image, data, moved, base, huge):
    """An executable with an address of its own ends with the huge page of its headers once more, as the original has them:
    DATA is the image with those."""
    start = moved & -huge
    has_header = any(ph.filesz and ph.offset < helpers.PAGE for ph in original.loads)
    written = any(ph.flags & PF_W and page_up(ph.vaddr + ph.memsz) > base + start
                  and (ph.vaddr & -helpers.PAGE) < base + start + huge for ph in original.loads)
    if original.type != ET_EXEC or not has_header or written:
        return
    end = min(start + huge, max(ph.offset + ph.filesz for ph in image.loads))
    assert len(image.data) % huge == 0 and len(image.data) >= 2 * huge
    copy = image.data[len(image.data) - huge :][moved - start : end - start]
    assert copy == data[moved:end], "the headers are not the original's"


def check_image(original_path, image_path, huge=helpers.HUGE):
    """Proves that IMAGE_PATH is an image of ORIGINAL_PATH.  Returns it."""
    original, image = Elf(original_path), Elf(image_path)
    assert image.kept() == original.kept()
    if is_executable(original, original_path) and not any(is_only_read(ph) and ph.filesz != ph.memsz for ph in original.loads):
        check_rows(original, image, huge)
    else:
        assert [ph.kept() for ph in image.phdrs] == [ph.kept() for ph in original.phdrs]
    assert [sh.kept() for sh in image.shdrs] == [sh.kept() for sh in original.shdrs]
    assert len(image.data) % helpers.PAGE == 0
    base = base_of(image)
    assert base % huge == 0
    moved = loaded_header(original, base)
    assert image.data[moved : moved + HEADER.size] == image.data[: HEADER.size]
    data = image.with_headers_of(original, moved)
    for before, after in zip(original.phdrs, image.phdrs):
        if after.type == PT_NULL:
            pass
        elif before.type == PT_LOAD:
            assert after.align == (max if original.type == ET_DYN else min)(before.align, huge)
            assert after.align < 2 or (after.vaddr - after.offset) % after.align == 0
        else:
            assert after.align == before.align
        if before.type == PT_GNU_RELRO and before.memsz:
            assert after.vaddr - after.offset == base
        elif before.type == PT_LOAD:
            mapped = before.whole_pages()
            at, expected = mapped.vaddr - base, original.data[mapped.offset : mapped.offset + mapped.filesz]
            assert data[at : at + len(expected)] == expected, f"segment at {before.vaddr:#x}"
        elif before.filesz:
            expected = original.bytes(before.offset, before.filesz)
            assert data[after.offset : after.offset + after.filesz] == expected, f"segment at {before.vaddr:#x}"
    end, pages = max([ph.offset + ph.filesz for ph in image.loads]), [ph.whole_pages() for ph in image.loads]
    for before, after in zip(original.shdrs, image.shdrs):
        if before.flags & SHF_ALLOC and any(ph.vaddr <= before.addr <= ph.vaddr + ph.memsz for ph in image.loads):
            assert after.addr - after.offset == base
        elif before.has_bytes() and before.size:
            assert after.offset >= end or any(ph.offset <= after.offset < ph.offset + ph.filesz for ph in pages)
            assert after.align < 2 or after.offset % after.align == 0
        if before.has_bytes():
            assert data[after.offset : after.offset + after.size] == original.bytes(before.offset, before.size)
    check_header_page(original, image, data, moved, base, huge)
    if image.shdrs:
        assert image.shoff + len(image.shdrs) * SHDR.size <= len(image.data)
        assert image.shoff >= max((sh.offset + sh.size for sh in image.shdrs if sh.has_bytes()), default=0)
    check_traps(original, image, base, huge)
    return image


def readelf(path, *arguments):
    result = helpers.run(["readelf", "-W", *arguments, path])
    return result.stdout.replace(str(path), ""), result.stderr.replace(str(path), "")


def check_tools(original, image):
    """readelf shows the same symbols, notes, relocations and dynamic section, without a warning that the original does not
    give; eu-elflint complains of nothing new but that a section of an executable may lie in two segments now."""
    for what in ("-s", "-n", "-r", "-d", "-V", "-u"):
        before, after = readelf(original, what), readelf(image, what)
        # Headings name places in the file.
        same = [re.sub(r" at offset 0x[0-9a-f]+|Offset: 0x[0-9a-f]+", "", out) for out, _ in (before, after)]
        assert same[0] == same[1], what
        assert not after[1] or before[1], after[1]
    lint = [set(helpers.run(["eu-elflint", "--gnu-ld", path]).stdout.splitlines()) for path in (original, image)]
    new = {line for line in lint[1] - lint[0] if "not fully contained in segment of program header" not in line}
    assert new <= {"No errors"}, new
