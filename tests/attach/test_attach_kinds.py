# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld attach and detach: the text is on huge pages and back from any state of the thread, and nothing else has changed."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import time

import helpers
import attaching
import pytest
from test_json import compare


WAITS = "futex nanosleep poll epoll sigsuspend for_eintr semtimedop wait4".split()
RARER_WAITS = """futex_timed clock_nanosleep poll_timed ppoll select pselect epoll_pwait epoll_pwait2 futex_bitset pipe fifo accept accept4 inotify eventfd timerfd signalfd
sigwait sigtimedwait semop msgrcv mq waitid""".split()


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


def test_rest_of_a_sleep(targets, plain_output):
    def move(target):
        results = [command(target.pid) for command in (attach, detach, attach)]
        return max(r.returncode for r in results), results

    attaching.check_rest(targets["exec"], "nanosleep_rest", move, plain_output)


@pytest.mark.parametrize("mode", ["doze", "handler", "handler_below", "handler_deep", "coroutine", "coroutine_deep", "vectors", "memory", "signals", "churn", "forks"])
def test_busy(targets, plain_output, mode):
    with attaching.running(targets["exec"], mode) as target:
        if mode in ("signals", "churn", "forks", "memory"):  # their mappings and masks come and go, too
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


MERGE = "import ctypes, os, sys; ctypes.CDLL(None).prctl(67, 1, 0, 0, 0) and sys.exit(99); os.execv(sys.argv[1], sys.argv[1:])"


def test_memory_that_may_be_merged(targets, plain_output):
    """PR_SET_MEMORY_MERGE (systemd's MemoryKSM=) sets a flag on all its memory."""
    merge = ["/usr/bin/python3", "-c", MERGE]
    if helpers.run([*merge, "/bin/true"]).returncode == 99:
        pytest.skip("the kernel has no PR_SET_MEMORY_MERGE")
    with attaching.running(targets["exec"], "futex", prefix=merge) as target:
        check_there_and_back(target)
        assert target.finish() == plain_output


def test_overlay(targets, plain_output, tmp_path, root):
    """The process is in a mount namespace of its own, on an overlay, as in containers."""
    for name in "lower", "empty", "merged":
        (tmp_path / name).mkdir()
    program = tmp_path / "merged/overlaid"
    shutil.copy(targets["exec"], tmp_path / "lower/overlaid")
    mount = f'mount -t overlay -o lowerdir={tmp_path}/lower:{tmp_path}/empty none {tmp_path}/merged && exec "$@"'
    with attaching.running(program, "futex", 2, prefix=["unshare", "--mount", "sh", "-c", mount, "sh"]) as target:
        assert target.text() and not program.exists()
        check_there_and_back(target)
        assert target.finish() == plain_output


def test_vfork(targets, plain_output):
    """The parent of a vfork cannot be stopped, but its child has the same memory."""
    with attaching.running(targets["exec"], "vfork") as target:
        helpers.wait_until(lambda: helpers.state_of(target.pid) == "D", what="vfork")
        result = attach(target.pid)
        assert result.returncode == 1 and "restarted invisibly" in result.stderr
        assert target.finish() == plain_output


def niceness(pid):
    """The niceness of all threads (proc(5))."""
    found = set()
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            found.add(int(path.read_text().rpartition(")")[2].split()[16]))
    return found


def test_in_a_hurry(targets, plain_output, root):
    """While a thread stands still, or is awaited, hugeld comes before the machine's other work, and no other process does."""
    with attaching.running(targets["exec"], "futex") as target:
        before, commands = niceness(target.pid), itertools.cycle(["attach", "detach"])

        def is_seen():
            hurried, process = False, helpers.start([helpers.HUGELD, next(commands), target.pid])
            while process.poll() is None and not hurried:
                hurried = -20 in niceness(process.pid)
                assert niceness(target.pid) == before
            process.communicate()
            return hurried

        helpers.wait_until(is_seen, what="the highest priority")
        assert target.finish() == plain_output


def test_signal_ignored(targets, plain_output):
    """A stop is awaited by SIGCHLD."""
    with attaching.running(targets["exec"], "futex") as target:
        for command in "attach", "detach":
            succeed(helpers.hugeld(command, target.pid, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)))
        assert target.finish() == plain_output


LATER = """
import os, time
while True:
    os.write(1, bytes(1 << 20))
    time.sleep(1)
"""


def test_stop_begins_when_it_stops():
    """The half second counts from the stop: before that the process may be in the wrong call for long."""
    process = helpers.start(["/usr/bin/python3", "-c", LATER])
    try:
        def stopped():
            attaching.wait_in_call(process.pid)
            is_writing = "1 0x1 " in pathlib.Path(f"/proc/{process.pid}/syscall").read_text()
            began = time.monotonic()
            command = helpers.start([helpers.HUGELD, "attach", "--json", process.pid])
            time.sleep(0.2)
            read = 0
            while read < 1 << 20:
                read += len(os.read(process.stdout.fileno(), 1 << 20))
            out, err = command.communicate()
            took_us = (time.monotonic() - began) * 1e6
            if command.returncode != 0:
                assert "try again" in err, out + err
                return False
            succeed(detach(process.pid))
            return is_writing and (took_us, json.loads(out)["processes"][0]["stopped_us"])

        took_us, stopped_us = helpers.wait_until(stopped, what="an attach during a write")
        assert 0 < stopped_us < took_us - 150000
    finally:
        helpers.end_process(process)


def test_dry_run(targets, plain_output):
    with attaching.running(targets["exec"], "futex") as target:
        before = target.layout()
        assert "would be on 3 huge pages" in succeed(attach("--dry-run", target.pid))
        assert target.layout() == before
        succeed(attach(target.pid))
        assert "would be back" in succeed(detach("--dry-run", target.pid))
        assert target.huge_bytes() > 0
        assert target.finish() == plain_output


def test_several_and_children(targets, plain_output):
    """Processes of one file share the copy that is made for them."""
    with attaching.running(targets["exec"], "forks") as one, attaching.running(targets["exec"], "wait4") as two:
        result = attach("--children", one.pid, two.pid)
        out = result.stdout
        assert f"{one.pid} target-exec" in out and f"{two.pid} target-exec" in out
        assert out.count("target-exec: ") >= 3, out  # the wakers are children
        lines = [line.split() for t in (one, two) for line in pathlib.Path(f"/proc/{t.pid}/maps").read_text().splitlines()]
        files = {(device, inode) for _, _, _, device, inode, *name in lines if "hugeld:" in "".join(name)}
        assert len(files) == 1, files
        assert one.finish() == plain_output
        assert two.finish() == plain_output


def test_json(targets):
    with attaching.running(targets["exec"], "futex") as target:
        answer = json.loads(succeed(attach("--json", target.pid)))
        found = answer["processes"]
        assert [p["pid"] for p in found] == [target.pid]
        (main,) = found[0]["objects"]
        assert main["path"] == target.path and main["is_main"] and main["moves"]
        assert main["huge_pages"] == target.huge_bytes() // helpers.HUGE
        assert main["reason"] is None
        compare("attach-detach", [answer], unseen=())
        assert answer["copied_bytes"] == main["huge_pages"] * helpers.HUGE
        assert found[0]["stopped_us"] > 0
        result = detach("--json", target.pid, target.pid + 100000)
        assert result.returncode == 1
        assert json.loads(result.stdout)["processes"][1]["reason"] == "attach-ended"


def test_again(targets):
    with attaching.running(targets["exec"], "futex") as target:
        result = detach(target.pid)
        assert result.returncode == 1 and "it is not attached" in result.stderr
        succeed(attach(target.pid))
        assert "on huge pages already" in succeed(attach(target.pid))


def insist(command, *arguments):
    """It may be refused for the moment: on a busy machine a thread stops too late.  But a file descriptor always arrives."""
    succeed(attaching.ask(command, *arguments, moment="try again(?!, raise its limit)"))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_turns_on_a_busy_machine(targets, plain_output, tmp_path):
    """hugeld goes to the processor of the thread that it stops, and the process that sends a descriptor to hugeld's. Each could wait
    for another processor for long, and so would the thread."""
    library = attaching.compile_preloaded(tmp_path, "turns.c")
    with attaching.running(targets["exec"], "futex") as target:
        attaching.wait_in_call(target.pid)
        result = helpers.run([helpers.COMMAND, "attach", target.pid], helpers.environment(LD_PRELOAD=library))
        all_of_them = f"may run on {len(os.sched_getaffinity(0))}"
        assert result.stderr.splitlines() == ["may run on 1", all_of_them, "may run on 1"], result
        assert succeed(result) and target.huge_bytes() >= 2 * helpers.HUGE
        assert target.finish() == plain_output


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
        copies, mib = map(int, re.match(r"(\d) cop(?:y|ies) of text would take (\d+) MiB of memory", would).groups())
        assert mib >= 4 * copies and [target.layout() for target in several] == before
        result = helpers.hugeld("attach", f"--memory={mib - 1}", *pids)
        assert result.returncode == 1 and result.stderr.count("would take too much of the free memory") == 3, result
        assert [target.layout() for target in several] == before
        said = succeed(attach(f"--memory={mib}", *pids))
        assert said.startswith(f"{copies} cop") and f" {mib} MiB of memory" in said.splitlines()[0]
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
