# SPDX-License-Identifier: LGPL-2.1-or-later
"""Recording with perf, and the comparison of its names for moved text with those that it would give from the file.

Samples are random, so two profiles never agree exactly.  But one recording can be resolved twice: as it is, and from a
copy in which the mapping records of moved text name the executable again (as_if_in_file).  Both times perf itself finds
the names, by its own rules for aliases, PLT stubs and symbols without a size, so frame by frame they must be the same.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import struct
import subprocess
import typing

import helpers
from objects import PF_X, page_down, page_up
from proof import read_image

EVENT = "cpu-clock:u"
MMAP2 = 10  # PERF_RECORD_MMAP2
USER, MMAP_DATA = 2, 1 << 13  # PERF_RECORD_MISC_*
UNKNOWN = "[unknown]"
LEAST = 0.99  # of call chains; some functions' first instructions have no frame yet
SAME = 0.998  # of the frames that resolve without hugeld; 0.99 would not see that PLT stubs are missing
NOT_A_FILE = ("/anon_hugepage", "//anon", "/memfd:")


class Program(typing.NamedTuple):
    name: str  # of the executable
    argv: list
    moved: tuple  # base names of the objects whose text moves
    patterns: typing.Optional[str] = None
    work: typing.Optional[typing.Callable] = None  # work(process): does the recorded work, ends; its output on stderr
    frequency: int = 4999
    folder: typing.Optional[pathlib.Path] = None  # where it runs


# --- recording ---


def record(output, call_graph, frequency):
    """-N: no copies into the build-id cache."""
    return ["perf", "record", "-N", "-q", "-e", EVENT, "-F", str(frequency), "--call-graph", call_graph, "-o", output]


@contextlib.contextmanager
def attached(pid, output, call_graph="fp", frequency=4999, user=()):
    """Records PID, which may be stopped, from now until the block's end, or until it has ended; as USER, a prefix."""
    folder = pathlib.Path(output).parent
    control, answer = folder / "control", folder / "answer"
    for fifo in (control, answer):
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
        fifo.chmod(0o666)
    process = helpers.start(
        [*user, *record(output, call_graph, frequency), "-p", pid, "-D", "-1", f"--control=fifo:{control},{answer}"],
        dict(helpers.environment(), HOME=str(folder)), stdout=subprocess.DEVNULL,
    )
    try:
        # Opened for reading and writing, so that nothing blocks when perf refuses to start.
        with open(control, "r+b", buffering=0) as to, open(answer, "r+b", buffering=0) as back:
            to.write(b"enable\n")
            os.set_blocking(back.fileno(), False)
            helpers.wait_until(lambda: process.poll() is not None or back.read(4), what="perf attaching")
            assert process.poll() is None, process.stderr.read()
            yield process
            if process.poll() is None:
                with contextlib.suppress(BrokenPipeError):
                    to.write(b"stop\n")
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    finally:
        helpers.end_process(process)


def from_the_start(argv, output, env=None, call_graph="fp", frequency=4999):
    """Starts `perf record ARGV`, whose process ID is not ARGV's."""
    environment = dict(env or helpers.environment(), HOME=str(pathlib.Path(output).parent))
    return helpers.start([*record(output, call_graph, frequency), "--", *argv], environment)


def write_map(pid, *options):
    result = helpers.hugeld("perf-map", *options, pid)
    assert result.returncode == 0, result.stderr


# --- reading ---


@dataclasses.dataclass(frozen=True)
class Frame:
    address: int
    name: str
    offset: str
    dso: str

    @property
    def known(self):
        return self.name != UNKNOWN


FRAME = re.compile(r"\s*([0-9a-f]+) (.*?)(?:\+(0x[0-9a-f]+))? \((.*)\)$")


def read(data, user=(), alone=None):
    """The samples of DATA, recorded with a call graph, as `perf script` resolves them, called by USER: lists of frames,
    innermost first, names mangled.  ALONE: from these files only, so that separate debug files are not found."""
    script = ["perf", "script", "-i", data, "-F", "tid,ip,sym,symoff,dso", "--no-demangle", "--no-inline"]
    if alone:
        root = pathlib.Path(data).parent / "root"
        script.append(f"--symfs={root}")
        for path in alone:
            link = root / path.lstrip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    env = dict(helpers.environment(), HOME=str(pathlib.Path(data).parent))
    result = helpers.run([*user, *script], env, timeout=120)
    assert result.returncode == 0, result.stderr
    samples = []
    for line in result.stdout.splitlines():
        if line.strip().isdigit():
            samples.append([])
        elif line.strip():
            address, name, offset, dso = FRAME.match(line).groups()
            # Names shorter than perf wants them have blanks at their end in a map.
            samples[-1].append(Frame(int(address, 16), name.rstrip(), offset or "", dso))
    return [s for s in samples if s]


@dataclasses.dataclass
class Placed:
    """A part of the object at PATH that has moved, as it would lie in the process without hugeld."""

    path: str
    start: int
    end: int
    offset: int
    executable: bool


def place(pid, plans):
    """The file mappings as they would be where PLANS has moved text and read-only data.  Unwinding reads the latter."""
    placed = []
    image = read_image(pid)
    for name, plan in plans.items():
        object_ = image.find(name)
        for load in object_.loads:
            at = object_.bias + load.vaddr
            start, end = page_down(at), page_up(at + load.file_bytes)
            for span in plan.spans:
                low, high = max(start, span.start), min(end, span.end)
                if span.kind in ("text", "rodata") and low < high:
                    offset = page_down(load.offset) + low - start
                    placed.append(Placed(object_.path, low, high, offset, bool(load.flags & PF_X)))
    return placed


# --- the same recording as if nothing had moved ---


def mapping_records(record, placed):
    """The MMAP2 RECORD of moved text or data as records of the files that it came from; others unchanged."""
    if struct.unpack_from("<I", record)[0] != MMAP2:
        return [record]
    pid, tid, address, size, _ = struct.unpack_from("<IIQQQ", record, 8)
    name = record[72:].partition(b"\0")[0]
    trailer = record[72 + len(name) // 8 * 8 + 8:]
    if not name.decode(errors="surrogateescape").startswith(NOT_A_FILE):
        return [record]
    made = []
    for part in placed:
        low, high = max(address, part.start), min(address + size, part.end)
        if low < high:
            file = os.stat(part.path)
            path = os.fsencode(part.path)
            path += b"\0" * (8 - len(path) % 8)
            protection, misc = (5, USER) if part.executable else (1, USER | MMAP_DATA)
            body = struct.pack("<IIQQQ", pid, tid, low, high - low, part.offset + low - part.start)
            body += struct.pack("<IIQQII", os.major(file.st_dev), os.minor(file.st_dev), file.st_ino, 0, protection, 2)
            body += path + trailer
            made.append(struct.pack("<IHH", MMAP2, misc, 8 + len(body)) + body)
    return made or [record]


def records(data):
    """(start, end) of each record of a data section."""
    at = 0
    while at < len(data):
        size = struct.unpack_from("<H", data, at + 6)[0]
        assert size >= 8
        yield at, at + size
        at += size


def as_if_in_file(data, output, placed):
    """Copies the perf.data file DATA to OUTPUT with the ranges PLACED mapped from their files.  Everything else, each sample
    above all, is copied as it is.  Layout: tools/perf/Documentation/perf.data-file-format.txt of Linux."""
    whole = pathlib.Path(data).read_bytes()
    assert whole[:8] == b"PERFILE2"
    start, size = struct.unpack_from("<QQ", whole, 40)
    section = whole[start:start + size]
    changed = b"".join(r for a, b in records(section) for r in mapping_records(section[a:b], placed))
    assert changed != section, "nothing in the recording is mapped where text has moved"
    grown = len(changed) - size
    # The table of further sections follows the data: (offset, size) for each bit in the header.
    count = sum(bin(word).count("1") for word in struct.unpack_from("<4Q", whole, 72))
    table = start + size
    further = b"".join(
        struct.pack("<QQ", offset + grown, length)
        for offset, length in struct.iter_unpack("<QQ", whole[table:table + 16 * count])
    )
    header = whole[:48] + struct.pack("<Q", len(changed)) + whole[56:start]
    pathlib.Path(output).write_bytes(header + changed + further + whole[table + 16 * count:])
    return output


# --- comparing ---


@dataclasses.dataclass
class Tally:
    plain: int = 0  # frames in moved text that have a function's name in the plain view
    same: int = 0  # of these, the same function and the same offset in it
    unknown: int = 0  # frames in moved text without a name in the plain view, too
    other: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def add(self, path, wanted, seen):
        """One frame in the text of PATH.  A linker that folds equal functions leaves several names at one address, and perf
        prefers another one of them when it reads a map than when it reads the file."""
        if not wanted.known:
            self.unknown += 1
            return
        self.plain += 1
        starts = symbol_values(path)
        names_agree = wanted.name == seen.name or starts.get(wanted.name, -1) == starts.get(seen.name, -2)
        if names_agree and wanted.offset == seen.offset:
            self.same += 1
        else:
            self.other[wanted.name, seen.name] += 1


@functools.cache
def symbols(path):
    """(value, type, name) of each symbol that PATH defines."""
    listings = (helpers.run(["nm", *options, "--defined-only", path]).stdout for options in (["-D"], []))
    return [match for text in listings for match in re.findall(r"^([0-9a-f]+) (\w) ([^@\n]+)", text, re.MULTILINE)]


@functools.cache
def symbol_values(path):
    return {name: int(value, 16) for value, _, name in symbols(path)}


@functools.cache
def data_names(path):
    """Names of variables.  Chains by frame pointers where there are none lead anywhere, and perf names variables that
    lie in executable segments too."""
    return {name for _, kind, name in symbols(path) if kind in "BbDdGgRrSsuVv"}


def find(placed, frame):
    return next((p for p in placed if p.executable and p.start <= frame.address < p.end), None)


def compare(plain, moved, placed, map_):
    """The same samples as in the file and by the map MAP_: (leaves, callers), Tallies of frames in moved text."""
    leaves, callers = Tally(), Tally()
    assert len(plain) == len(moved)
    for wanted, seen in zip(plain, moved):
        assert len(wanted) == len(seen)
        for i, (a, b) in enumerate(zip(wanted, seen)):
            part = find(placed, b) if b.dso == str(map_) else None
            if part:
                # perf prints an address in a map as it is, one in a file as the offset in it; a newer one as it is, too.
                assert a.address in (b.address, b.address - part.start + part.offset)
                if a.name not in data_names(part.path):
                    (callers if i else leaves).add(part.path, a, b)
    return leaves, callers


def judge(figure, what, plain, moved, placed, map_):
    """Nearly every frame in moved text that resolves without hugeld, innermost or caller, resolves to the same.  Returns how
    many innermost ones there are."""
    leaves, callers = compare(plain, moved, placed, map_)
    for kind, tally in (("leaves", leaves), ("callers", callers)):
        figure(f"{what}: {kind} {tally.same} of {tally.plain}, {tally.unknown} nameless also plainly")
        assert tally.same >= SAME * tally.plain, tally.other.most_common(10)
    return leaves.plain


def reaches_start(sample):
    """Whether the chain goes back to libc's call of main."""
    return any(f.name.startswith("__libc_start") for f in sample)


# deep.c's.  At a function's first instructions, and in now_ms(), it is another one.
CHAIN = ["deep_leaf", "deep_three", "deep_two", "deep_one", "main"]


def is_complete(sample):
    return [f.name for f in sample[:len(CHAIN)]] == CHAIN and reaches_start(sample)


def from_deep_leaf(samples):
    return [s for s in samples if s[0].name == "deep_leaf"]


def share(samples, is_so):
    assert samples
    return sum(map(is_so, samples)) / len(samples)
