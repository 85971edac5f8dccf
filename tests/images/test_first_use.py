# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld run without options makes the images that a program lacks, in a process beside it, for its next start.  The program does not
wait for that and cannot see it, and it is not done where no store is there or where it would be done again and again."""

import contextlib
import os
import pathlib
import re
import shutil
import time

import pytest

import helpers
from worlds import APP, SYSTEM, USER


# Stands in for hugeld-command: writes this process's properties and open files.
MAKER = """#!/bin/sh
ls -l /proc/$$/fd > /run/open-$$
{
    echo "arguments $*"
    sed -n 's/.* -> /open /p' /run/open-$$
    echo "nice $(cut -d ' ' -f 19 /proc/$$/stat) policy $(cut -d ' ' -f 41 /proc/$$/stat) score $(cat /proc/$$/oom_score_adj)"
    echo "session $(cat /proc/$$/autogroup 2> /dev/null)"
    echo "core $(ulimit -c)"
    tr '\\0' '\\n' < /proc/$$/environ | sed -n 's/=.*//p' | sed 's/^/variable /'
    grep SigBlk /proc/self/status
} > /run/said-$$
while [ -e /run/hold ]; do sleep 0.1; done
mv /run/said-$$ /run/maker-$$
"""
NO_CHILD = "import os\ntry:\n    os.wait()\n    print('a child')\nexcept ChildProcessError:\n    print('no child')\n"


def makers():
    """The processes that make images, or stand in for that."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if b"--first-use" in path.read_bytes().split(b"\0") else []
    return found


@pytest.fixture(autouse=True)
def ended():
    yield
    # On a busy machine a maker may not have begun, and looks like its parent.
    helpers.wait_until(lambda: not helpers.marked_processes() and not makers(), helpers.PATIENCE, "the makers' end")


@pytest.fixture
def stock(world):
    """A large program of this machine, which has not changed for long."""
    for name in ("python3", "git", "gdb", "perl"):
        path = pathlib.Path(os.path.realpath(shutil.which(name) or "/none"))
        if path.exists() and path.stat().st_size > helpers.HUGE:
            return path
    pytest.skip("no large program here")


@pytest.fixture
def store(world):
    """The system's store of that namespace."""
    made = world.run("sh", "-c", f"mkdir -m 755 {SYSTEM} && mount -t tmpfs -o mode=755,huge=always,size=256m none {SYSTEM} && "
                     f"touch -d '1 hour ago' {SYSTEM}/.lock && chmod 600 {SYSTEM}/.lock")
    assert made.returncode == 0, made
    return world.path(SYSTEM)


@pytest.fixture
def maker(world):
    """The output of the stand-ins that have run, after MADE of them have."""
    command = world.path("/run/bin/hugeld-command")
    command.unlink()
    command.write_text(MAKER)
    command.chmod(0o755)

    def said(made):
        helpers.wait_until(lambda: len(list(world.path("/run").glob("maker-*"))) >= made, helpers.PATIENCE, "the maker")
        return [path.read_text() for path in sorted(world.path("/run").glob("maker-*"))]

    return said


def run(world, *words, prefix=(), **options):
    return world.run(*prefix, "/run/bin/hugeld", "run", *words, **options)


def allow_again(store):
    os.utime(store / ".lock", (0, 0))


def images(world, name, place=SYSTEM):
    return list(world.path(place).glob(f"*/{name}"))


def test_next_start(world, store, stock):
    """The first start is plain, and the next one is on the image."""
    plain = world.run(stock, "--version")
    first = run(world, "--", stock, "--version")
    assert (first.returncode, first.stdout, first.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    helpers.wait_until(lambda: images(world, stock.name) and not makers(), helpers.PATIENCE, "its image")
    second = run(world, "-o", "verbose=2", "--", stock, "--version")
    assert (second.returncode, second.stdout) == (plain.returncode, plain.stdout)
    assert f"at the exec stop from {SYSTEM}/" in second.stderr, second.stderr
    [image] = world.list()
    assert image["path"] == str(stock)


def test_by_a_user(world, stock):
    """A user's store is made, too."""
    place = f"/run/user/{USER}"
    made = world.run("mount", "-t", "tmpfs", "-o", f"mode=700,uid={USER},gid={USER},size=256m", "none", place)
    assert made.returncode == 0, made
    run(world, "--", stock, "--version", user=USER)
    helpers.wait_until(lambda: images(world, stock.name, f"{place}/hugeld") and not makers(), helpers.PATIENCE,
                       "its image")
    second = run(world, "-o", "verbose=2", "--", stock, "--version", user=USER)
    assert f"at the exec stop from {place}/hugeld/" in second.stderr, second.stderr


def test_is_said(world, store, stock):
    result = run(world, "-o", "verbose=1", "--", stock, "--version")
    assert f"hugeld: {stock}: where an image is missing that can be made, it is made meanwhile, for the next start\n" in result.stderr, result.stderr
    helpers.wait_until(lambda: images(world, stock.name), what="its image")


def test_has_nothing_of_the_program(world, store, maker, stock):
    """No descriptor, no child, no blocked signal, no variable that a library may act on, no core; and the lowest priority, whatever
    the program's is."""
    allow_again(store)
    prefix = ["env", "CPUPROFILE=/run/profile", "LD_BIND_NOW=1", "chrt", "-f", "1", "sh", "-c", 'ulimit -c 1000; exec "$@" 9< /bin/true', "sh"]
    result = run(world, "--", stock, "--version", prefix=prefix)
    assert result.returncode == 0, result
    [said] = maker(1)
    assert f"arguments run --first-use -- {stock} --version\n" in said
    opened = {name for name in re.findall("^open (.*)", said, re.M) if not name.startswith("/run/open-")}
    assert opened == {"/dev/null", "/run/bin/hugeld-command"}, said
    assert f"nice 19 policy {os.SCHED_IDLE} score 1000\n" in said and "SigBlk:\t0000000000000000\n" in said, said
    assert "session \n" in said or re.search("^session .* nice 19$", said, re.M), said
    assert "core 0\n" in said and set(re.findall("^variable (.*)", said, re.M)) <= {"PATH", "XDG_RUNTIME_DIR", "LD_HUGEPAGES",
                                                                                      "LD_HUGEPAGES_OPTIONS"}, said


def test_is_no_child(world, store, maker):
    allow_again(store)
    python = pathlib.Path(os.path.realpath("/usr/bin/python3"))
    assert run(world, "--", python, "-c", NO_CHILD).stdout == "no child\n"
    maker(1)


def test_is_not_waited_for(world, store, maker, stock):
    """The program has ended before the maker has."""
    allow_again(store)
    world.path("/run/hold").touch()
    try:
        assert run(world, "--", stock, "--version").returncode == 0
        helpers.wait_until(lambda: list(world.path("/run").glob("said-*")), what="the maker's beginning")
        assert not list(world.path("/run").glob("maker-*"))
    finally:
        world.path("/run/hold").unlink()
    maker(1)


def test_not_again_and_again(world, store, maker, stock):
    """Only one of many starts begins a maker, for ten seconds and more."""
    for _ in range(3):
        allow_again(store)
        before, begun = len(maker(0)), time.monotonic()
        for _ in range(5):
            run(world, "--", stock, "--version")
        said = maker(before + 1)
        if time.monotonic() - begun < 9:  # else it may have been so for ten
            break
    assert len(said) == before + 1
    assert (store / ".lock").stat().st_mtime > (store / ".lock").stat().st_ctime + 9  # ctime is that of the last tick
    allow_again(store)
    run(world, "--", stock, "--version")
    assert len(maker(before + 2)) == before + 2


def test_takes_a_hundredth(world, store, stock):
    """The next maker may begin after a hundred times as long as the last has taken."""
    run(world, "--", stock, "--version")
    helpers.wait_until(lambda: images(world, stock.name), what="its image")
    run(world, "--first-use", "--", "/run/bin/hugeld")
    assert (store / ".lock").stat().st_mtime - (store / ".lock").stat().st_ctime >= 9


def stays_away(world, store, maker, stock, *words, prefix=()):
    """No maker begins for this run, and one does for the next that runs as usual."""
    allow_again(store)
    run(world, *words, prefix=prefix)
    assert (store / ".lock").stat().st_mtime == 0, words
    run(world, "--", stock, "--version")
    maker(1)


@pytest.mark.parametrize("options", ["backend=thp", "backend=hugetlb", "exe=*/other", "store=/run/other"])
def test_not_wanted(world, store, maker, stock, options):
    stays_away(world, store, maker, stock, "-o", options, "--", stock, "--version")


def test_small_program(world, store, maker, stock):
    stays_away(world, store, maker, stock, "--", "/bin/true")


def test_where_orphans_come(world, store, maker, stock):
    """The first process of a PID namespace would be the maker's parent."""
    prefix = ["unshare", "--pid", "--fork", "--mount-proc"]
    if world.run(*prefix, "true").returncode != 0:
        pytest.skip("no PID namespaces here")
    stays_away(world, store, maker, stock, "--", stock, "--version", prefix=prefix)


def test_below_a_process_that_waits_for_orphans(world, store, maker, stock):
    """A build's sandbox is the parent of all that is left over, and ends after it."""
    world.path("/run/hold").touch()
    script = "import ctypes, os, subprocess, sys\nctypes.CDLL(None).prctl(36, 1)\nsubprocess.run(sys.argv[1:])\n" \
             "while True:\n    try:\n        os.wait()\n    except ChildProcessError:\n        break\n"
    allow_again(store)
    result = run(world, "--", stock, "--version", prefix=["timeout", "60", "python3", "-c", script])
    world.path("/run/hold").unlink()
    assert result.returncode == 0 and (store / ".lock").stat().st_mtime > 0
    allow_again(store)
    run(world, "--", stock, "--version")
    assert len(maker(1)) == 1


def test_in_a_service(world, store, maker, stock):
    """systemd would take the maker for the service's main process, or wait for it."""
    prefix = ["sh", "-c", 'SYSTEMD_EXEC_PID=$$ exec "$@"', "sh"]
    stays_away(world, store, maker, stock, "--", stock, "--version", prefix=prefix)


def test_below_a_service(world, store, maker, stock, tmp_path):
    """The same for a program that a service's script runs."""
    root = pathlib.Path("/sys/fs/cgroup")
    group = (root if (root / "cgroup.procs").exists() else next(root.glob("*/cgroup.procs")).parent) / f"t{os.getpid()}-{tmp_path.name}.service"
    group.mkdir()
    try:
        prefix = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        stays_away(world, store, maker, stock, "--", stock, "--version", prefix=prefix)
    finally:
        helpers.wait_until(lambda: not (group / "cgroup.procs").read_text(), what="its end")
        group.rmdir()


def test_no_store(world, maker, stock):
    """Root's store is a mount, so it is made only on request."""
    result = run(world, "--", stock, "--version")
    assert result.returncode == 0 and not world.path(SYSTEM).exists()


def test_first_use_of_what_is_too_young(world, store):
    """A program that was just built may run only once."""
    allow_again(store)
    assert run(world, "--", APP).returncode == world.run(APP).returncode
    helpers.wait_until(lambda: (store / ".lock").stat().st_mtime > 0, what="its begin")
    assert run(world, "--first-use", "--", APP).returncode == 0 and not images(world, "app")


def test_libraries_beside_an_image(world, store, stock):
    """The helper by which the program begins on its image traces it meanwhile, and is no reason to make none of its libraries."""
    world.add("--way=image", stock)
    allow_again(store)
    result = run(world, "-p", "*", "-o", "verbose=2", "--", stock, "--version")
    assert result.returncode == 0 and "at the exec stop from" in result.stderr and "it is made meanwhile" in result.stderr, result


# --- preloading ---


@pytest.fixture
def library(world, builder):
    """A library at a path that only root can change, whose file name is not its soname, libbig.so.1."""
    _, [dso] = builder.with_library("dso-aligned")
    shutil.copy(dso, world.path("/run/programs/large.so"))
    shutil.copy(helpers.LIBRARY, world.path("/run/bin"))
    return "/run/programs/large.so"


def test_preloads_only_for_what_is_shared(world, store, library):
    """Nothing of hugeld is in a program for which the store has none of the named objects, even if it has others."""
    plain = ["env", "-u", "LD_HUGEPAGES_OPTIONS"]

    def preloads(patterns, verbose=0):
        result = run(world, "-p", patterns, "-o", f"verbose={verbose}", "--", "sh", "-c", "cat /proc/self/maps; env", prefix=plain)
        assert result.returncode == 0 and ("libhugeld.so" in result.stdout) == ("LD_HUGEPAGES=" in result.stdout), result
        return "libhugeld.so" in result.stdout

    soon = time.time() + 3600  # nothing is made meanwhile
    os.utime(store / ".lock", (soon, soon))
    world.add("--way=image", APP)
    assert not any(preloads(patterns, verbose) for patterns in ("main:libbig*", "main:*") for verbose in (0, 1))
    started = run(world, "-p", "main:libbig*", "-o", "verbose=1", "--", APP, prefix=plain)
    assert "there is no image of a library that is named" in started.stderr, started
    world.add("--way=image", library)
    assert all(preloads(patterns, verbose)
               for patterns in ("main:libbig*", "main:large.so", library, "main:*") for verbose in (0, 1))
    assert not any(preloads(patterns) for patterns in ("main:libother*", "main:!libbig*:*", "/run/other/libother*"))
    # By links, or another mount, the program has it at another path.
    assert preloads("main:/run/elsewhere/libbig.so.1") and preloads("main:/run/elsewhere/*")
    moved = world.path(library).parent.rename(world.path("/run/renamed"))
    assert preloads("main:libbig*")
    moved.rename(world.path(library).parent)
    world.path(library).chmod(0o700)  # the image is that of another file now
    assert not preloads("main:libbig*")


def test_strict_for_a_library(world, store, library):
    """The program could begin on its image, and does not run, since the other named object is not there."""
    soon = time.time() + 3600
    os.utime(store / ".lock", (soon, soon))
    world.add("--way=image", APP)
    plain = ["env", "-u", "LD_HUGEPAGES_OPTIONS"]
    refused = run(world, "-p", "main:libnone.so.1", "-o", "strict=on", "--", APP, prefix=plain)
    assert (refused.returncode, refused.stdout) == (127, "") and "libnone.so.1: no object" in refused.stderr, refused
    assert run(world, "-p", "main:libnone.so.1", "--", APP, prefix=plain).returncode == world.run(APP).returncode
