# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stock programs are attached to and detached from again and again while they work: nothing they compute is wrong, they
answer their clients, and end as they should.  T_ATTACH=500: the number of pairs for each."""

import contextlib
import os
import re
import shutil
import subprocess

import databases
import helpers
import attaching
import pytest
from hugepages import SMALL_PAGES, compact_memory
from installed import cache_folder
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
            assert result.returncode == 0 or re.search("try again|less than an eighth", result.stderr), result.stderr
        return result.returncode == 0
    helpers.wait_until(is_done, helpers.PATIENCE, command)


PROGRAMS = ["go", "musl", "python"]
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


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attach-postgres")
    for parent in [folder, *folder.parents][:3]:
        if parent.stat().st_uid == os.getuid() and str(parent) != "/tmp":
            parent.chmod(0o755)
    return databases.make_postgres(folder)


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
