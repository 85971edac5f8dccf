# SPDX-License-Identifier: LGPL-2.1-or-later
"""Another process takes the pages away while hugeld is at work: at one system call after the other the program is
stopped, all free pages but a few are taken, and it goes on.  It moves or stays, and never dies."""

import mmap
import os
import threading

import pytest

import helpers
from hugepages import free_pages
from vmguest import MAP_HUGETLB, TEXT, bind_thread, node_counts, pages_by_node

CALLS = {"mmap": 9, "mremap": 25, "madvise": 28, "ioctl": 16, "process_vm_readv": 310}


def own_calls(trace):
    """(name, its number among the calls of that name) of libhugeld.so's calls: those between its look at /proc/self/exe and
    that of pause.so, which runs after it."""
    begin, end = [i for i, line in enumerate(trace) if line.startswith("readlink") and '"/proc/self/exe"' in line][:2]
    counts, calls = {}, []
    for i, line in enumerate(trace[:end]):
        name = line.partition("(")[0]
        counts[name] = counts.get(name, 0) + 1
        if i > begin and name in CALLS:
            calls.append((name, counts[name]))
    return calls


class Thief(threading.Thread):
    """Waits for a line in FOLDER/go, takes all free pages but LEAVE, of NODE if there is one, and answers in FOLDER/done."""

    def __init__(self, folder, leave, node):
        super().__init__(daemon=True)
        self.folder, self.leave, self.node, self.memory, self.error = folder, leave, node, None, None
        for name in ("go", "done"):
            os.mkfifo(folder / name)

    def run(self):
        (self.folder / "go").read_text()
        try:
            self.take()
        except (OSError, AssertionError) as error:
            self.error = error
        (self.folder / "done").write_text("done\n")

    def take(self):
        if self.node is not None:
            bind_thread(self.node)
        free = free_pages() if self.node is None else node_counts("free_hugepages")[self.node]
        pages = free - self.leave
        if pages > 0:
            self.memory = mmap.mmap(-1, pages * helpers.HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
            for i in range(pages):
                self.memory[i * helpers.HUGE] = 1

    def finish(self):
        self.join(30)
        assert not self.is_alive(), "the window never opened"
        assert self.error is None, self.error
        if self.memory:
            self.memory.close()


# options, rules, the node that is held to and stolen from
CASES = {
    "hugetlb": ("backend=hugetlb", [], None),
    "bind": ("backend=hugetlb", ["bind=1"], 1),
    "local": ("backend=hugetlb,numa=local", ["cpu=1"], 1),
}


@pytest.mark.parametrize("case", CASES)
def test_theft(builder, library, pause_library, nodes, under, stop_at, thp, tmp_path, case):
    options, rules, node = CASES[case]
    nodes(12, 12)
    app = builder.executable("nopie")
    plain = helpers.run([app])
    env = helpers.preload(library, pause_library, options=f"verbose=1,{options}")
    trace = tmp_path / "trace"
    helpers.run([*under(*rules), "/usr/bin/strace", "-o", trace, app], env)
    calls = own_calls(trace.read_text(errors="replace").split("\n"))
    assert len(calls) > 10
    stayed = moved = 0
    windows = calls[::2]
    for i, (name, n) in enumerate(windows):
        folder = tmp_path / str(i)
        folder.mkdir()
        thief = Thief(folder, i % 3, node)
        thief.start()
        command = f"echo > {folder}/go; read line < {folder}/done"
        where = f"{name} {n}"
        with helpers.paused([*under(*rules), *stop_at(CALLS[name], n, command), app], env, app.name) as process:
            found = pages_by_node(process.pid)
            returncode, stdout, stderr = process.finish()
        thief.finish()
        assert (returncode, stdout) == (plain.returncode, plain.stdout), f"{where}: {stdout}{stderr}"
        assert "rolled back, but" not in stderr, f"{where}: {stderr}"
        assert node is None or found[True, 1 - node] == 0, f"{where}: a page of the other node"
        stayed += "stays: the huge page pool cannot serve it" in stderr
        moved += found[True, 0] + found[True, 1] >= TEXT
        assert node_counts("free_hugepages") == (12, 12), f"{where}: pages were lost"
    assert moved and stayed, (moved, stayed, windows)
