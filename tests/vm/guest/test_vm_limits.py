# SPDX-License-Identifier: LGPL-2.1-or-later
"""Control groups that give fewer huge pages, or less memory, than the program would take: no process is killed, spans that do
not fit stay with the reason, and every page is back afterwards."""

import re

import pytest

import helpers
from vmguest import ALL, RODATA, SHORT, TEXT

MIB = 1 << 20

FILES = {
    ("max", 1): "hugetlb.2MB.limit_in_bytes", ("max", 2): "hugetlb.2MB.max",
    ("rsvd", 1): "hugetlb.2MB.rsvd.limit_in_bytes", ("rsvd", 2): "hugetlb.2MB.rsvd.max",
}


@pytest.fixture(params=FILES, ids=lambda f: f"{f[0]}-v{f[1]}")
def limited(request, under, group):
    """limited(pages): a command prefix for a group that gives that many huge pages, or reservations of them."""

    def limit(pages):
        folder = group("hugetlb", request.param[1])
        (folder / FILES[request.param]).write_text(str(pages * helpers.HUGE))
        return under(f"join={folder}")

    return limit


@pytest.mark.parametrize("pages", [2, TEXT + RODATA - 1])
def test_hugetlb(builder, row, nodes, limited, pages):
    nodes(64, 0)
    app = builder.executable("nopie")
    moved = ("text",) if pages >= TEXT else ("rodata",) if pages >= RODATA else ()
    found = row([app], {app.name: moved} if moved else {}, "backend=hugetlb", limited(pages))
    assert (SHORT in found.stderr) == (pages < TEXT), found.stderr
    assert f"{app.name}: rodata stays" in found.stderr or "rodata" in moved, found.stderr


@pytest.mark.parametrize("levels", [0, 1], ids=["own", "ancestor"])
@pytest.mark.parametrize("backend", ["thp", "auto"])
def test_memory(builder, row, nodes, group, under, thp, backend, levels):
    """Text of 10 MiB in a group that has room for its file's pages, which can be dropped, and not for a copy."""
    nodes(0, 0)
    app = builder.executable("nopie")
    folder = inner = group("memory", 2)
    (folder / "memory.max").write_text(str(16 * MIB))
    if levels:
        (folder / "cgroup.subtree_control").write_text("+memory")
        inner = folder / "inner"
        inner.mkdir()
    found = row([app], {}, f"backend={backend},segments=text,data=off", under(f"join={inner}"))
    reason = "private copies may take twice its size" if backend == "thp" else "the huge page pool"
    assert f"{app.name}: text stays: {reason}" in found.stderr
    assert re.search(r"^oom_kill 0$", (folder / "memory.events").read_text(), re.M)


@pytest.mark.parametrize("backend, moved", [("thp", ALL), ("auto", ())])
def test_memory_that_suffices(builder, row, nodes, group, under, thp, backend, moved):
    """...for the copies; whether there is enough for the program's later needs is unknown, so the user has to ask for them."""
    nodes(0, 0)
    app = builder.executable("nopie")
    folder = group("memory", 2)
    (folder / "memory.max").write_text(str(96 * MIB))
    row([app], {app.name: moved} if moved else {}, f"backend={backend}", under(f"join={folder}"), backend="thp")
    assert re.search(r"^oom_kill 0$", (folder / "memory.events").read_text(), re.M)


def test_memory_limit_spares_hugetlb(builder, row, nodes, group, under):
    """The pool's pages are not charged to the memory controller."""
    nodes(32, 0)
    app = builder.executable("nopie")
    folder = group("memory", 2)
    (folder / "memory.max").write_text(str(16 * MIB))
    assert row([app], {app.name: ALL}, "backend=hugetlb", under(f"join={folder}")).nodes == (TEXT + RODATA, 0)
