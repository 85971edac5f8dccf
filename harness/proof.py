# SPDX-License-Identifier: LGPL-2.1-or-later
"""Proves that the planned memory of a process is on huge pages, and that everything else is as without hugeld.

The proof reads smaps itself and never asks `hugeld status`; the plan comes from `hugeld inspect --pid`, and the planner
is proved by tests/unit.  A libhugeld.so that does nothing fails every test that calls check_memory().
"""

import collections
import dataclasses
import os

from helpers import HUGE, LIBRARY, PAGE, hugeld_json
from objects import read_objects
from smaps import pieces, read_smaps
from stores import is_image


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

    def find(self, name):
        return next(o for o in self.objects if o.name == name)


def read_image(pid):
    mappings = read_smaps(pid)
    return Image(mappings, read_objects(pid, mappings), sorted(os.listdir(f"/proc/{pid}/fd"), key=int))


def without_header(mappings, start, most=PAGE):
    """The MAPPINGS of an image, and where they begin: the page at START with the ELF header may be the file's;
    so may be the huge page that it is in, where mapping that failed (MOST)."""
    for end in (start + PAGE, start + most):
        first, rest = [m for m in mappings if m.start < end], [m for m in mappings if m.start >= end]
        if rest and rest[0].start == end and first[0].offset == 0 and not any(is_image(m.name) for m in first):
            return rest, end
    return mappings, start


def check_span(image, span, backend, forked=False):
    """SPAN is covered by huge pages of BACKEND, all of them, with its protection, and by nothing else.  FORKED: children
    were alive, so writing to data has taken small pages."""
    inside = [m for m in image.mappings if m.end > span.start and m.start < span.end]
    if backend == "image" and span.kind in ("text", "rodata"):
        inside, start_ = without_header(inside, span.start)
        span = dataclasses.replace(span, start=start_)
    where = f"{span} on {backend}: {inside}"
    assert pieces(inside, span.start, span.end) == [(span.start, span.end, span.permissions)], where
    if backend == "hugetlb":
        assert all(m.is_hugetlb and m.start >= span.start and m.end <= span.end for m in inside), where
        assert sum(m.hugetlb_bytes for m in inside) == span.end - span.start, where
    elif backend == "image" and span.kind in ("text", "rodata"):
        assert all(is_image(m.name) and (m.start - m.offset) % HUGE == 0 and m.kb["Anonymous"] == 0 for m in inside), where
        for mapping in inside:  # one that the patched linker made may reach further, with its segment
            small_bytes = (mapping.kb["Rss"] - mapping.kb["ShmemPmdMapped"]) * 1024
            small_bytes -= -mapping.start % HUGE
            assert small_bytes <= max(0, span.start - mapping.start) + max(0, mapping.end - span.end), where
    elif span.kind in ("text", "rodata"):
        assert all(m.start >= span.start and m.end <= span.end for m in inside), where
        assert sum(m.thp_bytes for m in inside) == span.end - span.start, where
        assert sum(m.kb["Rss"] for m in inside) * 1024 == span.end - span.start, where
        assert all(m.inode == 0 for m in inside), where
    else:  # data: it may have become one mapping with .bss
        assert all(m.inode == 0 for m in inside), where
        assert forked or sum(m.thp_bytes for m in inside) >= span.end - span.start, where


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


def check_plans(pid, paths, options="", backend="hugetlb", always=True):
    """A proof that needs no plain image: text and read-only data of the objects at PATHS are on huge pages exactly as
    planned, and no other hugetlb pages are there.  ALWAYS: each has text to move at any load address.  The number of pages."""
    image = read_image(pid)
    plans = read_plans(pid, [str(p) for p in paths], options)
    spans = [s for plan in plans.values() for s in plan.spans if s.kind in ("text", "rodata")]
    assert not always or all(plan.pages("text") for plan in plans.values()), plans
    for span in spans:
        check_span(image, span, backend)
    for mapping in image.mappings:
        if mapping.is_hugetlb:
            assert any(s.start <= mapping.start and mapping.end <= s.end for s in spans), f"not planned: {mapping}"
    return sum(s.pages for s in spans)


def same_but_stderr(plain, moved):
    """For `prove`: whether both ended with the same status and printed the same; hugeld's lines go to standard error."""
    return plain[:2] == moved[:2]
