# SPDX-License-Identifier: LGPL-2.1-or-later
"""libhugeld.so's constructor runs first, when libc's own has not run yet and environ is not set; or last, among threads
that execute the text that moves and signals that interrupt the thread that moves it."""

import re

import pytest

import helpers
from surroundings import ALL, RODATA, TEXT

REPETITIONS = 100


def test_runs_first(builder, library, pool, tmp_path):
    """Its constructor runs before those of libc and every other library, when environ is not set."""
    pool(64)
    app, _ = builder.with_library("dso")
    env = helpers.preload(library, patterns="libbig*", options="verbose=2", LD_DEBUG="files", LD_DEBUG_OUTPUT=tmp_path / "log")
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
        outcome = surround([app], {file.name: (*ALL, "data")}, options="verbose=1,data=thp")
    else:
        app, [file] = builder.with_library("dso")
        outcome = surround([app], {file.name: ALL}, patterns="libbig*", options="verbose=1")
    assert outcome.stderr == ""


@pytest.mark.parametrize("action, threads", [("threads:2,churn:0", True), pytest.param("threads:2,timer:3e8", True, marks=pytest.mark.check_all(ci=True)), ("timer:64", False)])
@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_last(builder, surround, pool, thp, first, action, threads, backend):
    """Text and read-only data move; writable data too, unless there are threads."""
    pool(64)
    app = builder.executable("nopie", words=6 * 2**17)
    kinds = ALL if threads else (*ALL, "data")
    outcome = surround([app], {app.name: kinds}, first=[first], options=f"backend={backend},verbose=1,data=thp", backend=backend,
                       T_FIRST=action)
    said = f"hugeld: {app.name}: data stays: threads that could write to it are already running; preload hugeld as the last object\n"
    assert outcome.stderr == (said if threads else "")


@pytest.mark.parametrize("action", [pytest.param("threads:2,timer:3e8", marks=pytest.mark.check_all(ci=True)),
                                    pytest.param("threads:2,churn:1", marks=pytest.mark.check_all),
                                    pytest.param("timer:64", marks=pytest.mark.check_all)],
                         ids=["threads and SIGPROF", "churning threads", "SIGPROF"])
def test_repeated(sum_program, library, pool, first, action):
    """Two threads run the text while it moves, and others map and unmap, fork and look at its stack; SIGPROF comes every millisecond (every 100 us in the single thread, whose
    whole way takes a few milliseconds) and runs it too."""
    pool(64)
    app = sum_program()
    plain = helpers.run([app])
    env = helpers.preload(library, first, options="backend=hugetlb,verbose=2", T_FIRST=action)
    for i in range(REPETITIONS):
        result = helpers.run([app], env)
        assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), f"{i}: {result}"
        assert f"{app.name}: text {TEXT} pages hugetlb, rodata {RODATA} page hugetlb" in result.stderr
