# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text that was changed in memory and then swapped out stays, as it would if it were there: every kernel tells of it."""

import os
import struct

import pytest

import helpers
from objects import PT_LOAD, page_down, read_headers
from smaps import read_smaps
from vmguest import libc

PRESENT, SWAPPED = 1 << 63, 1 << 62  # bits of pagemap's entries
MADV_PAGEOUT = 21
SWAP_PAGES = 4096
# From the program's first page: in the middle of the text's first whole huge page.
IN_TEXT = 0x300000


@pytest.fixture
def swap():
    """The guest's memory can be swapped to a file on its disk."""
    path = b"/swap"
    with open(path, "wb") as file:
        header = struct.pack("<3I", 1, SWAP_PAGES - 1, 0).rjust(1024 + 12, b"\0")
        file.write(header.ljust(helpers.PAGE - 10, b"\0") + b"SWAPSPACE2")
        file.write(bytes((SWAP_PAGES - 1) * helpers.PAGE))
        os.fsync(file.fileno())
    os.chmod(path, 0o600)
    assert libc.swapon(path, 0) == 0
    yield
    assert libc.swapoff(path) == 0
    os.unlink(path)


def page_entry(pid, address):
    """The entry of /proc/PID/pagemap of the page at ADDRESS."""
    with open(f"/proc/{pid}/pagemap", "rb", 0) as file:
        return struct.unpack("<Q", os.pread(file.fileno(), 8, address // helpers.PAGE * 8))[0]


@pytest.mark.parametrize("action", ["write", "write and swap"])
def test_changed_text(builder, nodes, library, pause_library, first, swap, action):
    nodes(0, 64)
    app = builder.executable("nopie")
    plain = helpers.run([app])
    at = page_down(min(h.vaddr for h in read_headers(app) if h.type == PT_LOAD)) + IN_TEXT
    script = f"write:{IN_TEXT:x}" + (f",advise:{IN_TEXT:x}:{helpers.PAGE:x}:{MADV_PAGEOUT:x}" if "swap" in action else "")
    env = helpers.preload(pause_library, library, first, options="backend=hugetlb,verbose=1", T_FIRST=script)
    with helpers.paused([app], env, app.name) as process:
        assert not any(m.is_hugetlb for m in read_smaps(process.pid))
        assert page_entry(process.pid, at) & (PRESENT | SWAPPED) == (SWAPPED if "swap" in action else PRESENT)
        returncode, stdout, stderr = process.finish()
    assert (returncode, stdout) == (plain.returncode, plain.stdout)
    assert "text stays: it was changed in memory" in stderr
