# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counts the huge pages of the pool, and those that free memory would make."""

import contextlib
import fcntl
import pathlib

from helpers import HUGE


POOL = pathlib.Path(f"/sys/kernel/mm/hugepages/hugepages-{HUGE >> 10}kB")
NR_HUGEPAGES = POOL / "nr_hugepages"


def pool_counts():
    """(total, free, reserved, surplus) huge pages of the pool, which is a test process's own (machine.py)."""
    names = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages")
    return tuple(int((POOL / name).read_text()) if POOL.exists() else 0 for name in names)


def free_pages():
    """Huge pages that are free and not reserved."""
    _, free, reserved, _ = pool_counts()
    return free - reserved


# The reason of attach where memory is in too many pieces, which no test can help.
SMALL_PAGES = "the kernel gave small pages"


def count_free_huge_pages():
    """The number of huge pages that could be made of free memory as it lies (x86-64: nine orders above a small page)."""
    lines = pathlib.Path("/proc/buddyinfo").read_text().splitlines()
    return sum(int(n) << i for line in lines for i, n in enumerate(line.split()[13:]))


def compact_memory():
    """Asks the kernel to put free memory together, where this user may; elsewhere memory stays as it is."""
    with contextlib.suppress(PermissionError):
        pathlib.Path("/proc/sys/vm/compact_memory").write_text("1")


# The pages that a test and its neighbours may want at once.
WANTED = 64


def put_memory_together():
    """Makes huge pages available."""
    if count_free_huge_pages() < WANTED:
        compact_memory()


DROP = pathlib.Path("/proc/sys/vm/drop_caches")


@contextlib.contextmanager
def file_pages_stay():
    """Meanwhile no other run of tests on this machine drops the pages of files."""
    with open(DROP, "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def drop_file_pages():
    """Drops clean pages, where this user may, and puts free memory together then: where memory is full of files' pages, putting
    it together does not help."""
    with contextlib.suppress(OSError), open(DROP, "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("1")
    compact_memory()
