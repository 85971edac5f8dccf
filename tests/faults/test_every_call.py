# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every system call of the core, from its first to its last, fails once; then every call that follows after that as well;
and the process is killed before each.

The calls are those of a good run, in libhugeld.so or in the core's part of ld.so, so that new code is covered by itself,
and each fails with its errors in errnos.py.  After any fault, the program prints the same as without hugeld and exits with
its own status; each span is on huge pages, with the bytes of the good run, or exactly as in the plain run, as are all other mappings, descriptors and
blocked signals; and the reason is told.

T_FAULTS=all tries every errno and every pair, which takes hours.  Without it each call has one errno, by turns, and of the
second failures every eighth of the way back is tried in six settings."""

import os

import helpers
import pytest
from hugepages import pool_counts

from injector import fault_at
from sweep import halves_and_ruins, second_faults, single_faults
from targets import SETTINGS

ALL = os.environ.get("T_FAULTS") == "all"
EACH = None if ALL else 1

# One of each: the way back at start, and where other threads or the linker leave another one.
SECOND = ["start-hugetlb", "start-thp", "start-image", "dlopen-threads-hugetlb", "dlopen-threads-image",
          "ldso-dlopen-hugetlb"]
# The case of `make check`; the linker's take three times as long.  CI takes those above, too.
SAMPLE = ["start-image"]


def settings(names):
    return [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.check_all(ci=name in SECOND)) for name in names]


@pytest.fixture(autouse=True)
def pages(pool, thp):
    pool(64)


def check(name, tried, moved, wrong):
    print(f"{name}: {tried} runs, {moved} with everything moved, {len(wrong)} wrong")
    assert not wrong, f"{len(wrong)} of {tried}:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("name", settings(SETTINGS))
def test_each_fails(sweep, name):
    """...with errors, half of a read, and leaving ruins; some faults leave ways enough for everything to move."""
    one = sweep(name)
    wrong, moved = one.judge(one.good)
    assert not wrong and moved and one.spans, wrong + one.good.err
    faults = [*single_faults(one.good.calls, EACH), *halves_and_ruins(one.good.calls, one.setting.busy)]
    tried, moved, wrong = one.try_all(faults)
    check(f"{name}: {len(one.good.calls)} calls", tried, moved, wrong)
    assert tried / 8 < moved < tried


@pytest.mark.check_all
@pytest.mark.parametrize("name", SETTINGS if ALL else SECOND)
def test_each_fails_and_then_another(sweep, name):
    one = sweep(name)
    check(name, *one.try_all(list(second_faults(one, EACH))[:: 1 if ALL else 8]))


@pytest.mark.parametrize("name", settings(SETTINGS))
def test_killed(sweep, name):
    """It is killed before each call: the pool is full again."""
    full, one = pool_counts(), sweep(name)
    with one.inject() as inject:
        for number in range(1, len(one.good.calls) + 1, 1 if ALL else 3):
            fault, kind = fault_at(one.good.calls, number, "kill"), one.good.calls[number - 1]
            outcome = inject.run(fault)
            # How often a file of /proc is read differs between runs: this one may have had fewer of these calls.
            assert (outcome.status, outcome.calls[-1]) == (-9, kind) or outcome.calls.count(kind) < fault.nth, (number, kind, outcome)
            # A reader of the process's maps just then keeps its memory for a moment longer.
            helpers.wait_until(lambda: pool_counts() == full, what=f"a full pool after call {number}: {outcome.calls[-1]}")
