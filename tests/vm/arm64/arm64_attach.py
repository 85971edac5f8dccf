# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld attach and detach in the arm64 guests: a sample of ../../attach, each wait with a result that would show that the thread
had been stopped in it."""

import json
import os
import signal

import pytest

import arm64
import helpers

attaching = arm64.load("attach", "attaching")
made = arm64.load("attach", "conftest")
kinds = arm64.load("attach", "test_attach_kinds")
killed = arm64.load("attach", "test_attach_steps")
refused = arm64.load("attach", "test_attach_refused")
targets, library_target, steps, plain_output = made.targets, made.library_target, made.steps, made.plain_output
KINDS = ["exec", "pie", "static", "static-pie"]

KILLS, BACKS = range(1, 90, 8), range(0, 60, 6)

pytestmark = pytest.mark.skipif(not arm64.IS_SMALL, reason="n/a: a hundred MiB for each program")


# Calls that end with EINTR when they are interrupted, and whose first argument would be lost.
UNFIT = ["accept", "accept4", "inotify", "semop", "semtimedop", "sigtimedwait", "sigwait"]


@pytest.mark.parametrize("mode", UNFIT)
def test_unfit(targets, plain_output, mode):
    with attaching.running(targets["exec"], mode) as target:
        attaching.wait_in_call(target.pid)
        refused.refused(target, "attach-unfit")
        assert target.finish() == plain_output


@pytest.mark.parametrize("mode", [*(m for m in (*kinds.WAITS, *kinds.RARER_WAITS) if m not in UNFIT), "pwait_eintr",
                                  "registers", "registers_epoll"])
def test_waits(targets, plain_output, mode):
    kinds.test_waits(targets, plain_output, mode)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [0, 3])
def test_kinds(targets, plain_output, kind, threads):
    kinds.test_kinds(targets, plain_output, kind, threads)


def test_memory(targets, plain_output):
    kinds.test_busy(targets, plain_output, "memory")


def test_running(targets, plain_output):
    """A thread that runs is left alone, whether or not that is asked for."""
    with attaching.running(targets["exec"], "compute") as target:
        for words in [], ["--running-threads"]:
            (process,) = json.loads(kinds.attach("--json", *words, target.pid).stdout)["processes"]
            assert process["reason"] == "attach-unfit"
        assert target.huge_bytes() == 0
        assert target.finish() == plain_output


def test_store(targets, plain_output, images):
    kinds.test_store(targets, plain_output, images)


@pytest.mark.parametrize("mode", ["epoll_beside", "pwait_eintr_beside"])
def test_libraries(library_target, plain_output, mode):
    """All threads stand still while a library moves: one waits in a call that ends with EINTR then, one in another."""
    program, library = library_target
    with attaching.running(program, mode) as target:
        target.path = str(library)
        attaching.wait_in_call(target.pid)
        for thread in os.listdir(f"/proc/{target.pid}/task"):
            attaching.wait_in_call(int(thread))
        kinds.check_there_and_back(target, "-p", "*")
        (process,) = json.loads(kinds.detach("--json", target.pid).stdout)["processes"]
        assert process["stopped_threads"] == 2, process
        assert target.finish() == plain_output


def test_many_times(targets, plain_output):
    """Signals come all the time, which only the call lets through; each has its handler, and ends the call."""
    with attaching.running(targets["exec"], "every_eintr") as target:
        for command in [kinds.attach, kinds.detach] * 2:
            helpers.wait_until(lambda: command(target.pid).returncode == 0, what="a moment without a signal")
        assert target.finish() == plain_output


@pytest.mark.parametrize("mode", ["registers", "nanosleep", "registers_epoll"])
@pytest.mark.parametrize("nth", KILLS)
def test_killed(targets, steps, plain_output, mode, nth):
    """Before the frame is there, epoll_wait ends with EINTR, as whenever a tracer dies."""
    if mode == "registers_epoll":
        nth += ARMED
    with attaching.running(targets["exec"], mode) as target:
        attaching.wait_in_call(target.pid)
        before, descriptors, masks = target.layout(), target.descriptors(), target.masks()
        n, code, said = killed.insist(steps, "kill", nth, helpers.HUGELD, "attach", target.pid)
        assert code == 99 or (code == 0 and n < nth), said
        killed.check_left(target, before, descriptors, masks)
        assert target.finish() == plain_output, said


ARMED = 25


@pytest.mark.parametrize("kind", ["taken", "stopped"])
@pytest.mark.parametrize("back", BACKS)
def test_signal_that_a_call_lets_through(targets, library_target, steps, plain_output, kind, back):
    killed.test_signal_that_a_call_lets_through(targets, library_target, steps, plain_output, kind, back)


@pytest.mark.parametrize("back", BACKS)
def test_signal(targets, steps, plain_output, back):
    """Its handler ends epoll_wait, whenever it comes."""
    with attaching.running(targets["exec"], "for_eintr") as target:
        attaching.wait_in_call(target.pid)
        never, attach = 10**6, [helpers.HUGELD, "attach", target.pid]
        n, code, said = killed.insist(steps, "signal", never, target.pid, 0, *attach)
        assert code == 0 and n > 60, said
        assert kinds.detach(target.pid).returncode == 0
        _, _, said = killed.step(steps, "signal", n - back, target.pid, int(signal.SIGUSR1), *attach)
        assert target.finish() == plain_output, said


def test_faulted(targets, steps, plain_output):
    killed.test_faulted_sample(targets, steps, plain_output)


@pytest.mark.parametrize("then", ["T", "S"])
@pytest.mark.parametrize("nth", [1, 12, 30, 47, 60])
def test_stopped(targets, steps, plain_output, nth, then):
    killed.test_stopped(targets, steps, plain_output, nth, then)


def test_failing_calls(targets, steps, plain_output):
    killed.test_failing_calls(targets, steps, plain_output, "attach", "ENOMEM")


@pytest.mark.parametrize("command", ["attach", "detach"])
def test_locked_late(targets, library_target, steps, plain_output, tmp_path, command):
    killed.test_flags_that_come_late(targets, library_target, steps, plain_output, tmp_path, "exec", command, "l", killed.LOCKED)


def test_other_rest(targets, steps, plain_output):
    killed.test_other_rest(targets, steps, plain_output)


def test_rest_of_a_sleep(targets, plain_output):
    kinds.test_rest_of_a_sleep(targets, plain_output)


@pytest.fixture(scope="session")
def late(tmp_path_factory):
    return attaching.compile_preloaded(tmp_path_factory.mktemp("late"), "late-look.c")


def test_late_look(targets, plain_output, late):
    """hugeld gets no processor for longer than it would look at the thread, whose call would end with EINTR unless it was looked at."""
    with attaching.running(targets["exec"], "for_eintr") as target:
        attaching.wait_in_call(target.pid)
        result = helpers.run([helpers.COMMAND, "attach", target.pid], env=helpers.environment(LD_PRELOAD=late))
        assert result.returncode == 0, result.stderr
        assert target.finish() == plain_output


def test_two_at_once(targets, plain_output):
    refused.test_two_at_once(targets, plain_output)
