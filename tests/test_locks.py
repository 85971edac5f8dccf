# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests that want the machine's settings alone get them, however many others share these (harness/locks.py)."""

import threading
import time

import pytest

import helpers
from locks import locked

pytestmark = pytest.mark.parallel


def test_alone_among_others(tmp_path):
    """Each of two lets go when the other has taken the lock again, or cannot."""
    lock, taken, had_alone, results = (tmp_path / "lock", tmp_path / "gate"), {"a": 0, "b": 0}, threading.Event(), []
    for path in lock:
        path.touch()

    def share(own, other):
        end = time.monotonic() + 20
        while not had_alone.is_set() and time.monotonic() < end:
            with locked(lock, alone=False):
                taken[own] += 1
                before, patience = taken[other], time.monotonic() + 1
                while taken[other] == before and time.monotonic() < patience:
                    time.sleep(0.001)
        results.append(had_alone.is_set())

    threads = [threading.Thread(target=share, args=names) for names in ("ab", "ba")]
    for thread in threads:
        thread.start()
    helpers.wait_until(lambda: min(taken.values()) > 1)
    with locked(lock, alone=True):
        had_alone.set()
    for thread in threads:
        thread.join()
    assert results == [True, True]
