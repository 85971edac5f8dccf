# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of shares: how much of each library's text is on huge pages by the preloader and by our ld.so.  The preloader
takes a library where the kernel put it, our ld.so chooses the place, so it never has less.

Kernels put large files of ext4, xfs and btrfs on a boundary of huge pages (since 5.18), those of tmpfs anywhere."""

import pathlib
import re
import shutil
import tempfile

import pytest

import helpers
from linked import by_run
from objects import PF_X
from proof import read_image

OPTIONS = "backend=hugetlb,data=off,segments=text,sparse_text=off"
# gdb's libraries are of all sorts: libpython has much more text than a huge page, libstdc++ less than one.
PROGRAM = "gdb"
LARGE = 1 << 20


@pytest.fixture(params=["tmp_path", "/dev/shm"])
def folder(request, tmp_path):
    """A folder with a copy of each large library of PROGRAM."""
    where = tmp_path if request.param == "tmp_path" else pathlib.Path(tempfile.mkdtemp(dir=request.param))
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"{PROGRAM} is not installed")
    for name, path in re.findall(r"^\s(\S+) => (/\S+) ", helpers.run(["ldd", shutil.which(PROGRAM)]).stdout, re.M):
        if pathlib.Path(path).stat().st_size > LARGE and not name.startswith("libc.so"):
            shutil.copy(path, where / name)
    yield where
    if where != tmp_path:
        shutil.rmtree(where)


def read_shares(process, folder):
    """The share of text on huge pages of each library in FOLDER."""
    image = read_image(process.pid)
    huge = [m for m in image.mappings if m.is_hugetlb]
    shares = {}
    for found in (o for o in image.objects if o.path.startswith(f"{folder}/")):
        text = [(found.bias + h.vaddr, found.bias + h.vaddr + h.memory_bytes) for h in found.loads if h.flags & PF_X]
        covered = sum(max(0, min(m.end, end) - max(m.start, start)) for m in huge for start, end in text)
        shares[found.name] = covered / sum(end - start for start, end in text)
    return shares


def test_never_less_than_the_preloader(linked, library, pool, folder):
    pool(64)
    program, seen = shutil.which(PROGRAM), []
    paths = {"LD_LIBRARY_PATH": folder}
    for _ in range(4):
        env = helpers.preload(library, linked.pause, patterns="lib*", options=OPTIONS, **paths)
        with helpers.paused([program, "--version"], env, PROGRAM) as process:
            preloader = read_shares(process, folder)
        with linked.paused([program, "--version"], "lib*", OPTIONS, by_run, **paths) as process:
            seen.append((preloader, read_shares(process, folder)))
    table = {name: [(round(a[name], 3), round(b[name], 3)) for a, b in seen] for name in seen[0][0]}
    print(*table.items(), sep="\n")
    assert sum(ours == 1 for rows in table.values() for _, ours in rows) >= 4, table
    assert all(ours >= theirs for rows in table.values() for theirs, ours in rows), table
