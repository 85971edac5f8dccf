# SPDX-License-Identifier: LGPL-2.1-or-later
"""The call fails that brings one of several spans into place: all of the object is as it was, also the spans that were in place
already, and also where threads execute them."""

import pytest

from injector import Fault
from sweep import MREMAP_FIXED

MOVED_BY_MREMAP = ("hugetlb", "thp")


@pytest.fixture(autouse=True)
def pages(pool, thp):
    pool(64)


@pytest.mark.parametrize("name", ["start-thp", "begin-thp", "dlopen-threads-thp", *(pytest.param(n, marks=pytest.mark.check_all) for n in (
    "begin-hugetlb", "start-hugetlb", "start-threads-hugetlb", "start-threads-thp", "dlopen-threads-hugetlb"))])
def test_all_or_nothing(sweep, name):
    one = sweep(name)
    spans = [s for s in one.spans if s.backend in MOVED_BY_MREMAP]
    assert len(spans) > 1
    calls = [(call, detail) for call, detail in one.good.calls if call == "mremap" and detail & MREMAP_FIXED]
    with one.inject() as inject:
        for nth in range(len(calls) - len(spans) + 1, len(calls) + 1):
            for how, error in (("fail", "ENOMEM"), *([("destroy", "ENOMEM")] if not one.setting.busy else [])):
                fault = Fault(*calls[-1], nth, how, error)
                outcome = inject.run(fault)
                wrong, _ = one.judge(outcome, [fault])
                assert not wrong, f"{fault}: {wrong}"
                assert one.compare(outcome.looks[0], 0, False) == [], f"{fault}: a part of it moved\n{outcome.err}"
