# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a file lies in the page cache and in memory: made on purpose, and seen.  A plain program is faster the fewer frames of
2 MiB its file lies in, the more of its pages are adjacent and the larger its folios are, so hugeld's gain is reported together with
that.  Root only: the kernel hides page frames from others."""

import collections
import ctypes
import mmap
import os
import pathlib
import random
import struct

PAGE = mmap.PAGESIZE
TAIL = 16  # KPF_COMPOUND_TAIL (include/uapi/linux/kernel-page-flags.h)
FRAME, PRESENT = (1 << 55) - 1, 1 << 63
TRIES = 5
MADV_COLD = 20
# State -> whether a file lies so that has this layout.
FITS = {
    "scattered": lambda layout: layout.pages_per_folio < 2,
    "large": lambda layout: layout.pages_per_folio >= 3,
    "found": lambda layout: layout.pages > 0,
    "contiguous": lambda layout: layout.pages_per_folio < 2 and layout.adjacent > 0.7 and layout.pages > 16 * layout.frames,
}
STATES = ("scattered", "large")  # of short programs
SAME = 1.25  # A file lies as before if its folios, and its frames, are at most so many times more or fewer.

# PAGES: cached; ADJACENT: the part of them whose next page is in the next frame; FRAMES: of 2 MiB, and FEWEST if all lay together.
Layout = collections.namedtuple("Layout", "pages_per_folio adjacent frames fewest pages")


def evict(path):
    """Takes the file out of the page cache, but for the pages that a process maps."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def scatter(path):
    """Reads PATH by small random reads, as many programs do with a shared disk."""
    evict(path)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        pages = list(range(-(-os.path.getsize(path) // PAGE)))
        random.Random(1).shuffle(pages)
        for page in pages:
            os.pread(file.fileno(), PAGE, page * PAGE)


def on_small_pages(path):
    """Reads PATH into the page cache in pages of 4 KiB.  A file that a linker has just written may be there in huge ones, which
    backend=auto leaves alone (test_huge_already.py)."""
    evict(path)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        while file.read(1 << 20):
            pass


def split(file, size):
    """Splits the folios of the open FILE.  Their pages stay where they are: the kernel splits one of which MADV_COLD gets a part."""
    with mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapping:
        for page in range(0, size, PAGE):
            mapping[page]
            mapping.madvise(MADV_COLD, page, min(PAGE, size - page))


def make(file, state, execute=None):
    """FILE read anew: in order, as cat does, and then split if it has to be contiguous; or in no order; or not at all until EXECUTE()
    runs it."""
    if state == "scattered":
        scatter(file)
        return
    evict(file)
    if state == "found":
        execute()
        return
    with open(file, "rb", buffering=0) as opened:
        while opened.read(128 << 10):
            pass
        if state == "contiguous":
            split(opened, os.path.getsize(file))


def read_frames(file, reads_missing):
    """The page frames of FILE, in order, as it is in the page cache now; None: a page that is not.  READS_MISSING: missing ones are
    read first."""
    with open(file, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        mapping = mmap.mmap(opened.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    start, pages = ctypes.addressof(ctypes.c_char.from_buffer(mapping)), -(-size // PAGE)
    cached = (ctypes.c_ubyte * pages)()
    ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), cached)
    for page in range(pages):
        if reads_missing or cached[page] & 1:
            mapping[page * PAGE]
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(start // PAGE * 8)
        entries = [entry for (entry,) in struct.iter_unpack("=Q", pagemap.read(pages * 8))]
    return [entry & FRAME if entry & PRESENT else None for entry in entries]


def measure_layout(file, reads_missing=False):
    """The Layout of FILE in the page cache."""
    frames = read_frames(file, reads_missing)
    present = [frame for frame in frames if frame is not None]
    folios = 0
    with open("/proc/kpageflags", "rb") as flags:
        for frame in present:
            flags.seek(frame * 8)
            folios += not struct.unpack("=Q", flags.read(8))[0] >> TAIL & 1
    adjacent = sum(one is not None and other == one + 1 for one, other in zip(frames, frames[1:]))
    return Layout(len(present) / max(folios, 1), adjacent / max(len(present) - 1, 1),
                  len({frame * PAGE >> 21 for frame in present}), -(-len(frames) * PAGE >> 21), len(present))


def pages_per_folio(file):
    """Of FILE; missing pages are read."""
    return measure_layout(file, reads_missing=True).pages_per_folio


def find_others(state, files):
    """The names of those FILES that do not lie as STATE says."""
    return [file.name for file in files if not FITS[state](measure_layout(file, reads_missing=state != "found"))]


def put(state, *files):
    """Makes all FILES lie in the page cache as STATE says, but for those that another program maps: they stay as they are."""
    for file in files:
        if find_others(state, [pathlib.Path(file)]):
            make(file, state)


def measure_in(state, files, measure, execute=None):
    """MEASURE() while all FILES lie in the page cache as STATE says, before and after: a machine may reclaim pages meanwhile."""
    files = [pathlib.Path(os.path.realpath(file)) for file in files]
    for _ in range(TRIES):
        for file in files:
            make(file, state, execute)
        if find_others(state, files):
            continue
        result = measure()
        if not find_others(state, files):
            return result
    raise RuntimeError(f"{' '.join(find_others(state, files))} does not stay {state} in the page cache: does another program map it?")


def is_same(now, before):
    return all(1 / SAME <= (a or 1) / (b or 1) <= SAME for a, b in ((now.pages_per_folio, before.pages_per_folio),
                                                                    (now.frames, before.frames)))


def measure_unchanged(files, measure):
    """(MEASURE(), the first file's Layout), while all FILES lie in the page cache as they lay before."""
    for _ in range(TRIES):
        before = [measure_layout(file) for file in files]
        result = measure()
        after = [measure_layout(file) for file in files]
        if all(map(is_same, after, before)):
            return result, after[0] if files else None
    raise RuntimeError(f"{' '.join(map(str, files))}: the page cache does not keep it as it was")
