# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld attach and detach: the text is on huge pages and back from any state of the thread, and nothing else has changed."""

import contextlib
import json
import re
import shutil
import signal
import socket

import helpers
import attaching
import pytest
from test_json import compare


WAITS = "futex nanosleep poll epoll sigsuspend for_eintr semtimedop wait4".split()
RARER_WAITS = "futex_timed clock_nanosleep poll_timed ppoll select pselect epoll_pwait pipe accept sigwait semop".split()


def attach(*arguments, **options):
    return attaching.ask("attach", *arguments, **options)


def detach(*arguments, **options):
    return attaching.ask("detach", *arguments, **options)


def succeed(result):
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_there_and_back(target):
    """Moves TARGET's text there and back, and there again."""
    before, descriptors, masks = target.layout(), target.descriptors(), target.masks()
    succeed(attach(target.pid))
    assert target.huge_bytes() >= 2 * helpers.HUGE
    assert target.descriptors() == descriptors
    helpers.wait_until(lambda: target.masks() == masks, what="the signal masks of the call")
    succeed(detach(target.pid))
    assert target.huge_bytes() == 0
    assert target.layout() == before
    assert target.descriptors() == descriptors
    helpers.wait_until(lambda: target.masks() == masks, what="the signal masks of the call")
    succeed(attach(target.pid))


@pytest.mark.parametrize("mode", [*WAITS[::2], *[pytest.param(w, marks=pytest.mark.check_all(ci=True)) for w in WAITS[1::2]], *[pytest.param(w, marks=pytest.mark.check_all) for w in RARER_WAITS]])
def test_waits(targets, plain_output, mode):
    """The thread comes back from the wait as if it had not been interrupted."""
    with attaching.running(targets["exec"], mode) as target:
        attaching.wait_in_call(target.pid)
        check_there_and_back(target)
        assert target.finish() == plain_output


def test_signal_ignored(targets, plain_output):
    """A stop is awaited by SIGCHLD, which attach may have inherited as ignored."""
    with attaching.running(targets["exec"], "futex") as target:
        for move in attach, detach:
            succeed(move(target.pid, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)))
        assert target.finish() == plain_output


def test_rest_of_a_sleep(targets, plain_output):
    def move(target):
        results = [command(target.pid) for command in (attach, detach, attach)]
        return max(r.returncode for r in results), results

    attaching.check_rest(targets["exec"], "nanosleep_rest", move, plain_output)


@pytest.mark.parametrize("mode", ["doze", "handler", "handler_below", "handler_deep", "coroutine", "coroutine_deep", "vectors", "memory", "signals", "forks"])
def test_busy(targets, plain_output, mode):
    with attaching.running(targets["exec"], mode) as target:
        if mode in ("signals", "forks", "memory"):  # their mappings and masks come and go, too
            for command in attach, detach, attach:
                succeed(command(target.pid))
        else:
            if mode.startswith("handler"):
                helpers.wait_until(lambda: target.masks() != ["0" * 16], what="the handler")
            check_there_and_back(target)
        assert target.huge_bytes() >= 2 * helpers.HUGE
        assert target.finish() == plain_output


def test_running(targets, plain_output):
    """A thread that computes all the time is not interrupted."""
    with attaching.running(targets["exec"], "compute") as target:
        (process,) = json.loads(attach("--json", target.pid).stdout)["processes"]
        assert process["reason"] == "attach-unfit" and target.huge_bytes() == 0
        assert target.finish() == plain_output


@pytest.mark.parametrize("kind", ["exec", "pie", "static-pie", *[pytest.param(k, marks=pytest.mark.check_all(ci=True)) for k in ("static", "aligned", "lld")]])
@pytest.mark.parametrize("threads", [0, 3])
def test_kinds(targets, plain_output, kind, threads):
    with attaching.running(targets[kind], "futex", threads) as target:
        check_there_and_back(target)
        assert target.finish() == plain_output


def test_vfork(targets, plain_output):
    """The parent of a vfork cannot be stopped, but its child has the same memory."""
    with attaching.running(targets["exec"], "vfork") as target:
        helpers.wait_until(lambda: helpers.state_of(target.pid) == "D", what="vfork")
        result = attach(target.pid)
        assert result.returncode == 1 and "restarted invisibly" in result.stderr
        assert target.finish() == plain_output


def test_dry_run(targets, plain_output):
    with attaching.running(targets["exec"], "futex") as target:
        before = target.layout()
        assert "would be on 3 huge pages" in succeed(attach("--dry-run", target.pid))
        assert target.layout() == before
        succeed(attach(target.pid))
        assert "would be back" in succeed(detach("--dry-run", target.pid))
        assert target.huge_bytes() > 0
        assert target.finish() == plain_output


def test_json(targets):
    with attaching.running(targets["exec"], "futex") as target:
        answer = json.loads(succeed(attach("--json", target.pid)))
        found = answer["processes"]
        assert [p["pid"] for p in found] == [target.pid]
        (main,) = found[0]["objects"]
        assert main["path"] == target.path and main["is_main"] and main["moves"]
        assert main["huge_pages"] == target.huge_bytes() // helpers.HUGE
        assert main["reason"] is None
        compare("attach-detach", [answer], {"error", "error.message"})
        assert answer["copied_bytes"] == main["huge_pages"] * helpers.HUGE
        assert found[0]["stopped_us"] > 0
        result = detach("--json", target.pid, target.pid + 100000)
        assert result.returncode == 1
        assert json.loads(result.stdout)["processes"][1]["reason"] == "attach-ended"


def insist(command, *arguments):
    """It may be refused for the moment: on a busy machine a thread stops too late.  But a file descriptor always arrives."""
    moment, results = "try again(?!, raise its limit)", []

    def is_answered():
        results.append(attaching.ask(command, *arguments, moment=moment))
        return not re.search(moment, results[-1].stderr)

    helpers.wait_until(is_answered, helpers.PATIENCE, "another answer than to try again")
    succeed(results[-1])


@pytest.mark.parametrize("mode", [*[pytest.param(m, marks=pytest.mark.check_all(ci=True)) for m in ("signals", "memory")],
                                  pytest.param("every_eintr", marks=pytest.mark.check_all)])
def test_many_times(targets, plain_output, mode):
    """It works twenty times, also while other threads map memory wherever there is a hole."""
    with attaching.running(targets["exec"], mode, 2) as target:
        for _ in range(20):
            insist("attach", target.pid)
            insist("detach", target.pid)
        assert target.finish() == plain_output


def test_memory_is_said_before(targets, plain_output):
    """Position-independent programs need a copy for each address.  The sum is said before; above an eighth of the free memory, or what
    --memory says, nothing moves."""
    with contextlib.ExitStack() as stack:
        several = [stack.enter_context(attaching.running(targets["pie"], "futex")) for _ in range(3)]
        pids = [target.pid for target in several]
        before = [target.layout() for target in several]
        would = succeed(attach("--dry-run", *pids))
        copies, mib = map(int, re.match(r"copies of text \((\d)\) would take (\d+) MiB of memory", would).groups())
        assert mib >= 4 * copies and [target.layout() for target in several] == before
        result = helpers.hugeld("attach", f"--memory={mib - 1}", *pids)
        assert result.returncode == 1 and result.stderr.count("would take too much of the free memory") == 3, result
        assert [target.layout() for target in several] == before
        said = succeed(attach(f"--memory={mib}", *pids))
        assert said.startswith(f"copies of text ({copies}) take") and f" {mib} MiB of memory" in said.splitlines()[0]
        assert all(target.huge_bytes() > 0 for target in several)
        assert all(target.finish() == plain_output for target in several)


def test_all_or_none(targets, plain_output, tmp_path):
    """Where there is no memory for one copy, none of the processes moves, although the copy for the first one was made."""
    preload = attaching.compile_preloaded(tmp_path, "no-second-copy.c")
    with attaching.running(targets["exec"], "futex") as one, attaching.running(targets["pie"], "futex") as two:
        before = one.layout(), two.layout()
        result = helpers.run([helpers.COMMAND, "attach", one.pid, two.pid], env=helpers.environment(LD_PRELOAD=preload))
        assert result.returncode == 1 and result.stderr.count("text stays: ") == 2, result
        assert (one.layout(), two.layout()) == before
        assert one.finish() == two.finish() == plain_output


LOG = """mkdir "$0/dev" && mknod "$0/dev/null" c 1 3 && chmod 666 "$0/dev/null" && ln -s "$0/log" "$0/dev/log" && mount --bind "$0/dev" /dev
exec "$@\""""


def test_log(targets, plain_output, tmp_path, root):
    """Each attach and detach by root leaves a line in syslog."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log, attaching.running(targets["exec"], "futex") as target:
        log.bind(str(tmp_path / "log"))
        log.settimeout(helpers.PATIENCE)
        prefix = ["unshare", "--mount", "sh", "-c", LOG, tmp_path]
        for command, said in ("attach", "done"), ("attach", "text stays: "), ("detach", "done"):
            assert helpers.run([*prefix, helpers.HUGELD, command, target.pid]).returncode == 0
            shutil.rmtree(tmp_path / "dev")
            line = log.recv(4096).decode()
            assert re.search(rf"hugeld\[\d+\]: {command} by root \(login -?\d+\): process {target.pid} \(target-exec\), {target.path}: {said}",
                             line), line
        assert target.finish() == plain_output
