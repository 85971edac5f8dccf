# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a program again and again with other faults each time (inject.c), and judges the outcome."""

import dataclasses
import errno
import glob
import os
import re
import subprocess
import typing

import helpers
import proof
from errnos import DONE_ALL_THE_SAME, ERRNOS, FILTERED
from objects import find_bias, object_at
from smaps import parse_smaps, pieces
from stores import is_image


def read_call_numbers():
    source = "#include <asm/unistd.h>\n"
    header = subprocess.run(["gcc", "-E", "-dM", "-"], input=source, capture_output=True, text=True).stdout
    return {int(number): name for name, number in re.findall(r"#define __NR_(\w+) (\d+)$", header, re.M)}


NAMES = read_call_numbers()
NUMBERS = {name: number for number, name in NAMES.items()}


def number_of(error):
    """The number of an errno's name; 0 for "0".  (Python knows no EHWPOISON.)"""
    return 133 if error == "EHWPOISON" else getattr(errno, error) if error != "0" else 0


class Fault(typing.NamedTuple):
    """One call's fault.  It is named by its kind and its place among its like: how many calls come before differs between runs."""

    call: str
    detail: int
    nth: int  # from 1
    how: str
    error: str = "0"

    def __str__(self):
        return f"{NUMBERS[self.call]} {self.detail} {self.nth} {self.how} {number_of(self.error)}"


def fault_at(calls, number, how, error="0"):
    """A fault for the call NUMBER, from 1, of CALLS."""
    kind = calls[number - 1]
    return Fault(*kind, calls[:number].count(kind), how, error)


@dataclasses.dataclass
class Look:
    """The program's memory, descriptors and blocked signals when it called MARK."""

    smaps: str
    fds: str
    sums: frozenset  # (range, sum of the bytes) of its large read-only mappings, as text
    mask: str

    @property
    def lines(self):
        """Its mappings as far as they don't depend on the touched pages, and on the depth of the stack."""
        wanted = r"^(?:[0-9a-f]+-[0-9a-f]+ .*|(?:Private_Hugetlb|Shared_Hugetlb|AnonHugePages|FilePmdMapped): .*)$"
        found = re.findall(wanted, self.smaps, re.M)
        lines = "\n".join(line for line in found if not line.endswith(" 0 kB"))
        lines = re.sub(r"^\w+-(\w+)(?=.*\[stack\]$)", r"\1-\1", lines, flags=re.M)
        return re.sub(r"\b\d+ +(?=/(?:anon_hugepage|memfd:))", "1 ", lines)


@dataclasses.dataclass
class Outcome:
    calls: list  # (name, detail)
    looks: list
    out: str
    err: str
    trespasses: str  # calls of the core that reach into memory that is not its own
    status: object  # the exit status, or "signal N", "timeout"


class Injector:
    """A running inject.c for one program."""

    def __init__(self, command, module, argv, env, ranges, mdwe):
        words = [command, *(["mdwe"] if mdwe else []), module, ranges, "--", *argv]
        self.process = subprocess.Popen([str(w) for w in words], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        helpers.end_process(self.process)

    def block(self):
        head = self.process.stdout.readline().split()
        assert head, f"inject ended: {self.process.wait()}"
        text = self.process.stdout.read(int(head[1]) + 1)[:-1]
        return head[0].decode(), text.decode(errors="replace")

    def run(self, *faults):
        self.process.stdin.write((" ".join(map(str, faults)) + "\n").encode())
        self.process.stdin.flush()
        looks, last = [], {}
        while True:
            name, text = self.block()
            if name == "end":
                break
            last[name] = text
            if name == "mask":
                looks.append(Look(last["smaps"], last["fds"], frozenset(last["bytes"].splitlines()), text))
        for name in ("perf", ".perf"):  # perf_map=on; a rename that only seemed to succeed leaves the unfinished map
            for path in glob.glob(f"/tmp/{name}-{last['pid']}.*"):
                os.unlink(path)
        calls = [(NAMES[int(number)], int(detail)) for number, detail in re.findall(r"(\d+):(\d+)", last["calls"])]
        status = last["status"]
        if status != "timeout":
            status = os.waitstatus_to_exitcode(int(status))
        return Outcome(calls, looks, last["out"], last["err"], last["trespasses"], status)


def errors_of(call):
    assert call in ERRNOS, f"errnos.py has no line for {call}"
    listed = ERRNOS[call].split()
    return listed + [e for e in FILTERED.split() if listed and e not in listed and call not in DONE_ALL_THE_SAME]



# --- judging ---


class Span(typing.NamedTuple):
    name: str  # the object's
    start: int
    end: int
    permissions: str
    kind: str
    backend: str


SPAN = re.compile(r"^hugeld: (\S+): 0x([0-9a-f]+)-0x([0-9a-f]+) (...) (\w+) \d+ pages? (\S+)", re.M)


def read_spans(told):
    """The spans that hugeld says it moved, with verbose=3."""
    return [Span(name, int(start, 16), int(end, 16), permissions + "p", kind, backend)
            for name, start, end, permissions, kind, backend in SPAN.findall(told)]


class Mapping(typing.NamedTuple):
    start: int
    end: int
    permissions: str
    offset: int
    inode: str
    name: str
    hugetlb: int
    thp: int


def read_mappings(lines):
    found = []
    for line in lines.splitlines():
        words = line.split(maxsplit=5)
        if words[0].endswith(":"):
            size, last = int(words[1]) * 1024, found[-1]
            thp = size if words[0] == "AnonHugePages:" else 0
            hugetlb = size if words[0].endswith("Hugetlb:") else 0
            found[-1] = last._replace(hugetlb=last.hugetlb + hugetlb, thp=last.thp + thp)
        else:
            start, end = (int(address, 16) for address in words[0].split("-"))
            found.append(Mapping(start, end, words[1], int(words[2], 16), words[4], words[5] if words[5:] else "", 0, 0))
    return found


def cut(mappings, start, end):
    """The parts of MAPPINGS in [start, end), without the fields that only huge pages change."""
    pieces = []
    for m in mappings:
        a, b = max(m.start, start), min(m.end, end)
        if a >= b:
            continue
        piece = (a, b, m.permissions, m.offset + (a - m.start) if m.inode != "0" else 0, m.inode, m.name)
        last = pieces[-1] if pieces else None
        # The kernel does not join mappings from another descriptor.
        if last and last[1] == a and last[2] == piece[2] and last[4:] == piece[4:] and m.inode != "0" and last[3] + (a - last[0]) == piece[3]:
            pieces[-1] = (last[0], b, *last[2:])
        else:
            pieces.append(piece)
    return pieces


def is_huge(mappings, span):
    """SPAN is on huge pages, all of it, with its protection.  Writable data is accepted on any anonymous memory: after a
    fork, writing to it takes small pages."""
    inside = [m for m in mappings if m.start < span.end and m.end > span.start]
    if span.backend == "image":
        inside, start = proof.without_header(inside, span.start, helpers.HUGE)
        span = span._replace(start=start)
    if pieces(inside, span.start, span.end) != [(span.start, span.end, span.permissions)]:
        return False
    if "w" in span.permissions:
        return all(m.inode == "0" for m in inside)
    exact = inside[0].start == span.start and inside[-1].end == span.end
    if span.backend == "image":
        return exact and all(is_image(m.name) for m in inside)
    return exact and sum(m.hugetlb + m.thp for m in inside) == span.end - span.start


def is_empty_space(mapping):
    """Address space that is mapped without access and without a file."""
    return mapping.permissions.startswith("---") and mapping.name in ("", "/dev/zero (deleted)")


def compare(look, plain, spans, may_lose=False):
    """Each of SPANS is on huge pages or as in PLAIN, and everything else is as there; with MAY_LOSE but for empty address
    space.  The spans that moved; or the error found, as text."""
    here, there = read_mappings(look.lines), read_mappings(plain.lines)
    if may_lose:
        here, there = ([m for m in mappings if not is_empty_space(m)] for mappings in (here, there))
    moved = [s for s in spans if cut(here, s.start, s.end) != cut(there, s.start, s.end)]
    for span in moved:
        if not is_huge(here, span):
            return f"neither moved nor as it was: {span}: {cut(here, span.start, span.end)}"
    at = 0
    for span in [*spans, Span("", 1 << 64, 1 << 64, "", "", "")]:
        if cut(here, at, span.start) != cut(there, at, span.start):
            return f"not as in the plain run:\n{differences(cut(here, at, span.start), cut(there, at, span.start))}"
        at = span.end
    if look.fds != plain.fds:
        return f"descriptors {look.fds}, not {plain.fds}"
    if look.mask != plain.mask:
        return f"blocked signals {look.mask}, not {plain.mask}"
    return moved


def base_names(mappings):
    """The address at which each file begins."""
    return {m.name: m.start for m in reversed(mappings) if m.name.startswith("/") and not m.is_hugetlb}


def wrong_bytes(look, good, spans):
    """The error, as text, if the bytes of a read-only one of the moved SPANS are not those of the GOOD run, or ''."""
    wanted, found = (dict(line.split() for line in one.sums) for one in (good, look))
    names = [f"{s.start:x}-{s.end:x}" for s in spans if "w" not in s.permissions]
    return "; ".join(f"other bytes: {n}" for n in names if n in wanted and n in found and wanted[n] != found[n])


def compare_elsewhere(look, plain, told, may_lose=False):
    """The same where ld.so could not map an object where it wanted it: the spans that it said it moved did move, and the
    rest is as in PLAIN relative to where each object is."""
    images = []
    for smaps, fds in ((look.smaps, look.fds), (plain.smaps, plain.fds)):
        mappings = [m for m in parse_smaps(smaps) if not (may_lose and is_empty_space(m))]
        files = {m.name for m in mappings if m.inode and m.name.startswith("/") and os.path.exists(m.name)}
        by_name = {name: [m for m in mappings if m.name == name] for name in files}
        objects = [object_at(name, find_bias(name, found)) for name, found in by_name.items()]
        images.append(proof.Image(mappings, objects, fds))
    here, there = images
    if base_names(here.mappings) == base_names(there.mappings):
        return None
    spans = [s for s in read_spans(told) if any(o.name == s.name for o in here.objects)]  # it may be closed again
    plans, moved = {}, {}
    for s in spans:
        plan = plans.setdefault(s.name, proof.Plan(s.name, [], {}))
        plan.spans.append(proof.Span(s.start, s.end, s.kind))
        moved.setdefault(s.name, []).append(s.kind)
    try:
        backend = "thp" if all(s.backend == "thp" for s in spans) else "hugetlb"
        proof.check_memory(here, there, plans, moved, backend, forked=True)
    except AssertionError as error:
        return f"elsewhere, and not as in the plain run: {error}"
    return spans if look.mask == plain.mask else f"blocked signals {look.mask}, not {plain.mask}"


def differences(here, there):
    def show(piece):
        a, b, *rest = piece
        return f"{a:x}-{b:x} {rest}"

    return "\n".join([*(f"+ {show(p)}" for p in here if p not in there), *(f"- {show(p)}" for p in there if p not in here)])


def unexplained(told, spans, moved):
    """The kinds of SPANS that stay without a reason, or whose reported place is wrong."""
    wrong = []
    said = {(s.name, s.kind) for s in read_spans(told)}
    for name, kind in {(s.name, s.kind) for s in spans}:
        is_moved = any((s.name, s.kind) == (name, kind) for s in moved)
        reason = re.search(rf"^hugeld: (?:{re.escape(name)}: (?:{kind}|text)|everything that dlopen loads) stays: .", told, re.M)
        if is_moved != ((name, kind) in said) or not (is_moved or reason):
            wrong.append(f"{name}: {kind} {'moved' if is_moved else 'stays'}, and nothing says so")
    return wrong
