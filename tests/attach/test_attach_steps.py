# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld is killed before each of its steps, a signal that cannot be held back comes before each, and each call that it makes
in the process fails with each errno that it may have: the program goes on, right, and the leftovers are bounded."""

import contextlib
import errno
import itertools
import os
import re
import signal
import subprocess

import helpers
import attaching
import pytest
from pagecache import on_small_pages


# The errors that each call may return (its manual page), in the order of steps.c's calls; EIO stands for a policy that invents one.
ERRNOS = ["ENOMEM", "EMFILE", "EPERM", "EACCES", "EAGAIN", "EINVAL", "EFAULT", "ENFILE", "EINTR", "ENODEV", "EIO", "EBADF"]


ARMED = attaching.ARMED
STRIDE = 1 if "T_ATTACH" in os.environ else 3


def step(steps, how, nth, *words):
    """The number that steps.c prints last, the exit status, and all output.  It begins anew where it was refused for the moment before it
    came to the step NTH: on a busy machine a thread is late, or one that sleeps for 0.2 s has gone on."""
    for _ in range(10):
        result = helpers.run([steps, how, nth, *words])
        n, said = int(result.stdout.splitlines()[-1]), result.stdout + result.stderr
        if result.returncode != 1 or n >= nth or "try again" not in said:
            break
    return n, result.returncode, said


def leaked(before, after):
    """Mappings that are there now and were not."""
    known = [tuple(m) for m in before]
    return [m for m in after if tuple(m) not in known]


def check_left(target, before, descriptors, masks):
    """A dead tracer may leave behind: three descriptors, the room with the pieces in it, or a part of the text on huge pages."""
    helpers.wait_until(lambda: target.masks() == masks, what="the signal masks coming back")
    helpers.wait_until(lambda: all(helpers.state_of(target.pid) != s for s in "Tt"), what="running on")
    assert len(target.descriptors()) <= len(descriptors) + 3
    text = [m for m in leaked(before, target.layout()) if not m[3].startswith((target.path, "/memfd:hugeld:", "/hugeld:"))]
    assert len(text) <= 2, text


def sweep(target_file, steps, command, mode, plain, later, stride):
    """Kills COMMAND before each STRIDEth of its steps, beginning LATER steps after the first, each time in a fresh process; the
    number of steps."""
    # Before the frame is there, epoll_wait ends with EINTR, as whenever a tracer dies.
    nth, killed = (ARMED if mode == "epoll" else 1) + later, True
    while killed:
        with attaching.running(target_file, mode) as target:
            if mode not in ("doze", "vectors", "coroutine"):
                attaching.wait_in_call(target.pid)
            plain_layout = target.layout()
            if command == "detach":
                assert attaching.ask("attach", target.pid).returncode == 0
            before, descriptors, masks = target.layout(), target.descriptors(), target.masks()
            n, code, said = step(steps, "kill", nth, helpers.HUGELD, command, target.pid)
            killed = code == 99
            assert killed or code == 0, said
            check_left(target, before, descriptors, masks)
            # With these leftovers, it can still be attached to, which closes them, and ends.
            assert attaching.ask("attach", target.pid).returncode == 0, nth
            assert target.huge_bytes() >= 2 * helpers.HUGE
            assert target.descriptors() == descriptors, nth
            assert attaching.ask("detach", target.pid).returncode == 0, nth
            assert target.layout() == plain_layout and target.descriptors() == descriptors, nth
            assert target.finish() == plain, nth
        nth += stride
    return n


MODES = ["epoll", "nanosleep", "doze", "vectors", "coroutine", "signals"]


@pytest.mark.check_all
@pytest.mark.parametrize("command", ["attach", "detach"])
@pytest.mark.parametrize("mode", ["futex", *MODES])
def test_killed(targets, steps, plain_output, command, mode):
    """Without T_ATTACH each of the other waits has other steps."""
    later, stride = (0, STRIDE) if mode == "futex" or STRIDE == 1 else (2 * MODES.index(mode), 2 * len(MODES))
    assert sweep(targets["exec"], steps, command, mode, plain_output, later, stride) > 50


@pytest.mark.parametrize("nth", [1, 12, 30, 47, 60])
def test_killed_sample(targets, steps, plain_output, nth):
    with attaching.running(targets["exec"], "futex", 1) as target:
        before, descriptors, masks = target.layout(), target.descriptors(), target.masks()
        _, code, said = step(steps, "kill", nth, helpers.HUGELD, "attach", target.pid)
        assert code == 99, said
        check_left(target, before, descriptors, masks)
        assert target.finish() == plain_output


def stack_bytes(target):
    (stack,) = [m for m in target.mappings() if m.name == "[stack]"]
    return stack.end - stack.start


@pytest.mark.parametrize("command", ["attach", "detach"])
def test_killed_again_and_again(targets, steps, plain_output, command):
    """However often it is killed, there is one set of leftovers, which status names; a detach that has nothing else to do closes it."""
    with attaching.running(targets["exec"], "futex", 1) as target:
        layout, descriptors, masks = target.layout(), target.descriptors(), target.masks()
        assert attaching.ask("attach", target.pid).returncode == 0
        stack = stack_bytes(target)
        if command == "attach":
            assert attaching.ask("detach", target.pid).returncode == 0
        before, named = target.layout(), 0
        for nth in range(1, 70, 2):
            step(steps, "kill", nth, helpers.HUGELD, command, target.pid)
            check_left(target, before if nth < 40 else layout, descriptors, masks)
            assert stack_bytes(target) == stack, nth
            named += "left by a killed attach or detach: " in helpers.hugeld("status", target.pid).stdout
        assert named > 15
        attaching.ask("detach", target.pid)
        assert "left by a killed" not in helpers.hugeld("status", target.pid).stdout
        assert target.layout() == layout and target.descriptors() == descriptors
        assert target.finish() == plain_output


# Waits for the number of a descriptor, and puts a file of its own there.
REPLACE = "import os; print('ready', flush=True); os.dup2(1, int(os.read(0, 9))); print('replaced', flush=True); os.read(0, 9)"


def test_answer_that_is_late(steps):
    """A killed attach has left two sockets, and the program has closed the second.  The helper looks at the first, but its answer is
    late: it is not about the second number, which is the program's."""
    process = helpers.start([os.path.realpath("/usr/bin/python3"), "-c", REPLACE], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        folder = f"/proc/{process.pid}/fd"
        for nth in itertools.cycle(range(ARMED, ARMED + 9)):
            step(steps, "kill", nth, helpers.HUGELD, "attach", process.pid)
            sockets = sorted(n for n in os.listdir(folder) if os.readlink(f"{folder}/{n}").startswith("socket:"))
            if len(sockets) == 2:
                break
        process.stdin.write(sockets[1] + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "replaced\n"
        attaching.wait_in_call(process.pid)
        _, code, said = step(steps, "run", ARMED - 1, "sleep 1.5", helpers.HUGELD, "attach", process.pid)
        assert code == 1 and "could not receive a file descriptor" in said, said
        assert os.path.exists(f"{folder}/{sockets[1]}")
    finally:
        helpers.end_process(process)


def fault(target_file, steps, command, nth, plain):
    """Sends SIGSEGV before the step NTH; the number of steps, and the output."""
    with attaching.running(target_file, "faulted") as target:
        attaching.wait_in_call(target.pid)
        if command == "detach":
            assert attaching.ask("attach", target.pid).returncode == 0
        n, code, said = step(steps, "signal", nth, target.pid, int(signal.SIGSEGV), helpers.HUGELD, command, target.pid)
        assert code == 0 or "a signal arrived during the move" in said, (nth, said)
        if n < nth:
            os.kill(target.pid, signal.SIGSEGV)
        for again in "attach", "detach", "attach":
            assert attaching.ask(again, target.pid).returncode == 0, nth
        assert target.huge_bytes() >= 2 * helpers.HUGE
        assert target.finish() == plain, nth
        return n, said


@pytest.mark.check_all
@pytest.mark.parametrize("command", ["attach", "detach"])
def test_faulted(targets, steps, plain_output, command):
    """The signal comes once, during any step."""
    nth, n, all_said = 1 - STRIDE, 1, ""
    while n >= nth:
        nth += STRIDE
        n, said = fault(targets["exec"], steps, command, nth, plain_output)
        all_said += said
    assert nth > 50 and "a signal arrived during the move" in all_said


def test_faulted_sample(targets, steps, plain_output):
    for nth in 1, 12, 30, 47:
        n, _ = fault(targets["exec"], steps, "attach", nth, plain_output)
        assert n >= nth


@pytest.mark.parametrize("nth", [ARMED, 25, 30, 40, *[pytest.param(i, marks=pytest.mark.check_all) for i in range(16, 60, 3)]])
def test_faulted_twice(targets, steps, plain_output, nth):
    """Two signals that cannot wait come at once: the second while the move that the first one has ended is taken back."""
    with attaching.running(targets["exec"], "faulted_twice") as target:
        attaching.wait_in_call(target.pid)
        script = f"kill -SEGV {target.pid}; kill -BUS {target.pid}"
        n, code, said = step(steps, "run", nth, script, helpers.HUGELD, "attach", target.pid)
        assert n >= nth and (code == 0 or "a signal arrived during the move" in said), said
        assert target.finish() == plain_output, said


@pytest.mark.parametrize("then", ["T", "S"])
@pytest.mark.parametrize("nth", [1, 12, 30, 47, 60, *[pytest.param(i, marks=pytest.mark.check_all) for i in range(3, 60, 7)]])
def test_stopped(targets, steps, plain_output, nth, then):
    """A SIGSTOP before a step is not lost, and one that is over does not come again."""
    with attaching.running(targets["exec"], "futex") as target:
        script = f"kill -STOP {target.pid}" + (f"; kill -CONT {target.pid}" if then == "S" else "")
        n, code, said = step(steps, "run", nth, script, helpers.HUGELD, "attach", target.pid)
        assert n >= nth and (code == 0 or "it is stopped" in said), said
        helpers.wait_until(lambda: helpers.state_of(target.pid) == then, what="the stop, or running on")
        assert code == 1 or target.huge_bytes() >= 2 * helpers.HUGE
        os.kill(target.pid, signal.SIGCONT)
        assert target.finish() == plain_output, said


# The last steps: the room is given back, and then the thread that did that gets its mask and registers back and is let go.
LAST = 22


@pytest.mark.parametrize("back", [*range(LAST), *[pytest.param(i, marks=pytest.mark.check_all) for i in range(LAST, 60)]])
def test_signal_that_a_call_lets_through(targets, steps, plain_output, back):
    """The signal ends epoll_pwait at any time."""
    with attaching.running(targets["exec"], "pwait_eintr") as target:
        attaching.wait_in_call(target.pid)
        never, attach = 10**6, [helpers.HUGELD, "attach", target.pid]
        n, code, said = step(steps, "signal", never, target.pid, 0, *attach)
        assert code == 0 and n > 60, said
        assert attaching.ask("detach", target.pid).returncode == 0
        _, _, said = step(steps, "signal", n - back, target.pid, int(signal.SIGUSR1), *attach)
        assert target.finish() == plain_output, said


# Lets the thread go on that waits for a writer, and waits until the program that it executes has stopped or waits.
EXECUTE = """timeout 5 sh -c ': > "{fifo}"' || exit 1
for i in $(seq 500); do read -r name < /proc/{pid}/comm; [ "$name" != executed ] || break; sleep 0.01; done
for i in $(seq 500); do ! grep -q "^State:.[tS]" /proc/{pid}/status || break; sleep 0.01; done"""


@pytest.mark.parametrize("back", [3, 9, 15, *[pytest.param(i, marks=pytest.mark.check_all) for i in range(1, 40, 2)]])
def test_another_program(targets, steps, tmp_path, back):
    """Another thread executes a program, which gets the number of the one that makes the calls, and nothing of its registers."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with attaching.running(targets["exec"], "execs_beside", fifo) as target:
        attaching.wait_in_call(target.pid)
        n, code, said = step(steps, "run", 10**6, "", helpers.HUGELD, "attach", target.pid)
        assert code == 0, said
        assert attaching.ask("detach", target.pid).returncode == 0
        script = EXECUTE.format(fifo=fifo, pid=target.pid)
        made, code, said = step(steps, "run", n - back, script, helpers.HUGELD, "attach", target.pid)
        if made < n - back:  # a machine that is less busy makes fewer steps
            assert subprocess.run(["sh", "-c", script], check=False, timeout=helpers.PATIENCE).returncode == 0
        assert code == 0 or "ended or executed" in said, said
        assert target.finish() == (7, "executed\n"), said


def fail_calls(target_file, steps, command, plain, error):
    """Lets each call fail with ERROR; the number of calls, and the output."""
    nth, all_said = 1, ""
    while True:
        with attaching.running(target_file, "futex", 1) as target:
            if command == "detach":
                assert attaching.ask("attach", target.pid).returncode == 0
            before, descriptors, masks = target.layout(), target.descriptors(), target.masks()
            n, code, said = step(steps, "fail", nth, getattr(errno, error), helpers.HUGELD, command, target.pid)
            assert code in (0, 1), said
            all_said += said
            if n >= nth and code == 1 and command == "attach":  # as it was, but for what could not be closed or unmapped
                assert len(leaked(before, target.layout())) <= 1, (nth, said)
            elif n >= nth and code == 1:  # what has moved back stays there, and the next one moves the rest
                assert attaching.ask("detach", target.pid).returncode == 0 and target.huge_bytes() == 0, (nth, said)
            assert len(target.descriptors()) <= len(descriptors) + 1, (nth, said)
            helpers.wait_until(lambda: target.masks() == masks, what="the signal masks coming back")
            attaching.ask("attach", target.pid)  # the next one closes what could not be closed
            assert target.descriptors() == descriptors, (nth, said)
            assert target.finish() == plain, (nth, said)
        if n < nth:
            return n, all_said
        nth += 1


@pytest.mark.parametrize("command", ["attach", pytest.param("detach", marks=pytest.mark.check_all(ci=True))])
@pytest.mark.parametrize("error", ["ENOMEM", *[pytest.param(e, marks=pytest.mark.check_all) for e in ERRNOS[1:]]])
def test_failing_calls(targets, steps, plain_output, command, error):
    n, said = fail_calls(targets["exec"], steps, command, plain_output, error)
    assert n >= 9 and ("a system call that hugeld made in it failed" in said or error == "EPERM"), said  # EPERM of mremap: sealed


@pytest.mark.parametrize("command", ["attach", "detach"])
def test_file_changes(targets, steps, plain_output, command):
    """The file changes after it was looked at: the process may have executed another version of it meanwhile, or its file may have
    been written to."""
    program = targets["exec"]
    with attaching.running(program, "futex") as target:
        if command == "detach":
            assert attaching.ask("attach", target.pid).returncode == 0
        before = target.huge_bytes()
        change = f"chmod u-w {program}; chmod u+w {program}"
        _, code, said = step(steps, "run", ARMED, change, helpers.HUGELD, command, target.pid)
        assert code == 1 and "its mappings do not match" in said, said
        assert target.huge_bytes() == before
        assert attaching.ask(command, target.pid).returncode == 0
        assert (target.huge_bytes() > 0) == (command == "attach")
        assert target.finish() == plain_output


# Tells it how to change its text (target.c), and waits until it is done.
TELL = 'printf %s {word} > {fifo}; while read -r name < {comm} && [ "$name" != obeyed ]; do sleep 0.01; done'


@contextlib.contextmanager
def told(program, fifo, **options):
    """A target that waits for a word, and the script that says it."""
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    with attaching.running(program, "told", fifo, **options) as target:
        attaching.wait_in_call(target.pid)
        folder = f"/proc/{target.pid}/task"
        helpers.wait_until(lambda: len(os.listdir(folder)) == 2, what="its second thread")
        (other,) = set(os.listdir(folder)) - {str(target.pid)}
        yield target, lambda word: TELL.format(word=word, fifo=fifo, comm=f"{folder}/{other}/comm")


def test_text_elsewhere(targets, plain_output, tmp_path):
    """A part of its text is mapped elsewhere while that is an image's, as V8 does: detach takes all of it back, and then says so."""
    with told(targets["exec"], tmp_path / "fifo") as (target, script):
        assert attaching.ask("attach", target.pid).returncode == 0
        assert helpers.run(["sh", "-c", script("m")]).returncode == 0
        images = [m for m in target.mappings() if m.name.startswith("/hugeld:")]
        assert images and max(m.end for m in images) > 1 << 40, images
        assert attaching.ask("detach", target.pid).returncode == 0
        assert not any("hugeld:" in m.name for m in target.mappings())
        helpers.one_line(helpers.hugeld("detach", target.pid), 1, "it is not attached")
        assert target.finish() == plain_output


LOCKED, UNUSUAL = "its text is locked into memory", "its text is mapped in an unusual way"


@pytest.mark.parametrize("command", ["attach", "detach"])
@pytest.mark.parametrize("word, sentence", [("l", LOCKED), ("a", UNUSUAL)])
def test_flags_that_come_late(targets, steps, plain_output, tmp_path, command, word, sentence):
    """After it was looked at, its text is locked into memory or mapped in an unusual way, which would be lost."""
    with told(targets["exec"], tmp_path / "fifo") as (target, script):
        if command == "detach":
            assert attaching.ask("attach", target.pid).returncode == 0
        _, code, said = step(steps, "run", ARMED, script(word), helpers.HUGELD, command, target.pid)
        assert code == 1 and sentence in said, said
        assert (target.huge_bytes() > 0) == (command == "detach")
        assert sentence in attaching.ask(command, target.pid).stderr
        assert target.finish() == plain_output


# The instructions by which a thread makes calls, and those that restore it, as in a libc.
INSTRUCTIONS = ".globl f\nf: syscall\nret\nmov $15, %rax\nsyscall\n.space 4 << 20\n"


@pytest.fixture
def library(tmp_path):
    (tmp_path / "library.S").write_text(INSTRUCTIONS)
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", tmp_path / "library.so", tmp_path / "library.S"], check=True, timeout=helpers.PATIENCE)
    on_small_pages(tmp_path / "library.so")
    return tmp_path / "library.so"


def test_library_goes(targets, steps, plain_output, tmp_path, library):
    """A library is unloaded in the middle of the attach, whose instructions would have been used."""
    with told(targets["exec"], tmp_path / "fifo", env=helpers.environment(LIBRARY=library)) as (target, script):
        _, code, said = step(steps, "run", ARMED, script("u"), helpers.HUGELD, "attach", target.pid)
        assert code == 0 and "library.so" not in "".join(m.name for m in target.mappings()), said
        assert target.finish() == plain_output


# While it is traced it executes nothing.
LET_EXECUTE = """printf e > {fifo}
while read -r name < /proc/{pid}/comm && [ "$name" != sleep ] && ! grep -q "^State:.t" /proc/{pid}/status; do sleep 0.01; done"""
LET_END = "kill -KILL {pid}; while grep -q . /proc/{pid}/maps; do :; done"


@pytest.mark.parametrize("script, may_be_said", [
    pytest.param(LET_END, "(it|has) ended", id="ends"),
    pytest.param(LET_EXECUTE, "ended or executed|it is not attached|no whole huge page", id="executes", marks=pytest.mark.check_all)])
@pytest.mark.parametrize("is_attached, command", [(False, "attach"), *[pytest.param(True, c, marks=pytest.mark.check_all(ci=True)) for c in ("attach", "detach")]])
def test_ends_while_it_is_looked_at(targets, tmp_path, is_attached, command, script, may_be_said):
    """It ends before each file of it that is opened: this is the reason given, and not the file that can't be read any more."""
    preload, fifo = tmp_path / "other-text.so", tmp_path / "fifo"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", preload, attaching.HERE / "other-text.c", "-ldl"], check=True)
    for nth in itertools.count(1):
        with told(targets["exec"], fifo) as (target, _):
            if is_attached:
                assert attaching.ask("attach", target.pid).returncode == 0
            env = helpers.environment(LD_PRELOAD=preload, NTH=nth, SCRIPT=script.format(pid=target.pid, fifo=fifo))
            result = helpers.run([helpers.COMMAND, command, target.pid], env=env)
        if result.returncode == 0:
            assert nth > 10, result
            break
        assert result.stderr.count("\n") == 1 and re.search(may_be_said, result.stderr), (nth, result)
