# SPDX-License-Identifier: LGPL-2.1-or-later
"""Control groups that give fewer huge pages than the program would take: no process is killed, spans that do not fit stay with the
reason, and every page is back afterwards.  Memory: ../../system/test_memory_limits.py."""

import pytest

import helpers
from vmguest import RODATA, SHORT, TEXT

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
