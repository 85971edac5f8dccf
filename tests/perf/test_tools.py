# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debuggers and tracers around moved text, each compared with its run without hugeld: which work the same, and which
differ as doc/limits.md says.  An executable that is not PIE begins on a huge page, so that its ELF header moves along
with its text; of a PIE it does not."""

import contextlib
import pathlib
import re
import shutil
import signal

import pytest

import helpers
import profiles

HERE = pathlib.Path(__file__).resolve().parent
LINKS = {"pie": ["-fpie", "-pie", "-DIS_PIE=1"], "nopie": ["-fno-pie", "-no-pie", "-DIS_PIE=0"]}
TO_MAIN = profiles.CHAIN
CORE = ["sh", "-c", 'ulimit -c unlimited && echo "$0" > /proc/self/coredump_filter && exec "$@"']
CORE_PATTERN = pathlib.Path("/proc/sys/kernel/core_pattern")


def need(*commands):
    for command in commands:
        if not shutil.which(command):
            pytest.skip(f"{command} is not installed")


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """build(link): stops.c."""
    folder, built = tmp_path_factory.mktemp("stops"), {}

    def make(link):
        if link not in built:
            built[link] = folder / f"stops-{link}"
            argv = ["gcc", "-O1", "-g", "-fno-toplevel-reorder", *LINKS[link], "-o", built[link], HERE / "stops.c", "-lunwind"]
            result = helpers.run(argv)
            assert result.returncode == 0, result.stderr
        return built[link]

    yield make
    shutil.rmtree(folder)


@pytest.fixture
def stopped(build, start_stopped, pool, tmp_path):
    """stopped(link, options, words...): stops.c with these arguments, stopped before main, in tmp_path; on huge pages as
    OPTIONS say, which smaps must show, or without hugeld if there are none."""
    pool(16)

    def start(link, options, *words, prefix=()):
        path = build(link)
        return start_stopped(profiles.Program(path.name, [*prefix, path, *words], tmp_path), options)

    return start


BOTH = pytest.mark.parametrize("link", LINKS)
HUGETLB, PLAIN = "backend=hugetlb", None


def chain(text):
    """The program's own functions in a backtrace, innermost first; each once."""
    found = re.findall(r"^ *(?:#\d+|>) .*?\b(deep_leaf|deep_three|deep_two|deep_one|main)\b", text, re.M)
    return list(dict.fromkeys(found))


def gdb(*words, commands=()):
    need("gdb")
    arguments = [word for command in commands for word in ("-ex", command)]
    result = helpers.run(["gdb", "-nx", "-batch", *arguments, *words], timeout=90)
    return result.stdout + result.stderr


def breakpoints_work():
    if not helpers.hugeld_json("doctor")["breakpoints"]:
        pytest.skip("this kernel lets no debugger write to hugetlb pages")


@pytest.mark.check_all
@BOTH
def test_gdb_attached(stopped, link):
    breakpoints_work()
    commands = ["handle SIGSTOP nostop noprint nopass", "break deep_three", "continue", "backtrace", "delete",
                "watch counter", "continue", "delete", "detach"]
    said = {}
    for options in (PLAIN, HUGETLB):
        with stopped(link, options, "work", "200") as process:
            told = gdb("-p", process.pid, commands=commands)
            ended = process.finish()
        assert "Hardware watchpoint 2: counter" in told and "New value = " in told and "detached" in told, told
        said[options] = (chain(told[told.index("Breakpoint 1, deep_three"):]), ended)
    assert said[HUGETLB] == said[PLAIN] and said[PLAIN][0] == TO_MAIN[1:]


def test_gdb_from_the_start(build, library, pool):
    """Traced from the start it moves to hugetlb where that is asked for, if the kernel lets debuggers write.  (gdb itself writes to the page of
    _start, so where that page would move, the text stays.)"""
    breakpoints_work()
    pool(16)
    commands = [f"set environment LD_PRELOAD {library}",
                f"set environment LD_HUGEPAGES_OPTIONS {helpers.ALL_SEGMENTS},backend=hugetlb", "catch syscall clock_nanosleep", "run", "backtrace",
                "info proc mappings", "delete", "break deep_three", "continue", "backtrace", "delete", "continue"]
    told = gdb("--args", build("pie"), "work", "3", commands=commands)
    assert re.search(r"r-xp\s+/anon_hugepage", told), told
    first, second = told.split("Breakpoint 2, deep_three")
    assert chain(first) == TO_MAIN and chain(second) == TO_MAIN[1:] and "exited normally" in second


@contextlib.contextmanager
def core_of(stopped, link, options, kind, folder, filter="0x33"):
    """The core file of stops.c, by gcore or by the kernel."""
    if kind == "gcore":
        need("gcore")
        with stopped(link, options, "work", "20000") as process:
            process.resume()
            gdb("-p", process.pid, commands=["break deep_leaf", "continue", "delete", f"gcore {folder}/core"])
    else:
        if re.search("[|/%]", CORE_PATTERN.read_text()):
            pytest.skip(f"kernel.core_pattern is {CORE_PATTERN.read_text().strip()}")
        with stopped(link, options, "crash", prefix=[*CORE, filter]) as process:
            assert process.finish()[0] == -signal.SIGABRT
    [core] = folder.glob("core*")
    try:
        yield core
    finally:
        core.unlink()


@pytest.mark.check_all
@pytest.mark.parametrize("kind", ["gcore", "kernel"])
@BOTH
def test_core(stopped, build, tmp_path, link, kind):
    """gdb and eu-stack unwind the core file, which has the text. eu-stack needs the executable's path if the ELF header has
    moved."""
    if kind == "gcore":
        breakpoints_work()
    need("eu-stack")
    said, sizes = {}, {}
    for options in (PLAIN, HUGETLB):
        with core_of(stopped, link, options, kind, tmp_path) as core:
            sizes[options] = core.stat().st_size
            said[options] = [chain(gdb(build(link), core, commands=["backtrace"])),
                             chain(helpers.run(["eu-stack", f"--core={core}", "-e", build(link)]).stdout)]
            code = re.findall(r"<deep_three\+\d+>:\s+(.*)", gdb(build(link), core, commands=["x/3i deep_three"]))
            said[options].append(code)
    assert said[HUGETLB] == said[PLAIN] and said[PLAIN][:2] == [TO_MAIN, TO_MAIN] and len(said[PLAIN][2]) == 2
    if kind == "kernel":  # gcore takes the whole plain text along, because of the breakpoint
        assert sizes[HUGETLB] > sizes[PLAIN] + helpers.HUGE


@BOTH
def test_own_view(stopped, build, link):
    """backtrace(3) and dladdr(3), whose offsets addr2line resolves, give the same as without hugeld; so is libunwind's
    chain, but it looks for names in the file that maps names, and finds none."""
    ended = {}
    for options in (PLAIN, HUGETLB):
        with stopped(link, options, "self") as process:
            ended[options] = process.finish()
    (_, plain, _), (status, moved, _) = ended[PLAIN], ended[HUGETLB]
    names, offsets, _ = plain.split("\n", 2)
    assert status == 0 and moved.split("\n")[1:] == plain.split("\n")[1:]
    named = helpers.run(["addr2line", "-f", "-e", build(link), *offsets.split()]).stdout
    assert [n for n in named.split("\n") if n in TO_MAIN] == TO_MAIN
    seen = moved.split("\n")[0].split()
    assert len(seen) == len(names.split()) and [n for n in names.split() if n in TO_MAIN] == TO_MAIN
    assert not set(TO_MAIN) & set(seen) and "?" in seen, "the documentation says so"


RACE = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
__asm__(".text\\n.p2align 12\\nfiller: .fill 6 << 20, 1, 0xcc");
int shared;
__attribute__((noinline)) int use_freed(volatile char *p) { return p[3]; }
void *race(void *p) { shared++; return p; }
int main(int argc, char **argv) {
    pthread_t a, b;
    char *p = malloc(10);
    pthread_create(&a, 0, race, 0), pthread_create(&b, 0, race, 0);
    pthread_join(a, 0), pthread_join(b, 0);
    free(p);
    return use_freed(p);
}
"""
FOUND = {"address": r"#0 \S+ in (use_freed) ", "thread": r"#0 (race) "}


@pytest.mark.parametrize("kind", ["address", "thread"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_sanitizers(library, pool, tmp_path, compiler, kind):
    """Their symbolizer names the function in moved text."""
    need(compiler)
    pool(16)
    source, path = tmp_path / "race.c", tmp_path / "race"
    source.write_text(RACE)
    built = helpers.run([compiler, "-g", "-O1", f"-fsanitize={kind}", "-pthread", "-o", path, source])
    if built.returncode != 0:
        pytest.skip(f"{compiler} has no {kind} sanitizer here")
    # gcc's AddressSanitizer wants to be the first library.
    env = helpers.preload(library, options="verbose=2,backend=hugetlb", patterns="race", ASAN_OPTIONS="verify_asan_link_order=0")
    plain, moved = helpers.run([path]), helpers.run([path], env)
    assert re.findall(FOUND[kind], moved.stderr)[:1] == re.findall(FOUND[kind], plain.stderr)[:1] != []
    assert moved.returncode == plain.returncode
    assert re.search(r"hugeld: race: text [23] pages hugetlb", moved.stderr), moved.stderr
