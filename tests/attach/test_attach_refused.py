# SPDX-License-Identifier: LGPL-2.1-or-later
"""Refused processes, each with its reason, go on as if nothing had been asked; and a process attacks the one that attaches."""

import ctypes
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile

import helpers
import attaching
import pytest


RESTART_SYSCALL = 219  # of x86-64
PR_SET_THP_DISABLE = 41


def refused(target, reason, *prefix, command="attach", words=()):
    """Attaching to TARGET gives REASON, and changes nothing.  All reasons: its own, and those of its objects."""
    before = target.layout()
    result = attaching.again(lambda: helpers.run([*prefix, helpers.HUGELD, command, "--json", *words, target.pid]), "did not stop within")
    assert result.returncode == 1, result.stdout
    (process,) = json.loads(result.stdout)["processes"]
    found = [process["reason"], *(o["reason"] for o in process["objects"])]
    assert reason in found, result.stdout + result.stderr
    assert target.layout() == before
    return found


@pytest.mark.parametrize("mode, reason", [
    ("locked", "attach-locked"), ("locked_later", "attach-locked"), ("advised", "attach-flags"), ("patched", "text-modified"), ("sealed", "sealed"), ("dispatch", "attach-dispatch"), ("small", "attach-thp-disabled"),
    ("pipe_write", "attach-unfit"), ("select_constant", "attach-unfit"), ("socket_lowat", "attach-unfit"), ("io_getevents", "attach-unfit"),
    ("io_uring", "attach-unfit"), ("terminal", "attach-unfit"), ("supervised", "attach-unfit")])
def test_modes(targets, plain_output, mode, reason):
    with attaching.running(targets["exec"], mode) as target:
        attaching.wait_in_call(target.pid)
        refused(target, reason)
        assert target.finish() == plain_output


def test_thp_disabled(targets):
    """Each command says why attach cannot, and what to do instead; but where no huge page lies inside of the text, that is why."""
    with attaching.running(targets["exec"], "small") as target:
        attaching.wait_in_call(target.pid)
        for words in ["attach"], ["status"], ["inspect", "--pid"], ["bench", "--toggle", "--metric", "date +%s", "--pid"]:
            result = helpers.hugeld(*words, target.pid)
            assert re.search(r"PR_SET_THP_DISABLE\).*; attach cannot .*; start it with hugeld run", result.stdout + result.stderr), result
    process = helpers.start(["sleep", 60], preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
    results = [helpers.hugeld(*words, process.pid) for words in (["attach"], ["status"], ["inspect", "--pid"])]
    helpers.end_process(process)
    for said in (result.stdout + result.stderr for result in results):
        assert "no whole huge page lies inside" in said and "PR_SET_THP_DISABLE" not in said, said


def test_no_stack(targets, plain_output, root):
    """Its stack may not grow: where its memory ends, or because another mapping is near."""
    with attaching.running(targets["exec"], "futex") as target:
        (stack,) = [m for m in target.mappings() if m.name == "[stack]"]
        subprocess.run(["prlimit", "--pid", str(target.pid), f"--stack={stack.end - stack.start}:"], check=True)
        refused(target, "attach-stack")
        subprocess.run(["prlimit", "--pid", str(target.pid), "--stack=unlimited:unlimited"], check=True)
        assert attaching.ask("attach", target.pid).returncode == 0
        assert target.finish() == plain_output


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_moved_at_startup(targets, plain_output, pool, thp, backend):
    """There is nothing to do, and it says so."""
    pool(16)
    env = helpers.preload(helpers.LIBRARY, options=f"backend={backend}")
    with attaching.running(targets["exec"], "futex", env=env) as target:
        before = target.layout()
        result = helpers.hugeld("attach", target.pid)
        assert result.returncode == 0 and "on huge pages already" in result.stdout, result.stdout + result.stderr
        assert target.layout() == before
        (process,) = json.loads(helpers.hugeld("attach", "--json", target.pid).stdout)["processes"]
        assert [o["reason"] for o in process["objects"]] == ["attach-copy"]
        assert target.finish() == plain_output


def test_differs(targets, plain_output, tmp_path):
    """A byte that hugeld reads of its text is not its file's, so nothing goes back to that; then it is again."""
    preload = attaching.compile_preloaded(tmp_path, "other-text.c")
    with attaching.running(targets["exec"], "futex", 1) as target:
        assert attaching.ask("attach", target.pid).returncode == 0
        before = target.layout()
        result = attaching.again(lambda: helpers.run([helpers.COMMAND, "detach", target.pid], env=helpers.environment(LD_PRELOAD=preload)))
        helpers.one_line(result, 1, "text stays: its text in memory differs from its file")
        assert target.layout() == before
        assert attaching.ask("detach", target.pid).returncode == 0 and target.huge_bytes() == 0
        assert target.finish() == plain_output


def test_traced(targets, plain_output, strace):
    with attaching.running(targets["exec"], "futex", prefix=["strace", "-D", "-o", "/dev/null", "-e", "trace=none"]) as target:
        refused(target, "attach-traced")
        assert target.finish() == plain_output


def test_first_thread(targets, plain_output):
    """The frame lies at the end of the first thread's stack: while that runs no other thread is taken instead."""
    with attaching.running(targets["exec"], "compute_beside") as target:
        threads = pathlib.Path(f"/proc/{target.pid}/task")
        helpers.wait_until(lambda: len(list(threads.iterdir())) == 2, what="its second thread")
        attaching.wait_in_call(next(int(t.name) for t in threads.iterdir() if int(t.name) != target.pid))
        refused(target, "attach-unfit")
        assert target.finish() == plain_output


def test_two_at_once(targets, plain_output):
    """Another hugeld command works on the process."""
    with attaching.running(targets["exec"], "futex") as target:
        with open(f"/proc/{target.pid}/mem", "rb", buffering=0) as memory:
            fcntl.flock(memory, fcntl.LOCK_EX)
            refused(target, "attach-traced")
        assert attaching.ask("attach", target.pid).returncode == 0
        assert target.finish() == plain_output


def test_stopped(targets, plain_output):
    with attaching.running(targets["exec"], "futex", 2) as target:
        os.kill(target.pid, signal.SIGSTOP)
        helpers.wait_until(lambda: helpers.state_of(target.pid) == "T", what="the stop")
        refused(target, "attach-stopped")
        assert helpers.state_of(target.pid) == "T"
        os.kill(target.pid, signal.SIGCONT)
        assert target.finish() == plain_output


@pytest.mark.check_all
def test_frozen(targets, plain_output, root):
    """Its control group is frozen: it gets no descriptor, and a timeout ends when it would have ended."""
    mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    mount = next((pathlib.Path(m[1]) for m in mounts if m[2] == "cgroup2"), None)
    if mount is None:
        pytest.skip("no cgroup of version 2")
    group = mount / f"hugeld-frozen-{helpers.MARK_VALUE}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a cgroup: {error}")
    try:
        with attaching.running(targets["exec"], "poll_timed") as target:
            attaching.wait_in_call(target.pid)
            descriptors, masks = target.descriptors(), target.masks()
            (group / "cgroup.procs").write_text(str(target.pid))
            (group / "cgroup.freeze").write_text("1")
            helpers.wait_until(lambda: "frozen 1" in (group / "cgroup.events").read_text(), what="the freeze")
            try:
                refused(target, "attach-frozen")
            finally:
                (group / "cgroup.freeze").write_text("0")
            helpers.wait_until(lambda: attaching.call_of(target.pid) == RESTART_SYSCALL, what="the rest of its call")
            assert (target.descriptors(), target.masks()) == (descriptors, masks)
            assert attaching.ask("attach", target.pid).returncode == 0
            assert target.finish() == plain_output
    finally:
        helpers.wait_until(lambda: not (group / "cgroup.procs").read_text(), what="the group becoming empty")
        group.rmdir()


def test_realtime(targets, plain_output, root):
    """A thread that computes before all others do: hugeld comes before it, or leaves the process alone."""
    with attaching.running(targets["exec"], "futex", 1, prefix=["chrt", "--fifo", 10]) as target:
        refused(target, "attach-realtime", "prlimit", "--rtprio=0", "setpriv", "--bounding-set=-sys_nice")
        for command in "attach", "detach", "attach":
            assert attaching.ask(command, target.pid).returncode == 0
        assert target.huge_bytes() >= 2 * helpers.HUGE
        assert target.finish() == plain_output


@pytest.mark.check_all
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="hugeld needs a processor, too")
def test_no_processor(targets, plain_output, tmp_path, root):
    """It gets a processor for 50 ms of each second: it stops late, and is waited for, since its call would return EINTR if it were
    let go. If it has not stopped within half a second, it is refused for now."""
    first, stays = min(os.sched_getaffinity(0)), attaching.compile_preloaded(tmp_path, "stays.c")
    with attaching.running(targets["exec"], "epoll", prefix=["taskset", "-c", first]) as target:
        attaching.wait_in_call(target.pid)
        other = helpers.start(["taskset", "-c", first, "chrt", "--fifo", 50, "sh", "-c", "while :; do :; done"])
        try:
            for command in ["attach", "detach"] * 8:
                result = helpers.run([helpers.COMMAND, command, target.pid], env=helpers.environment(LD_PRELOAD=stays))
                assert result.returncode == 0 or re.search("try again|it is not attached", result.stderr), result
        finally:
            helpers.end_process(other)
        assert target.finish() == plain_output


def test_shadow_stack(targets, plain_output, tmp_path, root):
    """A made-up status, as the kernel writes it with a processor that has shadow stacks."""
    with attaching.running(targets["exec"], "futex") as target:
        real, told = f"/proc/{target.pid}/status", tmp_path / "status"
        lines = [line for line in pathlib.Path(real).read_text().splitlines() if not line.startswith("x86_Thread_features:")]
        told.write_text("\n".join([*lines, "x86_Thread_features:\tshstk wrss", ""]))
        refused(target, "attach-shadow-stack", "unshare", "--mount", "sh", "-c", f'mount --bind {told} {real} && exec "$@"', "sh")
        assert target.finish() == plain_output


def test_protection_key(targets, plain_output, tmp_path, root):
    """A made-up smaps, as the kernel writes it with a processor that has protection keys: VmFlags does not tell."""
    with attaching.running(targets["exec"], "futex") as target:
        real, told = f"/proc/{target.pid}/smaps", tmp_path / "smaps"
        prefix = ["unshare", "--mount", "sh", "-c", f'mount --bind {told} {real} && exec "$@"', "sh"]

        def tell(key):
            text = re.sub(r"^ProtectionKey:.*\n", "", pathlib.Path(real).read_text(), flags=re.M)
            keys = iter([key if " r-xp " in line else 0 for line in text.splitlines() if re.match("[0-9a-f]+-", line)])
            told.write_text(re.sub("^VmFlags:", lambda found: f"ProtectionKey: {next(keys):8}\n{found[0]}", text, flags=re.M))

        for command in "attach", "detach":
            tell(3)
            refused(target, "attach-flags", *prefix, command=command)
            tell(0)
            assert attaching.again(lambda: helpers.run([*prefix, helpers.HUGELD, command, target.pid])).returncode == 0
        assert target.huge_bytes() == 0 and target.finish() == plain_output


def test_flags_that_are_not_told(targets, steps, plain_output, tmp_path, root):
    """At the last look smaps does not have its text: then the move is refused."""
    with attaching.running(targets["exec"], "futex") as target:
        real, told = f"/proc/{target.pid}/smaps", tmp_path / "smaps"
        told.write_text(pathlib.Path(real).read_text())
        words = [shutil.which("unshare"), "--mount", "sh", "-c", f'mount --bind {told} {real} && exec "$@"', "sh", helpers.HUGELD, "attach", target.pid]
        result = helpers.run([steps, "run", attaching.ARMED, f": > {told}", *words])
        assert result.returncode == 1 and "its mappings do not match" in result.stderr, result
        assert target.huge_bytes() == 0 and target.finish() == plain_output


def test_escape(targets, plain_output, root):
    """A process turns a call of hugeld's, for which its filter is suspended, into one of its own; it may come too late."""
    def is_tampered():
        with attaching.running(targets["exec"], "escape") as target:
            attaching.wait_in_call(target.pid)
            result = helpers.hugeld("attach", "--json", target.pid)
            assert target.finish() == plain_output  # which has looked whether it was made
            return "attach-tampered" in result.stdout
    helpers.wait_until(is_tampered, what="another call")


def test_filters_of_ours(targets, plain_output, root):
    """A process that has a filter, or is root of a user namespace only, may not suspend other filters."""
    script = helpers.forbid_calls("acct") + "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    with attaching.running(targets["exec"], "filtered") as target:
        attaching.wait_in_call(target.pid)
        refused(target, "attach-filter-own", "/usr/bin/python3", "-c", script)
        assert target.finish() == plain_output
    with attaching.running(targets["exec"], "filtered", prefix=["unshare", "--user", "--map-root-user"]) as target:
        attaching.wait_in_call(target.pid)
        refused(target, "attach-filter-namespace", "nsenter", "--user", "--target", target.pid)
        assert target.finish() == plain_output


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture(scope="session")
def for_nobody(targets):
    """The target and the command where every user can read them."""
    folder = targets["exec"].parent
    for parent in [folder, *folder.parents][:3]:
        if parent.stat().st_uid == os.getuid() and str(parent) != "/tmp":
            parent.chmod(0o755)
    for file in (helpers.HUGELD, helpers.COMMAND):
        shutil.copy(file, folder / file.name)
        (folder / file.name).chmod(0o755)
    return folder


def test_as_a_user(for_nobody, targets, plain_output, root):
    """A user may do it with their own processes; a filter stays, and others' are not touched."""
    hugeld = for_nobody / "hugeld"
    with attaching.running(targets["exec"], "futex", 1, prefix=NOBODY) as target:
        for command in ("attach", "detach"):
            result = attaching.again(lambda: helpers.run([*NOBODY, hugeld, command, target.pid]))
            assert result.returncode == 0, result.stderr
        assert target.finish() == plain_output
    for mode, prefix, words in [("filtered", NOBODY, "only root can suspend"), ("privileged", NOBODY, "run hugeld as"), ("futex", (), "run hugeld as")]:
        with attaching.running(targets["exec"], mode, prefix=prefix) as target:
            attaching.wait_in_call(target.pid)
            result = attaching.again(lambda: helpers.run([*NOBODY, hugeld, "attach", target.pid]))
            assert result.returncode == 1 and words in result.stderr, result
            # Root suspends the filter, which would have killed it.
            assert attaching.ask("attach", target.pid).returncode == 0 and target.huge_bytes() >= 2 * helpers.HUGE
            assert target.finish() == plain_output


@pytest.fixture
def open_folder(tmp_path):
    """tmp_path, where all users may look."""
    for folder in [tmp_path, *tmp_path.parents][:3]:
        if folder.stat().st_uid == os.getuid() and str(folder) != "/tmp":
            folder.chmod(0o755)
    return tmp_path


@pytest.fixture
def fuse_folder(open_folder):
    """The same, for FUSE_OF_NOBODY."""
    if not shutil.which("bindfs"):
        pytest.skip("bindfs is not installed")
    return open_folder


FUSE_OF_NOBODY = """
cd "$1"; shift
mkdir real mounted; echo text > real/file; chown 65534 real mounted
mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
"$NOBODY" bindfs -f --no-allow-other real mounted < /dev/null > log 2>&1 & echo $! > server
while ! grep -q " $PWD/mounted fuse" /proc/self/mounts; do sleep 0.01; done
exec "$NOBODY" "$@"
""".replace('"$NOBODY"', " ".join(NOBODY))


def test_unanswered(for_nobody, targets, plain_output, fuse_folder, root):
    """A process of a user's has text of a FUSE, also a user's, that never answers; attach does not ask it."""
    prefix = ["unshare", "--mount", "sh", "-c", FUSE_OF_NOBODY, "sh", fuse_folder]
    with attaching.running(targets["exec"], "unanswered", fuse_folder / "mounted/file", prefix=prefix) as target:
        assert target.process.stdout.readline() == "mapped\n"
        server = int((fuse_folder / "server").read_text())
        os.kill(server, signal.SIGSTOP)
        try:
            for command in "attach", "detach", "attach":
                assert attaching.ask(command, target.pid).returncode == 0
            assert target.huge_bytes() >= 2 * helpers.HUGE
        finally:
            os.kill(server, signal.SIGCONT)
        assert target.finish() == plain_output


def test_closes_unanswered(for_nobody, targets, plain_output, fuse_folder, root):
    """A descriptor that attach makes in it, and takes, has become one of such a file. Closing it takes until the file system
    answers."""

    def is_attacked():
        folder = pathlib.Path(tempfile.mkdtemp(dir=fuse_folder))
        folder.chmod(0o755)
        prefix = ["unshare", "--mount", "sh", "-c", FUSE_OF_NOBODY, "sh", folder]
        with attaching.running(targets["exec"], "unanswered_close", folder / "mounted/file", prefix=prefix) as target:
            assert target.process.stdout.readline() == "mapped\n"
            server = int((folder / "server").read_text())
            os.kill(server, signal.SIGSTOP)
            try:
                command = helpers.start([helpers.HUGELD, "attach", target.pid])
                # It goes on to close the descriptors that it has opened in the process itself.
                helpers.wait_until(lambda: command.poll() is not None or
                                   (attaching.call_of(target.pid) == 3 and helpers.state_of(target.pid) in "SD"), what="close")
            finally:
                os.kill(server, signal.SIGCONT)
            _, err = command.communicate(timeout=helpers.PATIENCE)
            assert target.finish() == plain_output
            return "descriptor" in err

    helpers.wait_until(is_attacked, what="an attack")


def test_executes_unanswered(for_nobody, targets, plain_output, fuse_folder, root):
    """A thread executes a program on a FUSE that does not answer, for which the kernel lets its tracer wait."""
    (fuse_folder / "script").write_text(f"#!{fuse_folder}/mounted/file\n")
    (fuse_folder / "script").chmod(0o755)
    stop = 'read -r server < server; kill -STOP "$server"; exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", FUSE_OF_NOBODY.replace("exec ", f"exec sh -c '{stop}' sh "), "sh", fuse_folder]
    with attaching.running(targets["exec"], "execs_unanswered", fuse_folder / "script", prefix=prefix) as target:
        server = int((fuse_folder / "server").read_text())
        try:
            threads = pathlib.Path(f"/proc/{target.pid}/task")
            helpers.wait_until(lambda: any(attaching.call_of(t.name) == 59 for t in threads.iterdir()), what="execve")
            result = helpers.hugeld("attach", target.pid)
            assert result.returncode == 1 and "try again" in result.stderr, result
        finally:
            os.kill(server, signal.SIGCONT)
        helpers.wait_until(lambda: len(list(threads.iterdir())) == 1, what="the end of execve")
        assert attaching.ask("attach", target.pid).returncode == 0
        assert target.finish() == plain_output


def test_no_descriptors(targets, plain_output, root):
    """It could open too few files while hugeld has descriptors in it, so it is refused; it can be attached to when it could open
    more."""
    with attaching.running(targets["exec"], "futex") as target:
        n = len(target.descriptors())
        for command in "attach", "detach":
            for limit in (n, n + 63):
                subprocess.run(["prlimit", "--pid", str(target.pid), f"--nofile={limit}:4096"], check=True)
                for words in ["--dry-run"], []:
                    refused(target, "attach-files", command=command, words=words)
            subprocess.run(["prlimit", "--pid", str(target.pid), f"--nofile={n + 64}:4096"], check=True)
            assert attaching.ask(command, target.pid).returncode == 0
        assert target.finish() == plain_output


BARE = """
    .globl _start
_start:
    .rept 3 * 1024 * 1024 / 4
    nop
    nop
    nop
    nop
    .endr
    movl ${call}, %eax
    {trap}
    jmp _start
"""


def run_bare(tmp_path, call, trap, *flags):
    """A program without a libc, which waits in pause(2)."""
    (tmp_path / "bare.S").write_text(BARE.format(call=call, trap=trap))
    command = ["gcc", "-nostdlib", "-static", "-no-pie", "-o", tmp_path / "bare", tmp_path / "bare.S", *flags]
    subprocess.run(command, check=True, timeout=helpers.PATIENCE)
    return helpers.start([tmp_path / "bare"])


@pytest.mark.parametrize("call, trap, flags, reason", [
    (34, "syscall", [], "instructions were found in it"), (29, "int $0x80", ["-m32"], "32-bit")])
def test_bare(tmp_path, call, trap, flags, reason):
    """Without a libc no code returns from a signal handler."""
    process = run_bare(tmp_path, call, trap, *flags)
    try:
        helpers.wait_until(lambda: helpers.state_of(process.pid) == "S", what="the wait")
        result = helpers.hugeld("attach", process.pid)
        assert result.returncode == 1 and reason in result.stderr
        assert helpers.state_of(process.pid) == "S"
    finally:
        helpers.end_process(process)


def test_zombie(root):
    process = subprocess.Popen(["true"])
    helpers.wait_until(lambda: helpers.state_of(process.pid) == "Z", what="its end")
    result = helpers.hugeld("attach", process.pid)
    assert result.returncode == 1 and "no memory" in result.stderr
    process.wait()


def test_execs(targets, tmp_path):
    """The process becomes another program in the same place again and again: each is refused, or moved, and none ends wrong."""
    end = tmp_path / "end"
    process = helpers.start(["setarch", "-R", targets["exec"], "execs", end, targets["lld"]])
    reasons = []

    def is_tried():
        result = helpers.hugeld("attach", "--json", process.pid)
        assert result.returncode in (0, 1), result
        for found in json.loads(result.stdout)["processes"]:
            reasons.extend({found["reason"], *(o["reason"] for o in found["objects"])} - {None} or {None})
        return len(reasons) >= 60 and {None, "attach-ended"} <= set(reasons)

    try:
        helpers.wait_until(is_tried, helpers.PATIENCE, "an attach, and one that came too late")
        end.touch()
        assert process.wait(timeout=helpers.PATIENCE) == 7, process.stdout.read()
    finally:
        helpers.end_process(process)


def test_executed_while_it_is_copied(targets, tmp_path):
    """Another program, with other text in the same place, and then the first one again: nothing read from the other is used."""
    preload = tmp_path / "other-text.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", preload, attaching.HERE / "other-text.c", "-ldl"], check=True)
    with attaching.running(targets["exec"], "futex") as target:
        before = target.layout()
        result = attaching.again(lambda: helpers.run([helpers.COMMAND, "attach", target.pid], env=helpers.environment(LD_PRELOAD=preload)))
        assert result.returncode == 1 and "text stays: its text in memory differs from its file" in result.stderr, result
        assert target.layout() == before and target.huge_bytes() == 0


def test_hostile(targets, tmp_path, root):
    """The tracer ends, in time, and does nothing to another process, although it got another descriptor than its own."""
    victim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    victim.bind(str(tmp_path / "v"))
    victim.setblocking(False)
    said = []

    def is_attacked():
        with attaching.running(targets["exec"], "hostile", tmp_path / "v") as target:
            for command in ("attach", "detach") * 2:
                result = helpers.hugeld(command, target.pid)
                assert result.returncode in (0, 1), result.stderr
                assert "\033" not in result.stdout + result.stderr
                said.append(result.stderr)
        with pytest.raises(BlockingIOError):
            victim.recv(1)
        return len(said) >= 12 and any("descriptor" in text for text in said)

    helpers.wait_until(is_attacked, what="an attack on its descriptors")
    victim.close()
