# SPDX-License-Identifier: LGPL-2.1-or-later
"""The subjects of libhugetlbfs's tests linkhuge, linkhuge_rw and zero_filesize_segment, in a program of our own: large
and small constants, data and .bss keep every byte, before and after a fork, and are on huge pages exactly as planned,
however the program is linked."""

import os
import shutil

import pytest

import helpers
from objects import PF_W, PT_LOAD, read_headers
from rounds import HERE
from proof import Span, check_span, read_image, read_plans

BY_LIBHUGETLBFS = "-Wl,--hugetlbfs-align"
# How it is linked, and the kinds of span that there are then.
LINKS = {
    "stock": ["-pie"],
    "fixed": ["-no-pie"],
    "padded": ["-no-pie", "-Wl,-z,max-page-size=0x200000"],
    "padded-pie": ["-pie", "-Wl,-z,max-page-size=0x200000"],
    "huge": ["-no-pie", "-Wl,-z,common-page-size=0x200000,-z,max-page-size=0x200000"],
    "huge-pie": ["-pie", "-Wl,-z,common-page-size=0x200000,-z,max-page-size=0x200000"],
    "aligned": ["-no-pie", BY_LIBHUGETLBFS],
    "aligned-pie": ["-pie", BY_LIBHUGETLBFS],
    "zero-filesize": ["-no-pie", "-Wl,--section-start=.bss=0x20000000"],
}


@pytest.fixture
def linked(builder):
    def compile_object(name, *macros):
        return builder.once(name, lambda folder: builder.compile(
            folder / f"{name}.o", HERE / "segments.c", "-c", "-O2", "-Wall", "-Wextra", "-fPIE", *macros))

    def link(name):
        arguments = [*LINKS[name]]
        wrapper = shutil.which("ld.hugetlbfs")
        if BY_LIBHUGETLBFS in arguments and not wrapper:
            pytest.skip("ld.hugetlbfs is not installed (libhugetlbfs-bin)")
        only_bss = name == "zero-filesize"
        own = compile_object("only-bss", "-DONLY_BSS") if only_bss else compile_object("all-segments")

        def make(folder):
            if BY_LIBHUGETLBFS in arguments:
                (folder / "ld").symlink_to(wrapper)
                arguments.append(f"-B{folder}")
            return builder.compile(folder / f"segments-{name}", own, *builder.object(), *arguments)

        return builder.once(f"segments-{name}", make)

    return link


def stopped(argv, env):
    """The program at its own SIGSTOP, when it has written to all of its memory."""
    return helpers.paused(argv, env, os.path.basename(argv[0]))


@pytest.mark.parametrize("link", LINKS)
def test_linked(linked, library, pool, thp, link):
    pool(64)
    program = linked(link)
    if link == "zero-filesize":
        loads = [h for h in read_headers(program) if h.type == PT_LOAD]
        assert any(h.file_bytes == 0 and h.flags & PF_W for h in loads), loads
    with stopped([program], helpers.environment()) as process:
        plain = process.finish()
    options = "backend=hugetlb,data=thp,bss=thp"
    with stopped([program], helpers.preload(library, options=options)) as process:
        image = read_image(process.pid)
        [plan] = read_plans(process.pid, [program], options).values()
        for span in plan.spans:
            if link == "zero-filesize" and span.kind == "bss":  # ld.so has put copied data into its first page
                span = Span(span.start + helpers.HUGE, span.end, span.kind)
            check_span(image, span, "hugetlb" if span.kind in ("text", "rodata") else "thp")
        kinds = {span.kind for span in plan.spans}
        hugetlb = sum(m.hugetlb_bytes for m in image.mappings)
        assert hugetlb == plan.pages("text", "rodata") * helpers.HUGE
        moved = process.finish()
    wanted = {"text", "rodata", "bss"} | ({"data"} if link != "zero-filesize" else set())
    assert kinds == wanted, plan.json
    assert moved == plain and plain[0] == 0 and "WRONG" not in plain[1], f"plain: {plain}\nmoved: {moved}"
