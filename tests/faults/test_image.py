# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that unmaps the destination of an image, and then refuses: the file is mapped as it was; where that fails, too, or another
thread was faster, the program ends with one line."""

import pytest

from injector import Fault
from sweep import MAP_FIXED
from test_new_object import CLAIM, TRIES

MAP_ANONYMOUS = 0x20
GONE = "a failed system call unmapped it, and it cannot be mapped again, so the program ends"


@pytest.fixture(params=["start-image", "dlopen-image"])
def one(request, sweep):
    return sweep(request.param)


def maps_over(calls):
    """The kind of call that maps an image over something, and how many there are."""
    kinds = [(call, detail) for call, detail in calls if call == "mmap" and detail & MAP_FIXED and not detail & MAP_ANONYMOUS]
    assert kinds and len(set(kinds)) == 1
    return kinds[0], len(kinds)


def n_of_image(one):
    return sum(s.backend == "image" for s in one.spans)


def test_from_the_file(one):
    """The parts that were mapped from the image before and after that are good."""
    kind, n = maps_over(one.good.calls)
    with one.inject() as inject:
        for nth in range(1, n + 1):
            for more in ((), (Fault("mmap", CLAIM, 1, "fail", "ENOMEM"),)):
                faults = (Fault(*kind, nth, "destroy", "ENOMEM"), *more)
                outcome = inject.run(*faults)
                wrong, moved = one.judge(outcome, faults)
                assert not wrong, f"{faults}: {wrong}"
                assert ("mmap", CLAIM) in outcome.calls
                stayed = [s for s in one.spans if s not in one.compare(outcome.looks[0], 0, False)]
                # The huge page with the headers is mapped by itself, and stays by itself.
                assert [s.kind for s in stayed] in (["text"], ["rodata"]) or (n > n_of_image(one) and not stayed), stayed


def test_nothing_was_unmapped(one):
    """...which maps shows."""
    kind, n = maps_over(one.good.calls)
    with one.inject() as inject:
        for nth in range(1, n + 1):
            fault = Fault(*kind, nth, "fail", "ENOMEM")
            wrong, moved = one.judge(inject.run(fault), [fault])
            assert not wrong and (not moved or n > n_of_image(one)), f"{fault}: {wrong}"


@pytest.mark.parametrize("verbose", [False, True])
def test_gone(one, verbose):
    """The text is gone, since another thread was faster, or there is no memory."""
    kind, n = maps_over(one.good.calls)
    env = {k: v if verbose else v.replace("verbose=3", "verbose=0") for k, v in one.setting.env.items()}
    with one.inject(env) as inject:
        for nth in range(1, n + 1):
            claims = [Fault("mmap", CLAIM, i + 1, "fail", "ENOMEM") for i in range(TRIES)]
            for faults in ([Fault(*kind, nth, "steal", "ENOMEM")], [Fault(*kind, nth, "destroy", "ENOMEM"), *claims]):
                outcome = inject.run(*faults)
                assert outcome.status == 127 and not outcome.looks and not outcome.trespasses, outcome
                assert outcome.err.count(GONE) == 1 and (verbose or outcome.err.count("\n") == 1), outcome.err
