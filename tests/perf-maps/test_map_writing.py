# SPDX-License-Identifier: LGPL-2.1-or-later
"""perf_map=on: the process writes its own map. The map's contents, that nothing else changes, and files that another user
planted under its name."""

import contextlib
import os
import pathlib
import re
import shutil

import pytest

import helpers
from perfmaps import MARK, NOBODY, PLANTED, leftovers, map_path, read_map, text_ranges

WRITTEN = r"hugeld: /tmp/perf-\d+\.map: \d+ functions"


def own_lines(process):
    return read_map(map_path(process).read_text())


def start(own_tmp, script, app, **options):
    argv, env = own_tmp(script, app, **options)
    return helpers.paused(argv, env, app.name)


# --- contents ---


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_like_the_file(moved_app, clean_tmp, map_file, thp, backend):
    """The same lines as the file's at this load address, cut to the moved text."""
    process, app = moved_app(f"perf_map=on,backend={backend}")
    assert map_path(process).read_text() == MARK + map_file(app, *text_ranges(process.pid, app)) + MARK


def test_file_is_private(moved_app, clean_tmp):
    process, _ = moved_app("perf_map=on")
    stat = map_path(process).stat()
    assert (stat.st_mode & 0o7777, stat.st_uid, stat.st_nlink) == (0o600, os.getuid(), 1)
    assert leftovers("/tmp") == []


def test_off_by_default(moved_app):
    process, _ = moved_app("backend=hugetlb")
    assert not map_path(process).exists()


@pytest.mark.parametrize("variant", ["nopie", "six", "aligned-pie", "hole"])
def test_memory_is_as_without(builder, pool, prove, clean_tmp, variant):
    """No mapping and no descriptor is left, the heap is untouched: `prove` finds the same as in a run without."""
    pool(256)
    app = builder.executable(variant)
    proof = prove([app], {app.name: {"text", "rodata"}}, options="perf_map=on,backend=hugetlb")
    assert proof.pages > 0


def test_of_libraries(builder, pool, library, pause_library, clean_tmp, map_file):
    """An executable that stays and two libraries that move: their lines one after the other."""
    pool(64)
    app, libraries = builder.with_library("dso", 2)
    env = helpers.preload(library, pause_library, patterns="*", options="perf_map=on,backend=hugetlb")
    with helpers.paused([app], env, app.name) as process:
        text = map_path(process).read_text()
        lines = read_map(text)
        assert all(a.end <= b.start for a, b in zip(lines, lines[1:]))
        for path in libraries:
            path = path.with_name(path.name + ".1").resolve()
            assert map_file(path, *text_ranges(process.pid, path)) in text


def test_deleted_executable(named, pool, library, pause_library, clean_tmp, tmp_path):
    """/proc/self/exe is the file that runs, also when its name means another one by now."""
    pool(64)
    app = tmp_path / "large"
    shutil.copy(named("large", "-pie", filler=2080), app)
    env = helpers.preload(library, pause_library, options="perf_map=on,backend=hugetlb,verbose=2")
    script = 'exec 3< "$0"; rm "$0"; cp /bin/true "$0"; exec /proc/self/fd/3'
    with helpers.paused(["/bin/bash", "-c", script, app], env, "large (deleted)") as process:
        assert os.readlink(f"/proc/{process.pid}/exe").endswith(" (deleted)")
        assert len(own_lines(process)) > 1000


def test_replaced_library_is_not_read(builder, pool, clean_tmp, library, tmp_path):
    """A library's name means another file by now: its functions stay unnamed, and a line says so."""
    if helpers.run(["stat", "-f", "-c", "%T", tmp_path]).stdout == "overlayfs\n":
        pytest.skip("on overlayfs only the beginnings of files are compared, and these are the same")
    pool(64)
    app, [path] = builder.with_library("dso")
    copy, new = tmp_path / "libbig.so.1", tmp_path / "new.so"
    shutil.copy(path, copy)
    shutil.copy(path, new)
    source = tmp_path / "replace.c"
    source.write_text(f'#include <stdio.h>\n__attribute__((constructor)) static void replace(void) {{ rename("{new}", "{copy}"); }}\n')
    replace = builder.compile(tmp_path / "replace.so", "-shared", "-fPIC", source, "-Wl,-z,initfirst")
    env = helpers.preload(library, replace, patterns="libbig*", options="perf_map=on,backend=hugetlb,verbose=2,exe=small*",
                          LD_LIBRARY_PATH=tmp_path)
    result = helpers.run([app], env)
    assert re.search(r"libbig.so.1: text \d pages? hugetlb", result.stderr)  # some file systems' files lie anywhere
    assert "libbig.so.1: functions stay unnamed: its file was replaced since it was mapped" in result.stderr
    assert result.returncode == 3 and not re.search(WRITTEN, result.stderr) and not new.exists()


def test_stale_map_goes_away(builder, pool, own_tmp, named):
    """The same process ID had a map before: one that nothing replaces is removed, if it is ours."""
    pool(64)
    with start(own_tmp, f'echo old > /tmp/perf-$$.map; chown {NOBODY} /tmp/perf-$$.map', builder.tiny()) as process:
        assert not map_path(process).exists()
    with start(own_tmp, 'echo old > /tmp/perf-$$.map', builder.tiny()) as process:
        assert map_path(process).read_text() == "old\n"


# --- files in its way ---


@pytest.mark.parametrize("what", PLANTED)
def test_planted_by_another_user(own_tmp, named, pool, what):
    """Another user's file is never followed or written through: one line says so, and the program goes on."""
    pool(64)
    app = named("large", "-pie", filler=2080)
    with start(own_tmp, PLANTED[what], app, options="perf_map=on,verbose=1") as process:
        folder = pathlib.Path(f"/proc/{process.pid}/root/tmp")
        planted = map_path(process)
        kinds = {"symlink": planted.is_symlink, "folder": planted.is_dir, "fifo": planted.is_fifo}
        assert kinds.get(what, planted.is_file)() and planted.lstat().st_uid == 0
        for name in ("victim", planted.name):
            file = folder / name
            assert not file.is_file() or file.read_text() == "precious\n"
        assert leftovers(folder) == []
        status, _, stderr = process.finish()
    name = planted.name
    assert status == 0
    assert re.fullmatch(f"hugeld: {name} is not written: (another user's file or folder is in the way|a folder has its name);"
                        " .*\n", stderr)


@pytest.mark.parametrize("what", PLANTED)
def test_planted_by_ourselves(own_tmp, named, pool, what):
    """A planted file is replaced (a folder is not), and the target of a link keeps its contents."""
    pool(64)
    app = named("large", "-pie", filler=2080)
    mine = f"{PLANTED[what]}; chown -h {NOBODY} /tmp/*"
    with start(own_tmp, mine, app) as process:
        folder = pathlib.Path(f"/proc/{process.pid}/root/tmp")
        if what == "folder":
            assert map_path(process).is_dir()
        else:
            assert not map_path(process).is_symlink() and len(own_lines(process)) > 1000
        assert not (folder / "victim").exists() or (folder / "victim").read_text() == "precious\n"
        assert leftovers(folder) == []


@pytest.mark.parametrize("call, error, words", [
    ("renameat2", "EPERM", "another user's file"), ("renameat2", "EIO", "error 5"), ("getrandom", "EAGAIN", None),
    ("prlimit64", "EPERM", None), ("statx", "ENOSYS", "functions stay unnamed"),
])
def test_failing_calls(strace, named, pool, clean_tmp, library, call, error, words):
    pool(64)
    app = named("large", "-pie", filler=2080)
    env = helpers.environment(T_LIBRARY=library, LD_HUGEPAGES_OPTIONS="perf_map=on,verbose=2,exe=large,backend=hugetlb")
    result = helpers.run([*strace(call, error, "1+"), "sh", "-c", 'LD_PRELOAD=$T_LIBRARY exec "$0"', app], env)
    assert result.returncode == 0 and leftovers("/tmp") == []
    assert words in result.stderr if words else re.search(WRITTEN, result.stderr)


def test_limit_for_files(named, pool, clean_tmp):
    """Under ulimit -f there is no SIGXFSZ, and no half map."""
    pool(64)
    app = named("large", "-pie", filler=2080)
    env = helpers.environment(T_LIBRARY=helpers.LIBRARY, LD_HUGEPAGES_OPTIONS="perf_map=on,verbose=1,exe=large")
    result = helpers.run(["/bin/bash", "-c", 'ulimit -f 8; LD_PRELOAD=$T_LIBRARY exec "$0"', app], env)
    assert result.returncode == 0
    assert "is not written: it is larger than the limit for files; raise ulimit -f" in result.stderr
    assert leftovers("/tmp") == []


def test_full_tmp(own_tmp, named, pool):
    """Without room there is one line, and nothing is left."""
    pool(64)
    app = named("large", "-pie", filler=2080)
    script = "mount -o remount,size=16k /tmp"
    with start(own_tmp, script, app, options="perf_map=on,verbose=1") as process:
        assert list(pathlib.Path(f"/proc/{process.pid}/root/tmp").iterdir()) == []
        status, _, stderr = process.finish()
    assert status == 0 and "is not written: its file system is full; make room there" in stderr


@contextlib.contextmanager
def stopped_descendant(argv, env, app):
    """The process below `unshare --fork` that stands still."""
    process = helpers.start(argv, dict(env, T_PAUSE=app.name))
    try:
        yield helpers.wait_until(
            lambda: next((pid for pid in helpers.marked_processes() if helpers.state_of(pid) == "T"), None), what="stopping")
    finally:
        helpers.end_process(process)
        helpers.wait_until(lambda: not helpers.marked_processes(), what="the namespace ending")


def test_in_a_pid_namespace(own_tmp, named, pool):
    """The name has the number that the process itself sees."""
    pool(64)
    app = named("large", "-pie", filler=2080)
    argv, env = own_tmp("true", app, wrapper=["-p", "-f", "--kill-child"], run='"$@"; exit')
    with stopped_descendant(argv, env, app) as pid:
        [inner] = re.findall(r"^NSpid:\t\d+\t(\d+)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)
        path = pathlib.Path(f"/proc/{pid}/root/tmp/perf-{inner}.map")
        inside = path.read_text()
        assert int(inner) < pid and len(read_map(inside)) > 1000
        path.unlink()
        result = helpers.hugeld("perf-map", pid)  # from outside the same
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.startswith(f"{pid}: /tmp/perf-{inner}.map: ") and path.read_text() == inside
