# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a file lies in the page cache: made on purpose, and seen.  A plain program is faster the larger the folios of its file are,
so hugeld's gain is reported together with that.  Root only: the kernel hides page frames from others."""

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
# State -> the fewest and the most pages for each folio.
STATES = {"scattered": (1, 2), "large": (3, 513)}
SAME = 1.25  # A file lies as before if its folios are at most so many times larger or smaller.


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


def make(file, state):
    """FILE read anew: in order, as cat does; or page by page, in no order."""
    if state == "scattered":
        scatter(file)
        return
    evict(file)
    with open(file, "rb", buffering=0) as opened:
        while opened.read(128 << 10):
            pass


def read_frames(file):
    """The page frames of FILE, in order, as it is in the page cache now; missing pages are read.  None: a page that went away."""
    with open(file, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        mapping = mmap.mmap(opened.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    for offset in range(0, size, PAGE):
        mapping[offset]
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(start // PAGE * 8)
        entries = [entry for (entry,) in struct.iter_unpack("=Q", pagemap.read(-(-size // PAGE) * 8))]
    return [entry & FRAME if entry & PRESENT else None for entry in entries]


def measure_layout(file):
    """(pages for each folio, the share of pages whose next page is the next frame, distinct frames of 2 MiB) of FILE, as
    it is in the page cache now: a plain program is faster the more of its pages are adjacent, and the fewer the frames."""
    frames = read_frames(file)
    present = [frame for frame in frames if frame is not None]
    folios = 0
    with open("/proc/kpageflags", "rb") as flags:
        for frame in present:
            flags.seek(frame * 8)
            folios += not struct.unpack("=Q", flags.read(8))[0] >> TAIL & 1
    adjacent = sum(one is not None and other == one + 1 for one, other in zip(frames, frames[1:]))
    return len(present) / max(folios, 1), adjacent / max(len(present) - 1, 1), len({frame * PAGE >> 21 for frame in present})


def pages_per_folio(file):
    return measure_layout(file)[0]


def find_others(state, files):
    """The names of those FILES that do not lie as STATE says."""
    fewest, most = STATES[state]
    return [file.name for file in files if not fewest <= pages_per_folio(file) < most]


def put(state, *files):
    """Makes all FILES lie in the page cache as STATE says, but for those that another program maps: they stay as they are."""
    for file in files:
        if find_others(state, [pathlib.Path(file)]):
            make(file, state)


def measure_in(state, files, measure):
    """MEASURE() while all FILES lie in the page cache as STATE says, before and after: a machine may reclaim pages meanwhile."""
    files = [pathlib.Path(os.path.realpath(file)) for file in files]
    for _ in range(TRIES):
        for file in files:
            make(file, state)
        if find_others(state, files):
            continue
        result = measure()
        if not find_others(state, files):
            return result
    raise RuntimeError(f"{' '.join(find_others(state, files))} does not stay {state} in the page cache: does another program map it?")


def measure_unchanged(files, measure):
    """(MEASURE(), the mean size in KiB of the first file's folios), while all FILES lie in the page cache as they lay before."""
    for _ in range(TRIES):
        before = [pages_per_folio(file) for file in files]
        result = measure()
        after = [pages_per_folio(file) for file in files]
        if all(1 / SAME <= now / then <= SAME for now, then in zip(after, before)):
            return result, round(after[0] * PAGE / 1024, 1) if files else None
    raise RuntimeError(f"{' '.join(map(str, files))}: the page cache does not keep it as it was")
