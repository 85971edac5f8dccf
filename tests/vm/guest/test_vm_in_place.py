# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld enable --way=in-place` on this kernel's ext4: the huge text afterwards."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

import pytest

import helpers
import vmguest
from pagecache import scatter

BIG, CALM = pathlib.Path("/hugeld/big"), pathlib.Path("/tmp/calm")

# Maps the first executable segment of FILE, whose offset and address agree, as the kernel does; prints FilePmdMapped for each
# line that comes in.
MAPPER = r"""
import ctypes, mmap, os, re, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file, offset, size, huge = os.open(sys.argv[1], os.O_RDONLY), *map(int, sys.argv[2:])
room = libc.mmap(None, size + 2 * huge, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
at = -(-room // huge) * huge + offset % huge
assert libc.mmap(at, size, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE | 0x10, file, offset) == at
def touch():
    for page in range(0, size, mmap.PAGESIZE):
        ctypes.string_at(at + page, 1)
touch()
print("ready", flush=True)
for line in sys.stdin:
    touch()
    with open("/proc/self/smaps") as smaps:
        text = smaps.read().split(f"{at:x}-")[1]
    print(re.search(r"FilePmdMapped: *(\d+)", text)[1], flush=True)
"""


@pytest.fixture
def big(builder):
    """A program on ext4, on a machine under no pressure: an emulated one waits for its disk all the time."""
    shutil.copy(builder.executable("nopie"), BIG)
    BIG.chmod(0o755)
    covered = [path for path in ("/proc/pressure/io", "/proc/pressure/memory") if os.path.exists(path)]
    CALM.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    for path in covered:
        assert helpers.run(["mount", "--bind", CALM, path]).returncode == 0
    yield BIG
    for path in covered:
        helpers.run(["umount", path])
    helpers.hugeld("disable", BIG)
    BIG.unlink()


class Mapping:
    def __init__(self):
        with open(BIG, "rb") as file:
            data = file.read(4096)
        at, n = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
        rows = [struct.unpack_from("<IIQQQQQQ", data, at + 56 * i) for i in range(n)]
        offset, size = next((r[2], r[5]) for r in rows if r[0] == 1 and r[1] & 1)
        self.process = helpers.start([sys.executable, "-c", MAPPER, BIG, offset, size, helpers.HUGE], stdin=subprocess.PIPE)
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        self.whole = ((offset + size) // helpers.HUGE - -(-offset // helpers.HUGE)) * helpers.HUGE

    def __enter__(self):
        return self

    def __exit__(self, *_):
        helpers.end_process(self.process)

    def huge_bytes(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()) * 1024


def enable(*arguments):
    """`hugeld enable`, also of files on another disk."""
    os.makedirs("/etc/hugeld", exist_ok=True)
    with open("/etc/hugeld/hugeld.conf", "w", encoding="utf-8") as settings:
        settings.write("any_disk = yes\n")
    return helpers.hugeld("enable", *arguments)


def add():
    """False: this kernel's ext4 has no large folios."""
    result = enable("--way=in-place", BIG)
    if "keeps files on small pages" in result.stderr:
        return False
    assert result.returncode == 0, result
    return True


def listed():
    result = helpers.hugeld("list", "--json")
    return json.loads(result.stdout)["stores"][0]["files"][0]["huge_pages"] * helpers.HUGE


def test_unmapped(big):
    scatter(BIG)
    before = big.read_bytes()
    if not add():
        vmguest.absent("ext4 keeps files on small pages")
    with Mapping() as mapping:
        assert mapping.huge_bytes() == mapping.whole == listed() > 0
    assert big.read_bytes() == before
