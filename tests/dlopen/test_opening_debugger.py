# SPDX-License-Identifier: LGPL-2.1-or-later
"""gdb uses the same call of the dynamic linker's: it and hugeld leave each other working."""

import os
import re
import shutil
import subprocess

import pytest

import helpers

OPEN = """
import _ctypes, ctypes, sys
open(sys.argv[2]).read()
lib = ctypes.CDLL(sys.argv[1])
_ctypes.dlclose(lib._handle)
"""


@pytest.fixture
def gdb():
    """gdb(arguments, commands): its output."""
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")

    def run(arguments, commands, **options):
        words = [word for command in commands for word in ("-ex", command)]
        return helpers.run(["gdb", "-q", "-batch", "-nx", *words, *arguments], **options).stdout

    return run


def test_gdb_first(workshop, library, pool, gdb):
    """Its breakpoint is in the call: hugeld sees that and leaves later objects where they are."""
    pool(64)
    commands = [f"set environment LD_PRELOAD={library}", "set environment LD_HUGEPAGES=libtable*",
                "set environment LD_HUGEPAGES_OPTIONS=verbose=1", "set startup-with-shell off",
                "set breakpoint pending on", "break dlclose", "run", "info sharedlibrary", "delete", "continue"]
    argv = ["--args", workshop / "open-close", "1", workshop / "libtable1.so"]
    told = gdb(argv, commands, stderr=subprocess.STDOUT)
    assert "everything that dlopen loads stays: the dynamic linker's call for debuggers is unknown, or has a breakpoint" in told
    assert re.search(r"Yes.*libtable1\.so", told) and "exited normally" in told, told


def test_gdb_later(workshop, later, pool, gdb, tmp_path):
    """It attaches and puts its breakpoint over our jump: both see the new object come."""
    pool(64)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = later(["/usr/bin/python3", "-c", OPEN, workshop / "libtable1.so", fifo], "libtable*", "backend=hugetlb,verbose=2")
    try:
        told = gdb(["-p", str(process.pid)], ["set breakpoint pending on", "x/1xb _dl_debug_state", "break dlclose",
                                              f"shell (while grep -q '^State:.t' /proc/{process.pid}/status; do :; done; echo > {fifo}) &", "continue", "info sharedlibrary",
                                              "delete", "detach"])
        _, stderr = process.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(process)
    assert re.search(r"_dl_debug_state>:\s+0xe9", told) and re.search(r"Breakpoint 1.*dlclose", told), told
    assert re.search(r"Yes.*libtable1\.so", told), told
    assert process.returncode == 0 and re.search(r"libtable1\.so: text \d pages hugetlb", stderr)
