# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writable data is on transparent huge pages, exactly as planned, and not one byte of it changes; pages that the program
never touches take no memory."""

import pytest

import helpers
from proof import read_plans
from smaps import read_smaps
from writable import ALL, FIXED, read_flags

# options -> kinds that move
MOVED = {"data=thp": ("data",), "data=off": (), "data=thp,bss=thp": ("data",), "data=off,bss=thp": ()}


@pytest.mark.parametrize("random", [True, False], ids=["random", "fixed"])
@pytest.mark.parametrize("variant", ["nopie", "pie", *(pytest.param(v, marks=pytest.mark.check_all) for v in ("aligned", "aligned-pie"))])
@pytest.mark.parametrize("options", MOVED)
def test_every_byte(program, compare, pool, thp, variant, random, options):
    """Written by an earlier constructor, with a heap behind them; looked at by main."""
    pool(64)
    moved = MOVED[options]
    app = program(variant)
    before = "fill,sbrk:30000,malloc:30000"
    outcome = compare([app], (*ALL, *moved), before, [] if random else FIXED, options=options)
    assert outcome.stderr == ""
    # 6 MiB of .data fill two huge pages or three.
    assert "data" not in moved or outcome.plans[app.name].pages("data") >= 2


@pytest.mark.parametrize("options", ["data=thp", "data=thp,bss=thp"])
def test_signal_handler(program, library, empty_library, early, pool, thp, options):
    """A handler writes to the data every 50 us; not one write is lost between filling and commit."""
    pool(64)
    for _ in range(20):
        for lib in (empty_library, library):
            result = helpers.run([program("nopie")], helpers.preload(lib, early, options=f"verbose=1,{options}",
                                                                     T_EARLY="timer:32"))
            assert (result.returncode, result.stderr) == (0, "") and "contents: right" in result.stdout, result


@pytest.mark.parametrize("variant", ["nopie", pytest.param("aligned-pie", marks=pytest.mark.check_all(ci=True))])
def test_bss_is_advised(program, library, pause_library, thp, pool, variant):
    """bss=thp: exactly the planned range is advised; nothing of it is there until it is touched, then it is huge."""
    pool(0)
    app = program(variant)
    env = helpers.preload(library, pause_library, options="backend=thp,data=thp,bss=thp")
    with helpers.paused([app, "fork", "1", "0", "stop"], env, app.name) as process:
        [plan] = read_plans(process.pid, [app], "data=thp,bss=thp").values()
        [span] = [s for s in plan.spans if s.kind == "bss"]
        assert span.pages >= 1

        def bss():
            return [m for m in read_smaps(process.pid) if m.start >= span.start and m.end <= span.end]

        advised = [(a, b) for a, b, flags in read_flags(process.pid) if "hg" in flags and b > span.start]
        assert [(max(a, span.start), b) for a, b in advised] == [(span.start, span.end)]
        assert sum(m.kb["Rss"] for m in bss()) == 0
        process.resume()
        helpers.wait_until(lambda: helpers.state_of(process.pid) == "T", what="the program's own stop")
        assert sum(m.thp_bytes for m in bss()) >= helpers.HUGE
        assert process.finish()[0] == 0
