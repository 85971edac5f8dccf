# SPDX-License-Identifier: LGPL-2.1-or-later
"""A debugger writes into the parent's text while the pool is empty.  The write needs a page; where the mapping owns a
reservation the kernel takes it from the children and kills them.  Ours own none: the debugger gets an error, if the
kernel has no page for it, and every process lives."""

import subprocess

import pytest

import helpers
from hugepages import free_pages, pool_counts
from smaps import read_smaps
from surroundings import RODATA, TEXT

ROUTES = {"anonymous": ([], "/anon_hugepage"), "memfd": (["mdwe"], "/memfd:hugeld")}


@pytest.mark.parametrize("route", ROUTES)
def test_write_with_an_empty_pool(sum_program, library, pool, confine, tool, route):
    rules, name = ROUTES[route]
    app = sum_program()
    pool(TEXT + RODATA)
    env = helpers.preload(library, options="backend=hugetlb,verbose=1")
    process = helpers.start([*confine(*rules), app, "family"], env, stdin=subprocess.PIPE)
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        assert lines[1] == "ready\n", (lines, process.stderr.read())
        mappings = [m for m in read_smaps(process.pid) if m.is_hugetlb]
        assert sum(m.bytes for m in mappings) == (TEXT + RODATA) * helpers.HUGE
        assert all(m.name.startswith(name) for m in mappings if "x" in m.permissions)
        assert free_pages() == 0
        total, free, reserved, surplus = pool_counts()
        assert (free, reserved) == (0, 0), "the spans own a reservation"

        # Between two functions of the text, where nothing is ever executed; once in every page.
        for page in range(TEXT):
            said = helpers.run([tool("poke"), process.pid, f"{0x400000 + page * helpers.HUGE + 0x100010:x}"])
            assert said.returncode == 0, said.stderr
            assert said.stdout in ("read\nwritten\n", "read\nInput/output error\n", "read\nCannot allocate memory\n")
        stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(process)
    assert stdout.split("\n")[:3] == ["child: exit 7, signal 0"] * 3
    assert (process.returncode, stderr) == (3, "")
    plain = helpers.run([app])
    assert [lines[0], *stdout.splitlines(True)[3:]] == plain.stdout.splitlines(True)
