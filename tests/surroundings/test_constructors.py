# SPDX-License-Identifier: LGPL-2.1-or-later
"""libhugeld.so's constructor runs first, when libc's own has not run yet and environ is not set; or last, among threads
that execute the text that moves and signals that interrupt the thread that moves it."""

import re

import pytest

import helpers
import programs
from surroundings import ALL, TEXT


def test_runs_first(builder, library, pool, tmp_path):
    """Its constructor runs before those of libc and every other library, when environ is not set."""
    pool(64)
    app, _ = builder.with_library("dso")
    env = helpers.preload(library, patterns="libbig*", options="backend=hugetlb,verbose=2", LD_DEBUG="files", LD_DEBUG_OUTPUT=tmp_path / "log")
    result = helpers.run([app], env)
    # The program starts a child, which logs too; only the first one has constructors.
    [log] = [f for f in tmp_path.iterdir() if "calling init" in f.read_text()]
    order = re.findall(r"calling init: (\S+)", log.read_text())
    assert order[0] == str(library), order
    # The variables are read all the same: the executable does not move by default, the library does by name.
    assert re.match(r"hugeld: libbig\.so\.1: text \d pages hugetlb", result.stderr), result.stderr


@pytest.mark.check_all
@pytest.mark.parametrize("kind", ["executable", "library"])
def test_first_moves(builder, surround, pool, thp, kind):
    """Everything moves, writable data too."""
    pool(64)
    if kind == "executable":
        app = file = builder.executable("nopie", words=6 * 2**17)
        outcome = surround([app], {file.name: (*ALL, "data")}, options="backend=hugetlb,verbose=1,data=thp")
    else:
        app, [file] = builder.with_library("dso")
        outcome = surround([app], {file.name: ALL}, patterns="libbig*", options="backend=hugetlb,verbose=1")
    assert outcome.stderr == ""


@pytest.mark.parametrize("where", ["library", "executable"])
def test_own_iterate(builder, surround, pool, tool, where):
    """A dl_iterate_phdr that crashes before its own constructor has run; the program's later calls go through it."""
    pool(64)
    if where == "library":
        app, [file] = builder.with_library("dso")
        surround([app], {file.name: ALL}, first=[tool("iterate", shared=True)], patterns="libbig*", options="backend=hugetlb")
    else:
        app = builder.once("iterate", lambda folder: builder.compile(
            folder / "iterate", builder.write("main.c", programs.MAIN), tool.source("iterate"), *builder.object(), "-rdynamic",
            "-no-pie"))
        surround([app], {app.name: ALL}, options="backend=hugetlb")


@pytest.mark.parametrize("name, moves", [("NUMBERS", True), ("POINTER", True), ("FUNCTION", False)])
def test_own_names(builder, surround, pool, tool, name, moves):
    """The program has a _r_debug, a _dl_debug_addr or a getauxval of its own: something else, or one that always says 0."""
    pool(64)
    app = builder.once(f"names-{name}", lambda folder: builder.compile(
        folder / "names", builder.write("main.c", programs.MAIN), tool.source("names"), *builder.object(), f"-D{name}", "-rdynamic",
        "-no-pie"))
    surround([app], {app.name: ALL} if moves else {}, options="backend=hugetlb,verbose=2")


@pytest.mark.parametrize("how", [[], ["-DMAPS"]], ids=["writable", "mapped"])
@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_resolver(library, pool, thp, tool, how, backend):
    """The resolver of an IFUNC runs before every constructor: the program's mappings are not the kernel's any more."""
    pool(64)
    app = tool("resolver", "-no-pie", *how)
    plain = helpers.run([app])
    result = helpers.run([app], helpers.preload(library, options=f"backend={backend},verbose=1"))
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout) and plain.returncode == 0, result
    assert "text stays: its mappings do not match its program headers" in result.stderr


def test_signals_come_later(sum_program, library, pool, first, strace, tmp_path):
    """A handler of an earlier constructor's sees none of the descriptors that are open meanwhile."""
    assert strace
    pool(64)
    env = helpers.preload(library, first, options="backend=hugetlb", patterns="*")
    preloaded = f"LD_PRELOAD={env.pop('LD_PRELOAD')}"
    trace = helpers.run(["strace", "-o", tmp_path / "trace", "-E", preloaded, sum_program()], env)
    assert trace.returncode >= 0, trace
    calls = (tmp_path / "trace").read_text().splitlines()
    [opened] = [i for i, call in enumerate(calls) if '"/proc/self/mem"' in call]
    file = int(calls[opened].rpartition(" ")[2])
    closing = ((i, re.match(r"close(?:_range)?\((\d+)(?:, (\d+))?", calls[i])) for i in range(opened, len(calls)))
    closed = next(i for i, found in closing if found and int(found[1]) <= file <= int(found[2] or found[1]))
    assert any(call.startswith("rt_sigprocmask(SIG_SETMASK, []") for call in calls[closed:]), calls[opened:]


@pytest.mark.parametrize("action, threads", [("threads:2,churn:0", True), pytest.param("threads:2,timer:3e8", True, marks=pytest.mark.check_all(ci=True)), ("timer:64", False)])
@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_last(builder, surround, pool, thp, first, action, threads, backend):
    """Text and read-only data move; writable data too, unless there are threads."""
    pool(64)
    app = builder.executable("nopie", words=6 * 2**17)
    kinds = ALL if threads else (*ALL, "data")
    outcome = surround([app], {app.name: kinds}, first=[first], options=f"backend={backend},verbose=1,data=thp", backend=backend,
                       T_FIRST=action)
    said = f"hugeld: {app.name}: data stays: threads that could write to it are already running; preload hugeld as the last object, " \
           "or use hugeld run --via=ldso\n"
    assert outcome.stderr == (said if threads else "")


@pytest.mark.parametrize("before", ["", "threads:2"], ids=["alone", "threads"])
def test_reserves_for_one_call(sum_program, library, pool, first, strace, tmp_path, before):
    """The kernel is asked for pages by a mapping that is unmapped by the next call, and whose reservation no child owns."""
    assert strace
    pool(64)
    app = sum_program()
    env = helpers.preload(library, first, options="backend=hugetlb,verbose=2", T_FIRST=before)
    result = helpers.run(["strace", "-o", tmp_path / "trace", "-E", f"LD_PRELOAD={env.pop('LD_PRELOAD')}", app], env)
    assert f"{app.name}: text {TEXT} pages hugetlb" in result.stderr, result
    calls = (tmp_path / "trace").read_text().splitlines()
    reserving = [i for i, call in enumerate(calls) if "MAP_HUGETLB" in call and "MAP_NORESERVE" not in call]
    assert reserving
    for i in reserving:
        mapped = re.match(r"mmap\(NULL, (\d+), PROT_READ, MAP_PRIVATE\|.* = (0x[0-9a-f]+)", calls[i])
        assert mapped and calls[i + 1].startswith(f"munmap({mapped[2]}, {mapped[1]})"), calls[i:i + 2]


def test_another_process_shares_the_memory(builder, surround, pool, thp, first):
    """...and could write to the data, but no thread."""
    pool(64)
    app = builder.executable("nopie", words=6 * 2**17)
    outcome = surround([app], {app.name: ALL}, first=[first], options="backend=thp,data=thp,verbose=1", backend="thp", T_FIRST="process")
    assert f"hugeld: {app.name}: data stays: another process may share its memory" in outcome.stderr
