# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld perf-map: the map of a process that runs already, made by others than itself."""

import contextlib
import os
import pathlib
import re
import shutil
import struct
import subprocess

import pytest

import helpers
from helpers import hugeld, one_line
from perfmaps import MARK, NOBODY, PLANTED, leftovers, map_path, names_by_start, read_map, text_ranges

RAISED = r"(\d+): /tmp/perf-(\d+)\.map: (\d+) functions\n"


def dead_pid():
    process = helpers.start(["true"])
    process.wait(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    return process.pid


def write_map(process, *options):
    """The lines that the command writes for PROCESS."""
    result = hugeld("perf-map", *options, process.pid)
    assert (result.returncode, result.stderr) == (0, "")
    pid, _, count = re.fullmatch(RAISED, result.stdout).groups()
    lines = read_map(map_path(process).read_text())
    assert int(pid) == process.pid and int(count) == len(lines)
    return lines


# --- contents ---


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_like_from_inside(moved_app, clean_tmp, thp, backend):
    process, _ = moved_app(f"perf_map=on,backend={backend}")
    inside = map_path(process).read_text()
    assert hugeld("perf-map", "-O", "-", process.pid).stdout == inside
    map_path(process).unlink()
    write_map(process)
    assert map_path(process).read_text() == inside and len(inside) > 10000


def test_demangled(moved_app, named, clean_tmp):
    """--demangle: names are as perf prints them, without parameters."""
    aligned = named("large-exec", "-no-pie", "-Wl,-z,max-page-size=0x200000", filler=2080)
    process, _ = moved_app("backend=hugetlb", app=aligned)
    mangled = read_map(hugeld("perf-map", "-O", "-", process.pid).stdout)
    plain = write_map(process, "--demangle")
    assert [line[:2] for line in plain] == [line[:2] for line in mangled]
    names = {a.name: b.name for a, b in zip(mangled, plain)}
    assert names["_ZN5space5twiceERKNS_5shapeEi"] == "space::twice"
    assert names["hand_written"] == "hand_written"
    assert all(b == a for a, b in names.items() if not a.startswith(("_Z", "_R")))


@pytest.fixture
def debug_file(named, tmp_path):
    """debug_file(how): a stripped copy of the large program whose names are where HOW says, and it before stripping."""
    made = []

    def run(*argv):
        subprocess.run(argv, check=True, timeout=helpers.PATIENCE)

    def make(how):
        app, full, debug = tmp_path / "large", tmp_path / "whole", tmp_path / "names"
        shutil.copy(named("large-id", "-no-pie", f"-Wl,--build-id=0x{helpers.MARK_VALUE.replace('-', '')}", filler=2080), full)
        run("objcopy", "--only-keep-debug", full, debug)
        run("strip", "-o", app, full)
        if how in ("debuglink", "sparse"):
            (tmp_path / ".debug").mkdir()
            debug = debug.rename(tmp_path / ".debug" / "names")
            run("objcopy", f"--add-gnu-debuglink={debug}", app)
            if how == "sparse":  # the section, whose header is the last but one, has gigabytes
                data = bytearray(app.read_bytes())
                at = struct.unpack_from("<Q", data, 40)[0] + (struct.unpack_from("<H", data, 60)[0] - 2) * 64
                struct.pack_into("<QQ", data, at + 24, len(data), 4 << 30)
                app.write_bytes(data)
                os.truncate(app, 5 << 30)
        elif how in ("minidebug", "bomb"):
            keep = tmp_path / "keep"
            keep.write_text("".join(f"{name}\n" for names in names_by_start(full).values() for name in names))
            run("objcopy", "-S", f"--keep-symbols={keep}", debug)
            if how == "bomb":
                os.truncate(debug, 300 << 20)
            run("xz", debug)
            run("objcopy", "--add-section", f".gnu_debugdata={debug}.xz", app)
            if how == "bomb":
                os.truncate(app, 200 << 20)
        elif how == "build-id":
            notes = subprocess.run(["readelf", "-n", app], check=True, capture_output=True, text=True).stdout
            identity = re.search(r"Build ID: ([0-9a-f]+)", notes)[1]
            made.append(pathlib.Path("/usr/lib/debug/.build-id", identity[:2], f"{identity[2:]}.debug"))
            made[0].parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(debug, made[0])
        return app, full

    yield make
    for path in made:
        path.unlink()
        with contextlib.suppress(OSError):
            path.parent.rmdir()


@pytest.mark.parametrize("how", ["debuglink", "build-id", "minidebug", "bomb", "sparse", "none"])
def test_separate_debug_files(debug_file, moved_app, map_file, how, root):
    """A stripped program has the same map as before stripping, wherever its names are."""
    app, full = debug_file(how)
    process, _ = moved_app("backend=hugetlb", app=app)
    lines = helpers.run(["prlimit", f"--as={1 << 30}", helpers.HUGELD, "perf-map", "-O", "-", process.pid]).stdout
    place = text_ranges(process.pid, app)
    has_none = how in ("bomb", "sparse", "none")
    assert lines == MARK + map_file(app if has_none else full, *place) + MARK
    assert lines.count(" filler_") > 2000 or has_none


def test_nothing_moved(builder, library, pause_library, clean_tmp):
    env = helpers.preload(library, pause_library)
    with helpers.paused([builder.tiny()], env, "tiny") as process:
        one_line(hugeld("perf-map", process.pid), 1, "none of its text was moved")
        assert not map_path(process).exists()


def test_several(named, moved_app, clean_tmp):
    """A line says why one of the processes gets no map, and the others get theirs."""
    processes = [moved_app("edges=small")[0] for _ in range(2)]
    gone = dead_pid()
    result = hugeld("perf-map", processes[0].pid, gone, processes[1].pid)
    assert (result.returncode, result.stdout.count("\n")) == (1, 2) and f"{gone}: no such process" in result.stderr
    assert all(map_path(process).stat().st_size > 10000 for process in processes)


def test_output(moved_app, tmp_path):
    process, _ = moved_app("backend=hugetlb")
    file = tmp_path / "map"
    result = hugeld("perf-map", "--output", file, process.pid)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert len(read_map(file.read_text())) > 1000 and not map_path(process).exists()
    one_line(hugeld("perf-map", "--output", tmp_path / "no" / "folder", process.pid), 1, "is not written")
    with open("/dev/full", "w") as full:
        result = hugeld("perf-map", "--output", "-", process.pid, stdout=full)
    assert result.returncode == 1 and "is full" in result.stderr


# --- where it goes ---


@pytest.fixture
def stopped(own_tmp, named, pool):
    """stopped(script, ...): the large program as another user, stopped, with a /tmp of its own."""
    pool(64)

    def start(script, options="backend=hugetlb", **changes):
        app = named("large", "-pie", filler=2080)
        argv, env = own_tmp(script, app, options=options, **changes)
        return helpers.paused(argv, env, app.name)

    return start


def test_in_another_mount_namespace(stopped):
    """The map is in the process's /tmp, with its user and mode 0600; the caller's /tmp stays as it is."""
    with stopped("true") as process:
        assert len(write_map(process)) > 1000
        stat = map_path(process).stat()
        assert (stat.st_uid, stat.st_gid, stat.st_mode & 0o7777) == (NOBODY, NOBODY, 0o600)
        assert not pathlib.Path(f"/tmp/perf-{process.pid}.map").exists()


def test_tmp_is_a_link(stopped):
    """A link inside the namespace's root is resolved there, and does not lead into the caller's root."""
    with stopped("umount /tmp; mount -t tmpfs none /mnt; mkdir -m 1777 /mnt/etc; mkdir /mnt/root; "
                 "mount --rbind / /mnt/root; true") as process:
        assert len(write_map(process)) > 1000
        pathlib.Path(f"/tmp/perf-{process.pid}.map").unlink()


def test_in_a_user_namespace(own_tmp, named, pool):
    """root is nobody there, and the file is made all the same, as the process's user."""
    pool(64)
    app = named("large", "-pie", filler=2080)
    argv, env = own_tmp("true", app, options="backend=hugetlb", user=0)
    argv = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", *argv[:1], "-r", *argv[1:]]
    if helpers.run(["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "unshare", "-rm", "true"]).returncode != 0:
        pytest.skip("user namespaces are not allowed")
    with helpers.paused(argv, env, app.name) as process:
        assert len(write_map(process)) > 1000
        assert map_path(process).stat().st_uid == 1234


@pytest.mark.parametrize("option", ["replace", "--append"])
@pytest.mark.parametrize("what", PLANTED)
def test_planted(stopped, what, option):
    """A file that a third user put there is neither followed nor written through, also by root."""
    script = f"{PLANTED[what]}; chown -h 4321 /tmp/*"
    with stopped(script) as process:
        folder = pathlib.Path(f"/proc/{process.pid}/root/tmp")
        options = [option] if option != "replace" else []
        one_line(hugeld("perf-map", *options, process.pid), 1, "is not written: ")
        for name in ("victim", map_path(process).name):
            assert not (folder / name).is_file() or (folder / name).read_text() == "precious\n"
        assert map_path(process).lstat().st_uid == 4321 and leftovers(folder) == []


def test_by_another_user(stopped, library):
    with stopped("true") as process:
        command = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups", library.parent / "hugeld"]
        one_line(helpers.run([*command, "perf-map", process.pid]), 1, "another user's process; run hugeld as its owner or as root")


def test_by_its_own_user(own_tmp, named, pool, library, clean_tmp):
    """The process's own user needs no privileges, in the same namespace."""
    pool(64)
    app = named("large", "-pie", filler=2080)
    argv, env = own_tmp("umount /tmp", app, options="backend=hugetlb")
    with helpers.paused(argv, env, app.name) as process:
        # The same mount namespace, as a later login would have it.
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        result = helpers.run(["nsenter", "-t", process.pid, "-m", *user, library.parent / "hugeld", "perf-map", process.pid])
        assert result.returncode == 0, result.stderr
        assert map_path(process).stat().st_uid == NOBODY


# --- files that are there ---


OTHERS = {"jit": "{ours}3000 10 jitted\n", "no-map": "# notes\n", "empty": "", "begun": "0 1 hugeld\n3000 10 jitted\n",
          "between": "{ours}3000 10 jitted\n{ours}", "long": "{long}\n"}


@pytest.mark.parametrize("what", OTHERS)
def test_not_ours(moved_app, clean_tmp, what):
    """A file that hugeld did not write stays; --append adds to it."""
    process, app = moved_app("backend=hugetlb")
    path = map_path(process)
    ours = write_map_text(process)
    there = OTHERS[what].format(ours=ours, long="0 1 hugeld" * 100)
    path.write_text(there)
    one_line(hugeld("perf-map", process.pid), 1, f"{path.name} is not written: hugeld did not write this map",
             "add to it with --append, or remove it")
    assert path.read_text() == there and leftovers(path.parent, process.pid) == []
    assert write_map_text(process, "--append").startswith(there)
    assert hugeld("perf-map", process.pid).returncode == (0 if what == "empty" else 1)


def test_map_without_an_end(moved_app, clean_tmp):
    """The process's user may have put a file of any size there: it costs neither memory nor time."""
    process, _ = moved_app("backend=hugetlb")
    path = map_path(process)
    path.write_text("")
    os.truncate(path, 1 << 40)
    limit = ["prlimit", f"--as={1 << 30}", "--"]
    one_line(helpers.run([*limit, helpers.HUGELD, "perf-map", process.pid]), 1, "hugeld did not write this map")
    one_line(helpers.run([*limit, helpers.HUGELD, "perf-map", "--append", process.pid]), 1, "there is no memory for it")


def test_ours(moved_app, clean_tmp):
    """A file that hugeld wrote is replaced, from inside, appended or with other names."""
    process, _ = moved_app("perf_map=on,backend=hugetlb")
    mangled = write_map_text(process)
    demangled = write_map_text(process, "--demangle")
    map_path(process).write_text(demangled + "\n" * 1000 + mangled)
    assert write_map_text(process) == mangled


# --- --append ---


def test_append(moved_app, clean_tmp):
    """The old lines stay; the new ones come once, in one write."""
    process, _ = moved_app("backend=hugetlb")
    path = map_path(process)
    path.write_text("3000 10 jitted\n3010 20 half a li")
    path.chmod(0o600)
    lines = write_map_text(process, "--append")
    assert lines.startswith("3000 10 jitted\n3010 20 half a li\n") and lines.count("jitted") == 1
    assert len(read_map(lines)) > 1000
    result = hugeld("perf-map", "--append", process.pid)
    assert result.returncode == 0 and result.stdout.endswith("functions, there already\n")
    assert path.read_text() == lines


def write_map_text(process, *options):
    write = hugeld("perf-map", *options, process.pid)
    assert (write.returncode, write.stderr) == (0, "")
    return map_path(process).read_text()


def test_append_is_one_write(moved_app, clean_tmp, strace):
    process, _ = moved_app("backend=hugetlb")
    map_path(process).write_text("3000 10 jitted\n")
    result = helpers.run(["strace", "-e", "trace=openat,write", helpers.HUGELD, "perf-map", "--append", process.pid])
    assert result.returncode == 0
    opened = re.search(r'openat\((\d+), "perf-\d+\.map", (\S+)\) = (\d+)', result.stderr)
    assert {"O_APPEND", "O_NOFOLLOW"} <= set(opened[2].split("|")) and "O_CREAT" not in opened[2]
    assert len(re.findall(rf"^write\({opened[3]}, ", result.stderr, re.M)) == 1


def test_append_creates(moved_app, clean_tmp):
    process, _ = moved_app("backend=hugetlb")
    assert len(write_map(process, "--append")) > 1000


# --- --children ---


FORKS = r"""
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
extern char big[];
int main(void) {
    for (int i = 0; i < 2; i++)
        if (fork() == 0) {
            if (i == 0 && fork() == 0)
                pause();
            if (i == 1)
                execl("/bin/sleep", "sleep", "100", (char *)0);
            pause();
        }
    puts("ready");
    fflush(stdout);
    pause();
    return big[0];
}
"""


def test_children(builder, pool, library, clean_tmp):
    """A map for each descendant that shares the moved text; one that became another program has none."""
    pool(64)
    source = builder.write("forks.c", FORKS)
    text = builder.write("forks.s", '.text\n.globl big\n.type big, @function\nbig: .skip 8388608, 0xcc\n.size big, 8388608\n'
                                    '.section .note.GNU-stack,""\n')
    app = builder.once("forks", lambda folder: builder.compile(folder / "forks", source, text))
    process = helpers.start([app], helpers.preload(library, options="backend=hugetlb,exe=forks"))
    try:
        assert process.stdout.readline() == "ready\n"

        def names():
            return sorted(pathlib.Path(f"/proc/{pid}/comm").read_text().strip() for pid in helpers.marked_processes())
        helpers.wait_until(lambda: names() == ["forks", "forks", "forks", "sleep"], what="its children")
        result = hugeld("perf-map", "--children", process.pid)
        assert (result.returncode, result.stderr) == (0, "")
        pids = [int(pid) for pid, *_ in re.findall(RAISED, result.stdout)]
        assert len(pids) == 3 and pids[0] == process.pid
        texts = {pathlib.Path(f"/tmp/perf-{pid}.map").read_text() for pid in pids}
        assert len(texts) == 1 and " big\n" in texts.pop()
        children = helpers.marked_processes()
        assert len(children) == 4
        alone = hugeld("perf-map", process.pid)
        assert len(re.findall(RAISED, alone.stdout)) == 1
    finally:
        helpers.end_process(process)
