# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every rung of the filling ladder fills huge pages on every kernel that has it, when seccomp has taken away the rungs
above; and every rung reports a page that is not there as an error."""

import platform

import pytest

import helpers
from smaps import read_smaps
from vmguest import ALL, RODATA, SHORT

PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}[platform.machine()]
RUNGS = {"all": [], "no process_vm_readv": [f"deny={PROCESS_VM_READV}"]}


@pytest.fixture(params=RUNGS)
def rung(request, under):
    rules = RUNGS[request.param]
    return under(*rules) if rules else []


@pytest.mark.parametrize("variant", ["nopie", "six"])
def test_hugetlb(builder, row, nodes, rung, variant):
    """Text is on hugetlb, also pages that are composed of several segments and the gaps between them."""
    nodes(0, 64)
    app = builder.executable(variant)
    found = row([app], {app.name: ALL}, "backend=hugetlb", rung)
    assert found.nodes == (0, found.pages) and found.stderr == ""


def test_thp(builder, row, nodes, rung, thp):
    nodes(0, 0)
    app = builder.executable("nopie")
    row([app], {app.name: ALL}, "backend=thp", rung, backend="thp")


def test_library(builder, row, nodes, rung):
    nodes(64, 0)
    app, [library] = builder.with_library("dso")
    row([app], {library.name: ALL}, "backend=hugetlb", rung, patterns="libbig*")


@pytest.mark.parametrize("pages", [0, 2])
def test_page_missing(builder, row, nodes, under, group, rung, pages):
    """The pool says that there are enough, the group gives fewer."""
    nodes(64, 0)
    app = builder.executable("nopie")
    folder = group("hugetlb", 2)
    (folder / "hugetlb.2MB.max").write_text(str(pages * helpers.HUGE))
    moved = {app.name: ("rodata",)} if pages >= RODATA else {}
    found = row([app], moved, "backend=hugetlb", [*under(f"join={folder}"), *rung])
    assert SHORT in found.stderr


def test_writable_data(builder, row, nodes, thp):
    """Writable data is on transparent huge pages, which every kernel moves."""
    nodes(64, 0)
    app = builder.executable("nopie", words=6 * 2**17)
    assert row([app], {app.name: (*ALL, "data")}, "backend=hugetlb,data=thp,bss=thp").stderr == ""


def test_way_in(builder, nodes, library, pause_library):
    """Anonymous pages, by mremap."""
    nodes(64, 0)
    app = builder.executable("nopie")
    with helpers.paused([app], helpers.preload(library, pause_library, options="backend=hugetlb"), app.name) as process:
        names = {m.name for m in read_smaps(process.pid) if m.is_hugetlb}
    [name] = names
    assert name.startswith("/anon_hugepage")
