# SPDX-License-Identifier: LGPL-2.1-or-later
"""Proves that the planned memory of a process is on huge pages and has the right bytes, and that everything else is as
without hugeld.

The proof reads smaps itself and never asks `hugeld status`; the plan comes from `hugeld inspect --pid`, and the planner
is proved by tests/unit.  A libhugeld.so that does nothing fails every test that calls check_memory().

Text and read-only data are compared with the file, byte by byte, and so are the gaps between segments, which hold trap
instructions where they can be executed and zeros elsewhere (check_bytes).  Writable data is compared with the plain run's
(check_data): a word that differs has to be an address, of the same place in the same object, or outside all objects both
times; where exactly such an address leads to is not compared.
"""

import array
import bisect
import collections
import dataclasses
import os
import platform

from helpers import HUGE, LIBRARY, PAGE, hugeld_json
from objects import PF_W, object_at, origin_of, page_down, page_up, read_objects
from smaps import pieces, read_smaps
from stores import is_image

# The instructions that gaps in text are filled with: int3, or brk #0.
TRAP = {"x86_64": b"\xcc", "aarch64": bytes.fromhex("000020d4")}[platform.machine()]


@dataclasses.dataclass
class Span:
    start: int
    end: int
    kind: str  # text, rodata, data, bss

    @property
    def permissions(self):
        return {"text": "r-xp", "rodata": "r--p"}.get(self.kind, "rw-p")

    @property
    def pages(self):
        return (self.end - self.start) // HUGE


@dataclasses.dataclass
class Plan:
    path: str
    spans: list
    json: dict

    def pages(self, *kinds):
        return sum(s.pages for s in self.spans if not kinds or s.kind in kinds)


def read_plans(pid, paths, options=None):
    """The plans of the objects at PATHS in the process PID by base name, as `hugeld inspect --pid` tells them."""
    arguments = ["-o", options] if options else []
    plans = {}
    for found in hugeld_json("inspect", "--pid", pid, *arguments, "--", *paths)["files"]:
        spans = [Span(int(s["start"], 0), int(s["end"], 0), s["kind"]) for s in found["plan"]["spans"]]
        plans[os.path.basename(found["path"])] = Plan(found["path"], spans, found)
    return plans


def bytes_outside(mappings, objects):
    """Bytes by file and protection outside all objects: scratch memory, or old pages, that were forgotten show here."""
    total = collections.Counter()
    for mapping in mappings:
        if not mapping.name.startswith("["):
            for start_, end, permissions in outside(mapping, objects):
                total[mapping.name, permissions] += end - start_
    return dict(total)


def outside(mapping, objects):
    """The pieces of MAPPING that lie in no object."""
    left = [(mapping.start, mapping.end)]
    for o in objects:
        left = [
            piece
            for a, b in left
            for piece in ((a, min(b, o.start)), (max(a, o.end), b))
            if piece[0] < piece[1]
        ]
    return [(a, b, mapping.permissions) for a, b in left]


@dataclasses.dataclass
class Image:
    """The memory and descriptors of a stopped process."""

    mappings: list
    objects: list
    descriptors: list
    pid: int = 0  # 0: it has gone on meanwhile, and its bytes are not compared
    data: dict = dataclasses.field(default_factory=dict)  # by object's name: (address, bytes) of data that could move
    contents: dict = dataclasses.field(default_factory=dict)  # by object's name: the file with its bytes, if that is another one

    def find(self, name):
        return next(o for o in self.objects if o.name == name)


def read_memory(pid, start, end):
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        found = os.pread(memory.fileno(), end - start, start)
    assert len(found) == end - start, f"only {len(found)} bytes can be read at {start:#x}"
    return found


def read_data(pid, object_):
    """The initialised writable data of OBJECT_, if it is large enough for a huge page."""
    for load in object_.loads:
        if load.flags & PF_W and load.file_bytes >= HUGE:
            start_ = object_.bias + load.vaddr
            return start_, read_memory(pid, start_, start_ + load.file_bytes)
    return 0, b""


def read_image(pid):
    mappings = read_smaps(pid)
    objects = read_objects(pid, mappings)
    data = {o.name: read_data(pid, o) for o in objects}
    return Image(mappings, objects, sorted(os.listdir(f"/proc/{pid}/fd"), key=int), pid, data)


def expected_bytes(object_, file, start, end, gap):
    """What [start, end) of OBJECT_ holds: the FILE's bytes, zeros behind its end, and GAP again and again between segments.
    A segment has all of its pages from the file."""
    expected = bytearray(gap * ((end - start) // len(gap)))
    for load in object_.loads:
        first, file_end = object_.bias + load.vaddr, object_.bias + load.vaddr + load.file_bytes
        first, last = page_down(first), page_up(max(file_end, first + load.memory_bytes))
        file_end = last if load.memory_bytes <= load.file_bytes else file_end
        a, b = max(start, first), min(end, last)
        if a < b:
            offset = load.offset + a - (object_.bias + load.vaddr)
            found = os.pread(file.fileno(), max(0, min(b, file_end) - a), offset)
            expected[a - start:b - start] = found.ljust(b - a, b"\0")
    return expected


def check_bytes(image, span):
    """Every byte of SPAN, text or read-only data, is as in the object's file."""
    object_ = next(o for o in image.objects if o.start <= span.start < o.end)
    if is_image(object_.path):
        object_ = object_at(origin_of(object_.path), object_.bias)
    with open(image.contents.get(object_.name, object_.path), "rb") as file:
        for start_ in range(span.start, span.end, HUGE):
            end = min(span.end, start_ + HUGE)
            found = read_memory(image.pid, start_, end)
            wanted = expected_bytes(object_, file, start_, end, TRAP if span.kind == "text" else b"\0")
            if found != wanted:
                at = next(i for i in range(end - start_) if found[i] != wanted[i])
                count = sum(map(int.__ne__, found, wanted))
                raise AssertionError(f"{span} of {object_.path}: {count} bytes of the huge page at {start_:#x} are wrong, the first "
                                     f"at {start_ + at:#x}: {found[at:at + 16].hex()}, not {wanted[at:at + 16].hex()}")


def place_of(image, word):
    """(object, offset) for an address in one; "" for another one that is mapped; any other WORD itself."""
    for o in image.objects:
        if o.start <= word <= o.end:
            return o.name, word - o.start
    i = bisect.bisect_right(image.mappings, word, key=lambda m: m.start) - 1
    return "" if i >= 0 and word <= image.mappings[i].end else word


def check_data(image, plain, name, span):
    """The moved SPAN of writable data of the object NAME has the plain run's bytes, but for addresses."""
    words = []
    for run in (image, plain):
        begin, data = run.data[name]
        at = span.start - image.find(name).bias + run.find(name).bias - begin
        words.append(array.array("Q", data[at:at + span.end - span.start]))
    assert len(words[0]) * 8 == len(words[1]) * 8 == span.end - span.start, f"{span}: not read as a whole"
    for i, (here, there) in enumerate(zip(*words)):
        assert here == there or place_of(image, here) == place_of(plain, there), \
            f"{span} of {name}: {here:#x} at {span.start + 8 * i:#x}, without hugeld {there:#x}"


def without_header(mappings, start, most=PAGE):
    """The MAPPINGS of an image, and where they begin: the page at START with the ELF header may be the file's;
    so may be the huge page that it is in, where mapping that failed (MOST)."""
    for end in (start + PAGE, start + most):
        first, rest = [m for m in mappings if m.start < end], [m for m in mappings if m.start >= end]
        if rest and rest[0].start == end and first[0].offset == 0 and not any(is_image(m.name) for m in first):
            return rest, end
    return mappings, start


def check_span(image, span, backend, forked=False):
    """SPAN is covered by huge pages of BACKEND, all of them, with its protection, and by nothing else, and text and read-only
    data have the right bytes.  FORKED: children were alive, so writing to data has taken small pages."""
    inside = [m for m in image.mappings if m.end > span.start and m.start < span.end]
    is_read_only, whole = span.kind in ("text", "rodata"), span
    if backend == "image" and is_read_only:
        inside, start_ = without_header(inside, span.start)
        span = dataclasses.replace(span, start=start_)
    where = f"{span} on {backend}: {inside}"
    assert pieces(inside, span.start, span.end) == [(span.start, span.end, span.permissions)], where
    if backend == "hugetlb":
        assert all(m.is_hugetlb and m.start >= span.start and m.end <= span.end for m in inside), where
        assert sum(m.hugetlb_bytes for m in inside) == span.end - span.start, where
    elif backend == "image" and is_read_only:
        assert all(is_image(m.name) and (m.start - m.offset) % HUGE == 0 and m.kb["Anonymous"] == 0 for m in inside), where
        for mapping in inside:  # one that the patched linker made may reach further, with its segment
            small_bytes = (mapping.kb["Rss"] - mapping.kb["ShmemPmdMapped"]) * 1024
            small_bytes -= -mapping.start % HUGE
            assert small_bytes <= max(0, span.start - mapping.start) + max(0, mapping.end - span.end), where
    elif is_read_only:
        assert all(m.start >= span.start and m.end <= span.end for m in inside), where
        assert sum(m.thp_bytes for m in inside) == span.end - span.start, where
        assert sum(m.kb["Rss"] for m in inside) * 1024 == span.end - span.start, where
        assert all(m.is_copy for m in inside), where
    else:  # data: it may have become one mapping with .bss
        assert all(m.inode == 0 for m in inside), where
        assert forked or sum(m.thp_bytes for m in inside) >= span.end - span.start, where
    if is_read_only and image.pid:
        first = next(m for m in image.mappings if m.end > whole.start)
        if is_image(first.name) and first.offset == 0:  # ld.so has mapped the image itself, and so its headers
            span = dataclasses.replace(span, start=span.start + PAGE)
            with open(first.name, "rb") as file:
                assert file.read(PAGE) == read_memory(image.pid, whole.start, span.start), f"the headers of {where}"
        else:
            span = whole
        check_bytes(image, span)


def guards(image, object_):
    """Whether the text of OBJECT_ has PROT_BTI (AArch64), as a set: the answers of all its mappings."""
    inside = [m for m in image.mappings if m.end > object_.start and m.start < object_.end]
    return {"bt" in m.flags for m in inside if "x" in m.permissions}


def check_object(image, plain, name, spans):
    """Outside SPANS the object NAME lies as it does in the plain run, page by page; RELRO is read-only; all its text
    refuses wrong branches, or none does, as there."""
    moved, original = image.find(name), plain.find(name)
    assert guards(image, moved) == guards(plain, original), f"{name}: PROT_BTI"
    at = moved.start
    for span in [*spans, Span(moved.end, moved.end, "")]:
        distance = original.bias - moved.bias
        here = [(a + distance, b + distance, p) for a, b, p in pieces(image.mappings, at, max(at, span.start))]
        there = pieces(plain.mappings, at + distance, max(at, span.start) + distance)
        assert here == there, f"{name}: [{at:#x}, {span.start:#x}) is not as in the plain run"
        at = max(at, span.end)
    start_, end = moved.relro
    if end > start_:
        assert pieces(image.mappings, start_, end) == [(start_, end, "r--p")], f"{name}: RELRO"


def check_memory(image, plain, plans, moved, backend="hugetlb", always=True, forked=False, spare_pages=0):
    """The proof.  MOVED maps base names of objects to the kinds of span that must be on huge pages there (for FORKED, see
    check_span); everything else must be as in the image of the plain run, but for SPARE_PAGES of writable anonymous memory.
    ALWAYS: each of these objects has such spans at any load address.  Returns the pages that moved."""
    moved_spans, hugetlb = [], []
    for object_ in image.objects:
        kinds = moved.get(object_.name, ())
        spans = [s for s in plans[object_.name].spans if s.kind in kinds] if kinds else []
        assert spans or not kinds or not always, f"{object_.name}: nothing is planned: {plans[object_.name].json}"
        for span in spans:
            chosen = backend if span.kind in ("text", "rodata") else "thp"
            check_span(image, span, chosen, forked)
            if span.kind == "data" and image.pid:
                check_data(image, plain, object_.name, span)
            if chosen == "hugetlb":
                hugetlb.append(span)
        moved_spans += spans
        if object_.name != LIBRARY.name:
            check_object(image, plain, object_.name, spans)
    assert set(moved) <= {o.name for o in image.objects}, "an object is not loaded"

    for mapping in image.mappings:
        if mapping.is_hugetlb:
            assert any(s.start <= mapping.start and mapping.end <= s.end for s in hugetlb), f"not planned: {mapping}"
        assert not ("w" in mapping.permissions and "x" in mapping.permissions), mapping
    advised = [s for plan in plans.values() for s in plan.spans if s.kind == "bss"]  # huge when the program touches it
    elsewhere = [m for m in image.mappings if not any(m.start < s.end and s.start < m.end for s in moved_spans + advised)]
    assert sum(m.thp_bytes for m in elsewhere) <= sum(m.thp_bytes for m in plain.mappings)
    assert image.descriptors == plain.descriptors
    now, before = (collections.Counter(bytes_outside(i.mappings, i.objects)) for i in (image, plain))
    spare = abs(now.pop(("", "rw-p"), 0) - before.pop(("", "rw-p"), 0))
    assert now == before and spare <= spare_pages * os.sysconf("SC_PAGESIZE"), \
        f"{now} and {spare}: {image.mappings}, without hugeld {before}: {plain.mappings}"
    return sum(s.pages for s in moved_spans)


def check_plans(pid, paths, options="", backend="hugetlb"):
    """A proof that needs no plain image: text and read-only data of the objects at PATHS are on huge pages exactly as
    planned, and no other hugetlb pages are there.  The number of pages."""
    image = read_image(pid)
    plans = read_plans(pid, [str(p) for p in paths], options)
    spans = [s for plan in plans.values() for s in plan.spans if s.kind in ("text", "rodata")]
    assert all(plan.pages("text") for plan in plans.values()), plans
    for span in spans:
        check_span(image, span, backend)
    for mapping in image.mappings:
        if mapping.is_hugetlb:
            assert any(s.start <= mapping.start and mapping.end <= s.end for s in spans), f"not planned: {mapping}"
    return sum(s.pages for s in spans)


def same_but_stderr(plain, moved):
    """For `prove`: whether both ended with the same status and printed the same; hugeld's lines go to standard error."""
    return plain[:2] == moved[:2]
