# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes whose map is not simply there: children that a server forked, a JIT that writes the same file, other
namespaces, and text that came by a memfd."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

import databases
import helpers
import profiles
from smaps import read_smaps


def children(pid):
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += [int(child), *children(child)]
    return found


def executable(pid):
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))


QUERY = "SELECT COUNT(*) FROM generate_series(1, 4000000) a WHERE a::text LIKE '%7%1%';"


@pytest.mark.check_all
def test_backends_of_postgres(start_stopped, shared_folder, pool, map_of, perf_works, figure):
    """Backends are forked after the move, so their PIDs have no map; `--children` writes the maps.  They belong to
    the server's user, who needs no rights to profile it."""
    folder, binaries, argv = databases.make_postgres(shared_folder, "postgres-perf")
    psql = [f"{binaries}/psql", "-h", folder, "-U", "postgres", "-At"]
    pool(16)
    with start_stopped(profiles.Program("postgres", argv, ("postgres",)), "backend=hugetlb,perf_map=on") as server:
        server.resume()
        helpers.wait_until(lambda: helpers.run([*psql, "-c", "SELECT 1"]).returncode == 0, what="postgres answering")
        client = helpers.start(psql, helpers.environment(PGAPPNAME="profiled"), stdin=subprocess.PIPE)
        try:
            asked = [*psql, "-c", "SELECT pid FROM pg_stat_activity WHERE application_name = 'profiled'"]
            backend = int(helpers.wait_until(lambda: helpers.run(asked).stdout, what="the backend's start"))
            maps = {pid: map_of(pid) for pid in children(server.pid)}
            assert backend in maps and not any(map_.exists() for map_ in maps.values())

            profiles.write_map(server.pid, "--children")
            assert all(map_.exists() for pid, map_ in maps.items() if helpers.state_of(pid))
            assert maps[backend].stat().st_uid == databases.user_or_skip("postgres").pw_uid
            data = folder / "profile"
            with profiles.attached(backend, data, user=databases.AS_POSTGRES):
                stdout, stderr = client.communicate(QUERY, timeout=60)
            assert client.returncode == 0 and int(stdout) > 0, stderr
        finally:
            helpers.end_process(client)
        os.kill(server.pid, signal.SIGINT)  # fast shutdown
        server.communicate(timeout=60)

    by_user = profiles.read(data, databases.AS_POSTGRES)
    shutil.chown(data, 0, 0)
    as_file = profiles.read(profiles.as_if_in_file(data, folder / "file", server.placed))
    count = profiles.judge(figure, "a backend of postgres", as_file, by_user, server.placed, maps[backend])
    assert count > 100
    by_root = profiles.read(data)
    assert by_root == by_user


SCRIPT = """
function early(n) { let x = n; for (let i = 0; i < 300000; i++) x = Math.imul(x, 31) + i | 0; return x; }
function later(n) { let x = n; for (let i = 0; i < 300000; i++) x = Math.imul(x, 17) - i | 0; return x; }
const text = '[' + '7,'.repeat(50000) + '7]';
let sum = 0;
for (let i = 0; i < 20; i++) sum += early(i);
process.kill(process.pid, 'SIGSTOP');
for (const end = process.cpuUsage().user + 800000; process.cpuUsage().user < end;)
    sum += early(sum) + later(sum) + JSON.parse(text).length;
"""


def as_in_file(frame):
    """V8 also writes the builtins that lie in node's text, under names of its own."""
    name = re.sub("^Builtin:", "Builtins_", frame.name)
    name = re.sub(r"^BytecodeHandler:(.*)", r"Builtins_\1Handler", name)
    return dataclasses.replace(frame, name=re.sub(r"_Star\d+Handler", "_ShortStarHandler", name))


@pytest.mark.check_all
def test_jit_of_node(node, start_stopped, folder, pool, figure):
    """node writes the same file, truncates the old contents, and goes on writing after `--append`."""
    script = folder / "script.js"
    script.write_text(SCRIPT)
    program = node._replace(argv=[node.argv[0], "--perf-basic-prof", script], folder=folder)
    pool(64)
    with start_stopped(program, "backend=hugetlb,perf_map=on") as process:
        process.resume()
        helpers.wait_until(lambda: helpers.state_of(process.pid) == "T", what="node stopping")
        assert "early" in process.map.read_text() and "uv_run" not in process.map.read_text()
        profiles.write_map(process.pid, "--append")
        profiles.write_map(process.pid, "--output", folder / "map")
        assert "later" not in process.map.read_text()
        with profiles.attached(process.pid, folder / "data", frequency=1499):
            program.work(process)
    written = process.map.read_text(errors="replace")
    assert "later" in written and "uv_run" in written
    lost = {*(folder / "map").read_text().splitlines()} - {*written.splitlines()}
    assert not lost

    moved = [[as_in_file(f) for f in s] for s in profiles.read(folder / "data")]
    as_file = profiles.read(profiles.as_if_in_file(folder / "data", folder / "file", process.placed))
    count = profiles.judge(figure, "node --perf-basic-prof", as_file, moved, process.placed, process.map)
    assert count > 50
    for name in ("early", "later"):
        assert sum(name in s[0].name for s in moved) > 50


IN_NAMESPACE = """
mount --bind "$0" /mnt && mount -t tmpfs none /tmp &&
LD_PRELOAD=/mnt/libhugeld.so LD_HUGEPAGES_OPTIONS="$2" "/mnt/$1" 20000
true
"""


@pytest.mark.check_all
@pytest.mark.parametrize("by_command", [False, True], ids=["own", "command"])
def test_namespaces(deep, root, library, map_of, tmp_path, folder, pool, by_command):
    """In a PID and mount namespace with a /tmp of its own, as in a container, the map is there, under the number that
    the process has there.  perf outside finds it as long as the process lives."""
    program = deep(0)
    shutil.copy(program.argv[0], folder)
    shutil.copy(library, folder)
    options = "backend=hugetlb" if by_command else "backend=hugetlb,perf_map=on"
    pool(16)
    outer = helpers.start(["unshare", "-pm", "--fork", "--kill-child", "--mount-proc", "sh", "-c", IN_NAMESPACE, folder,
                           program.name, options])
    try:
        def find():
            """The process, once it is on huge pages and computes; before that it may still be moving."""
            found = [pid for pid in children(outer.pid) if executable(pid) == program.name]
            return found and any(m.is_hugetlb for m in read_smaps(found[0])) and cpu_seconds(found[0]) > 0.1 and found[0]

        pid = helpers.wait_until(find, what="the program's work")
        inner = pathlib.Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1]
        map_ = pathlib.Path(f"/proc/{pid}/root/tmp/perf-{inner}.map")
        assert int(inner) != pid
        if by_command:
            assert not map_.exists()
            profiles.write_map(pid)
        helpers.wait_until(map_.exists, what="the map")
        assert not map_of(pid).exists()

        with profiles.attached(pid, folder / "data", frequency=999):
            before = cpu_seconds(pid)
            helpers.wait_until(lambda: cpu_seconds(pid) > before + 0.5, what="half a second of work")
        leaves = profiles.from_deep_leaf(profiles.read(folder / "data"))
        assert len(leaves) > 50 and profiles.share(leaves, profiles.is_complete) >= profiles.LEAST
    finally:
        helpers.end_process(outer)
    assert not profiles.from_deep_leaf(profiles.read(folder / "data"))


def cpu_seconds(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")


FORBID = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0: sys.exit(77)  # PR_SET_MDWE
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.check_all
def test_memfd(deep, start_stopped, library, folder, pool, map_of):
    """Where writable memory may not become executable (and before Linux 5.16) text comes by a memfd, of which perf
    hears.  From the start it takes names from the map then.  Attached late it believes that the memfd is a file, and
    finds no names."""
    forbid = ["/usr/bin/python3", "-c", FORBID]
    if helpers.run([*forbid, "true"]).returncode == 77:
        pytest.skip("the kernel has no PR_SET_MDWE (6.3)")
    pool(16)
    program = deep(400)
    options = f"backend=hugetlb,perf_map=on,exe={program.name}"
    run = [library.parent / "hugeld", "run", "-o", options, "--"]
    process = profiles.from_the_start([*forbid, *run, *program.argv], folder / "data", frequency=999)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    map_ = map_of(int(stdout))
    leaves = profiles.from_deep_leaf(profiles.read(folder / "data"))
    assert len(leaves) > 100 and profiles.share(leaves, profiles.is_complete) >= profiles.LEAST
    assert {s[0].dso for s in leaves} == {str(map_)}

    with start_stopped(program._replace(argv=[*forbid, *program.argv]), options) as process:
        assert any(m.name.startswith("/memfd:") and "x" in m.permissions for m in read_smaps(process.pid))
        with profiles.attached(process.pid, folder / "late", frequency=999):
            program.work(process)
        assert process.map.exists()
    samples = profiles.read(folder / "late")
    lost = [s for s in samples if s[0].dso.startswith("/memfd:")]
    assert len(lost) > 100 and not any(s[0].known for s in lost)
    as_file = profiles.read(profiles.as_if_in_file(folder / "late", folder / "file", process.placed))
    assert profiles.share(profiles.from_deep_leaf(as_file), profiles.is_complete) >= profiles.LEAST
