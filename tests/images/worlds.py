# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mount namespace with a /run, /dev/shm and /etc of its own, for tests of stores: nothing on this machine changes."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import helpers
from smaps import read_smaps

USER, OTHER = 12345, 12346
SYSTEM = "/run/hugeld"
APP = "/run/programs/app"

# Maps FILE at a multiple of a huge page, reads one byte of each page, prints ready and its smaps, and waits.
MAPPER = r"""
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file, huge = os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
size = -(-os.fstat(file).st_size // huge) * huge
room = libc.mmap(None, size + huge, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
at = -(-room // huge) * huge
assert libc.mmap(at, size, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_SHARED | 0x10, file, 0) == at
for page in range(0, os.fstat(file).st_size, huge):
    ctypes.string_at(at + page, 1)
print(f"{at:x}-{at + size:x}", flush=True)
sys.stdin.read()
"""

# Maps FILE and calls madvise with ADVICE for one small page in each huge one; else reads all of it.
TOUCHER = r"""
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
size, huge = os.fstat(file).st_size, int(sys.argv[2])
mapping = mmap.mmap(file, 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
print(sum(mapping[at] for at in range(0, size, mmap.PAGESIZE)) >= 0)
if sys.argv[3:]:
    for at in range(0, size - huge, huge):
        mapping.madvise(int(sys.argv[3]), at + mmap.PAGESIZE, mmap.PAGESIZE)
"""


class World:
    """A mount namespace of its own, and the steps done in it."""

    def __init__(self, holder):
        self.pid = holder.pid
        self.root = pathlib.Path(f"/proc/{holder.pid}/root")

    def path(self, path):
        return self.root / str(path).lstrip("/")

    def command(self, *arguments, user=None, strace=None):
        become = [*helpers.become(user), "env", f"XDG_RUNTIME_DIR=/run/user/{user}", f"XDG_CONFIG_HOME=/run/user/{user}/config"] if user else []
        trace = ["strace", "-f", "-o", "/dev/null", *strace] if strace else []
        return ["nsenter", "-t", self.pid, "-m", "--wd=/", *become, *trace, *arguments]

    def run(self, *arguments, **options):
        """Without the line about a process of a test beside this one that keeps its memory map locked: hugeld looks at all processes."""
        result = helpers.run(self.command(*arguments, **options))
        result.stderr = re.sub(r"hugeld: process \d+ keeps its mappings locked.*\n", "", result.stderr)
        return result

    def hugeld(self, *arguments, **options):
        return self.run("/run/bin/hugeld", *arguments, **options)

    def settings(self, **values):
        """Writes hugeld.conf."""
        configuration = self.path("/etc/hugeld/hugeld.conf")
        configuration.parent.mkdir(exist_ok=True)
        configuration.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))

    def lists(self, name, *lines):
        """Writes a list as a package would."""
        file = self.path(f"/etc/hugeld/enabled.d/{name}.list")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))

    def enable(self, *arguments, **options):
        """Enables each of ARGUMENTS; it must be on huge pages then."""
        result = self.hugeld("enable", *arguments, **options)
        assert (result.returncode, result.stderr) == (0, ""), result
        return result

    def list(self, *arguments, **options):
        """All files that are listed or have an image."""
        result = self.hugeld("list", "--json", *arguments, **options)
        assert result.returncode in (0, 1, 3), result
        return [file for store in json.loads(result.stdout)["stores"] for file in store["files"]]

    def apply_list(self, store, *lines, options=(), **others):
        """Makes a store of one's own from a list with these LINES."""
        file = self.path("/run/own.list")
        file.write_text("".join(f"{line}\n" for line in lines))
        return self.hugeld("apply", "--json", "--list=/run/own.list", f"--store={store}", *options, **others)

    def systemctl(self, text):
        """The prefix of a command for which systemctl describes a unit as TEXT, since no systemd runs here."""
        script = self.path("/run/own/systemctl")
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"""#!/bin/sh
names=$(echo "$2" | sed 's/--property=//; s/,/|/g')
grep -E "^($names)=" <<END || :
{text}
END
""")
        script.chmod(0o755)
        return ["env", "PATH=/run/own:/usr/bin:/bin"]

    def left(self, store=SYSTEM):
        """Every name in the folder of the store but that of its lock and records."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(set(os.listdir(self.path(store))) - {".lock", ".records"})
        return []

    @contextlib.contextmanager
    def mapped(self, image, user=None):
        """A process that maps IMAGE: gives bytes of it that are mapped by huge entries."""
        process = helpers.start(self.command("/usr/bin/python3", "-c", MAPPER, image, helpers.HUGE, user=user),
                                stdin=subprocess.PIPE)
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            start = int(line.partition("-")[0], 16)
            mapping = next(m for m in read_smaps(process.pid) if m.start == start)
            yield (mapping.kb["ShmemPmdMapped"] + mapping.kb["FilePmdMapped"]) * 1024 + mapping.hugetlb_bytes
        finally:
            helpers.end_process(process)


@contextlib.contextmanager
def disk(world, tmp_path, make):
    """A file system in a file, made by the command MAKE(image, folder with the program), at /run/disk."""
    tree, file = tmp_path / "tree", tmp_path / "disk"
    tree.mkdir()
    shutil.copy(world.path(APP), tree / "app")
    made = helpers.run(make(file, tree))
    assert made.returncode == 0, made
    world.path("/run/disk").mkdir()
    mounted = world.run("mount", "-o", "loop,ro" if file.read_bytes()[:4] == b"hsqs" else "loop", file, "/run/disk")
    if mounted.returncode != 0:
        pytest.skip(f"no loop device here: {mounted.stderr}")
    try:
        yield "/run/disk/app"
    finally:
        world.run("umount", "/run/disk")
