# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stock programs are attached to and detached from again and again while they work: nothing they compute is wrong, they
answer their clients, and end as they should.  T_ATTACH=500: the number of pairs for each; the whole sweep of kills
with each program."""

import contextlib
import os
import re
import shutil
import subprocess
import time

import databases
import helpers
import attaching
import pytest
from hugepages import SMALL_PAGES, compact_memory
from installed import cache_folder, find_node
from pagecache import on_small_pages
from smaps import read_smaps


PAIRS = int(os.environ.get("T_ATTACH", 20))


@pytest.fixture(scope="session")
def go_program(tmp_path_factory):
    if not shutil.which("go"):
        pytest.skip("go is not installed (golang-go)")
    program = tmp_path_factory.mktemp("go") / "pulse"
    env = helpers.environment(GOCACHE=cache_folder() / "go", GOPROXY="off", GOTOOLCHAIN="local", GOFLAGS=None,
                              CGO_ENABLED="0")
    subprocess.run(["go", "build", "-o", program, attaching.HERE / "pulse.go"], env=env, check=True, timeout=600)
    on_small_pages(program)
    return [program]


@pytest.fixture(scope="session")
def musl_program(tmp_path_factory):
    if not shutil.which("musl-gcc"):
        pytest.skip("musl-gcc is not installed (musl-tools)")
    program = tmp_path_factory.mktemp("musl") / "pulse"
    source = attaching.HERE / "pulse.c"
    command = ["musl-gcc", "-O1", "-DMIBS=6", '-DCOUNT="6144"', "-o", program, source, "-pthread"]
    subprocess.run(command, check=True, timeout=120)
    on_small_pages(program)
    return [program]


@pytest.fixture(scope="session")
def node_program():
    node = find_node()
    if not node:
        pytest.skip("node as one large executable is not installed")
    return [node, attaching.HERE / "pulse.js"]


@pytest.fixture(scope="session")
def erlang_program(tmp_path_factory):
    if not shutil.which("erlc"):
        pytest.skip("erlc is not installed (erlang-base)")
    folder = tmp_path_factory.mktemp("erlang")
    subprocess.run(["erlc", "-o", folder, attaching.HERE / "pulse.erl"], check=True, timeout=120)
    # Its text is hardly larger than a huge page: not at every address does a whole one lie inside.
    return ["setarch", "-R", "erl", "-noshell", "-pa", folder, "-run", "pulse", "main"]


@pytest.fixture(scope="session")
def qemu_program(tmp_path_factory):
    """It has begun to boot when it says that it is ready; at the end of its input it gets a byte."""
    if not shutil.which("qemu-system-x86_64"):
        pytest.skip("qemu-system-x86_64 is not installed (qemu-system-x86)")
    disk = tmp_path_factory.mktemp("qemu") / "disk"
    subprocess.run(["as", "-o", disk.with_suffix(".o"), attaching.HERE / "pulse.s"], check=True, timeout=60)
    subprocess.run(["ld", "--oformat=binary", "-Ttext=0x7c00", "-o", disk, disk.with_suffix(".o")], check=True, timeout=60)
    machine = "exec 3<&0; exec qemu-system-x86_64 -accel tcg -m 16 -display none -monitor none -serial stdio -no-reboot " \
        '-device isa-debug-exit,iobase=0xf4,iosize=1 -drive "format=raw,file=$0" < <(cat <&3; printf q)'
    return ["bash", "-c", machine, disk]


@pytest.fixture(scope="session")
def python_program():
    return ["/usr/bin/python3", "-B", attaching.HERE / "pulse.py"]


@contextlib.contextmanager
def pulsing(argv):
    """A program that has said that it is ready."""
    process = helpers.start(argv, stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        yield process
    finally:
        helpers.end_process(process)


def finish(process):
    process.stdin.close()
    process.stdin = None
    out, err = process.communicate(timeout=helpers.PATIENCE)
    assert (process.returncode, out) == (7, "rounds, wrong 0\n"), out + err


def huge_bytes(pid):
    images = [m for m in read_smaps(pid) if m.name.startswith(("/memfd:hugeld:", "/hugeld:"))]
    return sum(m.kb["ShmemPmdMapped"] for m in images) * 1024


def until_done(command, pid):
    """A thread may be in the wrong call at that moment, or compute, as the threads of these programs mostly do, or the machine may
    have taken its text out of memory."""
    def is_done():
        result = helpers.hugeld(command, pid)
        if SMALL_PAGES in result.stderr:
            compact_memory()
        else:
            assert result.returncode == 0 or "try again" in result.stderr, result.stderr
        return result.returncode == 0
    helpers.wait_until(is_done, helpers.PATIENCE, command)


def is_killed(steps, nth, command, pid):
    """Whether COMMAND came to its NTH step, before which it is killed; again where a thread was in the wrong call."""
    for _ in range(1000):
        result = helpers.run([steps, "kill", nth, helpers.HUGELD, command, pid])
        if result.returncode in (0, 99):
            return result.returncode == 99
        if SMALL_PAGES in result.stderr:
            compact_memory()
        elif "try again" not in result.stderr:  # the machine may have taken its text out of memory: it comes back
            time.sleep(0.1)
    raise AssertionError(result.stderr)


PROGRAMS = ["go", "musl", "node", "python", "erlang", "qemu"]
SLOW = [pytest.param(name, marks=pytest.mark.check_all) for name in PROGRAMS if name != "musl"]


@pytest.mark.parametrize("name", [*SLOW, pytest.param("musl", marks=pytest.mark.check_all(ci=True))])
def test_pairs(request, name):
    argv = request.getfixturevalue(f"{name}_program")
    with pulsing(argv) as process:
        for _ in range(PAIRS):
            until_done("attach", process.pid)
            assert huge_bytes(process.pid) >= helpers.HUGE
            until_done("detach", process.pid)
            assert huge_bytes(process.pid) == 0
        until_done("attach", process.pid)
        finish(process)


@pytest.mark.check_all
@pytest.mark.parametrize("command", ["attach", "detach"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_killed(request, steps, name, command):
    """hugeld is killed before steps, in a process of its own each time: with T_ATTACH before each one, without it before each second one in
    one or the other program."""
    argv = request.getfixturevalue(f"{name}_program")
    first, stride = (1, 1) if "T_ATTACH" in os.environ else (1 + 2 * PROGRAMS.index(name), 2 * len(PROGRAMS))
    nth, killed = first, True
    while killed:
        with pulsing(argv) as process:
            if command == "detach":
                until_done("attach", process.pid)
            before = len(os.listdir(f"/proc/{process.pid}/fd"))
            killed = is_killed(steps, nth, command, process.pid)
            assert process.poll() is None
            assert len(os.listdir(f"/proc/{process.pid}/fd")) <= before + 3 + 10  # its own come and go
            finish(process)
        nth += stride
    assert nth > 50


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attach-postgres")
    for parent in [folder, *folder.parents][:3]:
        if parent.stat().st_uid == os.getuid() and str(parent) != "/tmp":
            parent.chmod(0o755)
    return databases.make_postgres(folder)


@pytest.mark.check_all
@pytest.mark.parametrize("command", ["attach", "detach"])
def test_backend_killed(pool, postgres, steps, command):
    """The same with a session of PostgreSQL, a new one each time; initdb asks for huge pages."""
    nth, killed = 1, True
    with databases.serving(postgres) as words:
        while killed:
            session = helpers.start(words("psql", "-Atq", "postgres"), stdin=subprocess.PIPE)
            try:
                def ask(question):
                    session.stdin.write(question + ";\n")
                    session.stdin.flush()
                    return session.stdout.readline().strip()
                pid = ask("SELECT pg_backend_pid()")
                if command == "detach":
                    until_done("attach", pid)
                killed = is_killed(steps, nth, command, pid)
                assert ask("SELECT sum(i) FROM generate_series(1, 10000) i") == "50005000", nth
                assert ask("SELECT pg_backend_pid()") == pid
                assert session.communicate("", timeout=helpers.PATIENCE) == ("", "") and session.returncode == 0
            finally:
                helpers.end_process(session)
            nth += 1 if "T_ATTACH" in os.environ else 5
    assert nth > 50


@pytest.mark.check_all
def test_postgres(pool, postgres):
    """The server and its backends, under pgbench: no transaction fails."""
    with databases.serving(postgres) as words:
        result = helpers.run(words("pgbench", "-q", "-i", "-s", "1", "postgres"))
        assert result.returncode == 0, result.stderr
        pid = int((postgres[0] / "data/postmaster.pid").read_text().split()[0])
        counted = 0
        with attaching.asking_again(words("pgbench", "-n", "-S", "-c", "4", "-j", "2", "-T", "5", "postgres")) as said:
            for _ in range(PAIRS):
                attached = helpers.hugeld("attach", "--children", pid)
                counted += attached.stdout.count(" huge page")
                detached = helpers.hugeld("detach", "--children", pid)
                for line in (attached.stderr + detached.stderr).splitlines():
                    assert re.search(f"try again|no such process|ended|no memory|it is not attached|{SMALL_PAGES}", line), line
                if SMALL_PAGES in attached.stderr:
                    compact_memory()
        assert counted > PAIRS // 2 and all("number of failed transactions: 0" in result.stdout for result in said), (counted, said)


COMPUTING = """
$stdout.sync = true
threads = 3.times.map { Thread.new { (1..).each { |i| break i if $over or Array.new(1000) { |j| j * i }.sum != 499500 * i } } }
puts "ready"
$stdin.read
$over = true
puts "rounds, wrong #{threads.map(&:value).count { |i| Array.new(1000) { |j| j * i }.sum != 499500 * i }}"
exit! 7
"""


def test_ruby(tmp_path):
    """It has switched off transparent huge pages, so it is refused, while its threads compute."""
    if not shutil.which("ruby"):
        pytest.skip("ruby is not installed (ruby)")
    (tmp_path / "computing.rb").write_text(COMPUTING)
    with pulsing(["ruby", tmp_path / "computing.rb"]) as process:
        for command in "attach", "detach":
            for _ in range(PAIRS):
                result = helpers.hugeld(command, process.pid)
                assert result.returncode == 1 and "PR_SET_THP_DISABLE" in result.stderr or command == "detach", result
        finish(process)
