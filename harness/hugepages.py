# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counts the huge pages of the pool, and those that free memory would make."""

import contextlib
import os
import pathlib
import re
import time

import locks


def pool_counts():
    """(total, free, reserved, surplus) huge pages of the machine."""
    text = pathlib.Path("/proc/meminfo").read_text()
    names = ("Total", "Free", "Rsvd", "Surp")
    return tuple(int(re.search(rf"^HugePages_{name}:\s+(\d+)", text, re.M)[1]) for name in names)


def free_pages():
    """Huge pages that are free and not reserved."""
    _, free, reserved, _ = pool_counts()
    return free - reserved


def forbid_pages(mount):
    """A new cgroup below MOUNT in which no huge page of the pool can be had."""
    (mount / "cgroup.subtree_control").write_text("+hugetlb")
    group = mount / f"hugeld-test-no-page-{os.getpid()}"
    group.mkdir()
    try:
        (group / "hugetlb.2MB.rsvd.max").write_text("0")
    except OSError:
        group.rmdir()
        raise
    return group


def find_limits():
    """Where such cgroups can be made (version 2), or None."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        with contextlib.suppress(OSError):
            if kind == "cgroup2" and "hugetlb" in pathlib.Path(mount, "cgroup.controllers").read_text().split():
                forbid_pages(pathlib.Path(mount)).rmdir()
                return pathlib.Path(mount)
    return None


@contextlib.contextmanager
def without_pool(mount):
    """Gives a context in which this process, and its children, can have no huge page of the pool."""
    own = mount / re.search(r"^0::/(.*)", pathlib.Path("/proc/self/cgroup").read_text(), re.M)[1]
    group = forbid_pages(mount)

    @contextlib.contextmanager
    def inside():
        (group / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            try:
                (own / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:  # a scope of systemd's that was empty meanwhile
                (mount / "cgroup.procs").write_text(str(os.getpid()))

    yield inside
    end = time.monotonic() + 10
    while (group / "cgroup.procs").read_text() and time.monotonic() < end:
        time.sleep(0.1)
    group.rmdir()


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
    """Makes huge pages available. Where memory is full of files' pages, putting it together does not help, and those that are
    clean go; but not in a sample, where several workers' tests look at such pages, and not in a guest, which has few."""
    if count_free_huge_pages() < WANTED:
        compact_memory()
    if count_free_huge_pages() < WANTED and not os.environ.get("T_SAMPLE") and "T_VM" not in os.environ:
        drop_file_pages()


def drop_file_pages():
    """Drops clean pages, where this user may, and puts free memory together then."""
    with contextlib.suppress(OSError), locks.locked(locks.CACHE, alone=True):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")
    compact_memory()
