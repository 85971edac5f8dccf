# SPDX-License-Identifier: LGPL-2.1-or-later
"""The traces of each way onto an image that a program, its children, a debugger, an administrator and a package manager can
notice: this test checks the table of doc/images.md."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import helpers
from test_in_place import CALM, add, cover
from worlds import SYSTEM


HERE = pathlib.Path(__file__).resolve().parent
DOCUMENT = helpers.ROOT / "doc/images.md"
HEADING = "| trace |"
# In the order of the table's columns: how hugeld run is called.
RUN = {"exec stop": [], "preload": ["--via=preload"], "patched linker": ["--via=ldso"]}
WAYS = [*RUN, "attach", "in place"]
PRINT_NAMESPACE = [sys.executable, "-c",
                   "import os, sys; print(os.readlink('/proc/self/ns/mnt'), flush=True); os.execvp(sys.argv[1], sys.argv[1:])"]
SHARED = ["unshare", "-m", "--propagation", "shared", *PRINT_NAMESPACE]


@pytest.fixture
def program(builder, tmp_path):
    def link(folder):
        return builder.compile(folder / "state-nopie", HERE / "exec-stop-state.c", "-w", *builder.object(), "-no-pie")

    return pathlib.Path(shutil.copy(builder.once("state-nopie", link), tmp_path / "state-nopie"))


def start(prefix, app):
    """APP when it waits, and its output so far."""
    env = helpers.environment()
    env.pop("LD_HUGEPAGES_OPTIONS")
    process = helpers.start([*prefix, app, "wait"], env, stdin=subprocess.PIPE)
    printed = []
    while not printed or printed[-1] != "waits\n":
        printed.append(process.stdout.readline())
        assert printed[-1], process.stderr.read()
    return process, printed


def select(printed, *begins):
    return [line for line in printed if line.startswith(begins)]


def look(app, process, printed, plain, image, name=None):
    """The noticeable traces in PROCESS, whose file APP is NAME to itself; PLAIN is its output without hugeld."""
    pid = process.pid
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    seen = {
        "a library of hugeld's is in the process": "libhugeld" in maps,
        "variables in its environment, which children inherit": select(printed, "env LD_") != select(plain, "env LD_"),
        "it and its children are in a mount namespace of their own":
            os.readlink(f"/proc/{pid}/ns/mnt") + "\n" != printed[0],
        "`/proc/PID/exe` is another file than the program's": os.stat(f"/proc/{pid}/exe").st_ino != app.stat().st_ino,
        "`/proc/PID/maps` names the image": str(image) in maps or "/hugeld:" in maps,  # or the copy that attach makes
        "offsets in the program headers in memory are the image's": select(printed, "header ") != select(plain, "header "),
        "processor time of a child that it never had": "children 0.000000 0.000000\n" not in printed,
    }
    assert select(printed, "wait", "usual", "sum") == select(plain, "wait", "usual", "sum")
    gdb = helpers.run(["gdb", "-q", "-nx", "-batch", "-p", pid, "-ex", "info symbol text_a"])
    seen["gdb does not find the program's symbols"] = "text_a in section" not in gdb.stdout
    shutil.copy(app, f"{app}.new")
    os.replace(f"{app}.new", app)
    seen["after an upgrade `/proc/PID/exe` does not name the program"] = \
        os.readlink(f"/proc/{pid}/exe") != f"{name or app} (deleted)"
    return seen


def see(way, app, images):
    """The noticeable traces of WAY."""
    image = images.add(app)
    process, plain = start(SHARED, app)
    helpers.end_process(process)
    options = ["-o", f"store={images.folder},backend=image,data=off", "--"]
    prefix = [*SHARED, helpers.HUGELD, "run", *RUN[way], *options] if way in RUN else SHARED
    process, printed = start(prefix, app)
    try:
        if way == "attach":
            moved = helpers.hugeld("attach", process.pid)
            assert moved.returncode == 0, moved
        return look(app, process, printed, plain, image)
    finally:
        helpers.end_process(process)


def see_in_place(app, world):
    """The same of a file that the page cache has in huge pages."""
    inside = "/run/programs/placed"
    shutil.copy(app, world.path(inside))
    world.path(inside).chmod(0o755)
    prefix = world.command(*PRINT_NAMESPACE)
    process, plain = start(prefix, inside)
    helpers.end_process(process)
    if os.path.exists("/proc/pressure"):
        cover(world, "/proc/pressure/io", CALM, "io")
        cover(world, "/proc/pressure/memory", CALM, "memory")
    add(world, inside)
    process, printed = start(prefix, inside)
    try:
        return look(world.path(inside), process, printed, plain, SYSTEM, inside)
    finally:
        helpers.end_process(process)


@pytest.fixture
def tools():
    for tool in ("gdb", "unshare"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")


def read_table():
    """The document's table: the columns, by their headings, and in each the cell beside a notice."""
    lines = re.search(rf"^{re.escape(HEADING)}.*\n(?:\|.*\n)+", DOCUMENT.read_text(), re.M)[0].splitlines()
    [_, *ways], _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {way: {row[0]: row[1 + i] for row in rows} for i, way in enumerate(ways)}


def test_ways():
    assert list(read_table()) == WAYS


@pytest.mark.parametrize("way", WAYS)
def test_column(request, images, program, tools, way):
    if way == "patched linker" and not (helpers.BUILD / "ldso/ld.so").exists():
        pytest.skip("the patched linker is not built: make ldso")
    seen = see_in_place(program, request.getfixturevalue("world")) if way == "in place" else see(way, program, images)
    assert read_table()[way] == {notice: "yes" if noticed else "no" for notice, noticed in seen.items()}
