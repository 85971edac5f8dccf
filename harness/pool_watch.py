# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds other processes that take huge pages. smaps tells the pages of a process of ours; but that nothing is lost, and that
the pool serves as many pages as a test asked for, only the counters tell, and these are the whole machine's.  So when a test
that uses the pool has failed, we ask whether another process, which no test started, took pages or gave some back
meanwhile, or set vm.nr_hugepages; if so, the report says it (conftest.py).

Such a process may be gone by then.  So a thread looks ten times a second while any page is in use.  One that cannot be seen,
since it lies outside of our PID namespace, is known by counters that move while nothing of ours runs."""

import contextlib
import os
import pathlib
import re
import threading
import time

import helpers
from hugepages import pool_counts

NR_HUGEPAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")


def read(pid, name):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""


def pages_held(pid, reserved):
    """Huge pages that PID has mapped; RESERVED: one that has only reserved some has a page, too."""
    held = re.search(r"^HugetlbPages:\s+(\d+) kB", read(pid, "status"), re.M)
    pages = int(held[1]) * 1024 // helpers.HUGE if held else 0
    return pages or int(reserved and "/anon_hugepage" in read(pid, "maps"))


def is_ours(pid):
    """Whether it is marked, or a descendant of this process: some programs write over their environment."""
    if helpers.is_marked(pid):
        return True
    while pid > 1 and pid != os.getpid():
        parent = re.search(r"^PPid:\s+(\d+)", read(pid, "status"), re.M)
        pid = int(parent[1]) if parent else 0
    return pid == os.getpid()


def find_other_holders():
    """{(pid, name): huge pages} of the processes that hold some and are none of ours."""
    total, free, reserved, _ = pool_counts()
    found = {}
    if (free, reserved) == (total, 0):
        return found
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        pages = pages_held(pid, reserved)
        # Looks once more: one of ours that ended in between had no environment any more.
        if pages and not is_ours(pid) and pages_held(pid, reserved):
            found[pid, read(pid, "comm").strip()] = pages
    return found


class Watch(threading.Thread):
    """Notes other processes' changes of the pool, from begin() on, which is called before each test."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before, self.noticed, self.total = {}, {}, None

    def begin(self):
        self.before = find_other_holders()
        self.noticed = {}
        self.expect_total(True)
        if not self.is_alive():
            self.start()

    def run(self):
        while True:
            time.sleep(0.1)
            self.look()

    def look(self):
        for (pid, name), pages in find_other_holders().items():
            if self.before.get((pid, name)) != pages:
                self.noticed[f"{name} ({pid})"] = f"holds {pages} pages"

    def expect_total(self, known):
        """KNOWN: vm.nr_hugepages is as the test wants it, and stays so."""
        self.total = NR_HUGEPAGES.read_text() if known else None

    def judge(self):
        """Other processes' changes of the pool since begin(), as text, or ''.  Waits a moment if it has seen none."""
        self.look()
        now = find_other_holders()
        for (pid, name), pages in self.before.items():
            if (pid, name) not in now:
                self.noticed[f"{name} ({pid})"] = f"gave back {pages} pages"
        if self.total not in (None, NR_HUGEPAGES.read_text()):
            self.noticed["another process"] = f"set vm.nr_hugepages from {self.total.strip()} to {NR_HUGEPAGES.read_text().strip()}"
        if not self.noticed and moves_by_itself():
            self.noticed["a process that was not seen"] = "takes huge pages and gives them back"
        return "; ".join(f"{who} {what}" for who, what in self.noticed.items())


def moves_by_itself():
    """Whether the pool changes although nothing of ours runs."""
    time.sleep(0.2)  # a process that has just ended gives its pages back
    first, end = pool_counts(), time.monotonic() + 1
    while not helpers.marked_processes() and time.monotonic() < end:
        if pool_counts() != first:
            return True
        time.sleep(0.01)
    return False
