# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs programs so that nothing of them is left, and waits for them."""

import contextlib
import errno
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("B", ROOT / "build")).resolve()
HUGELD = BUILD / "hugeld"
COMMAND = BUILD / "hugeld-command"  # which hugeld becomes for commands that start no program
STARTER = BUILD / "hugeld-glibc"  # hugeld with a libc into which a library can be preloaded
LIBRARY = BUILD / "libhugeld.so"
ALL_SEGMENTS = "segments=text+rodata"

PAGE = os.sysconf("SC_PAGE_SIZE")

# Seconds, after which a process is said to hang, and after which a test stops waiting for an event.  In an emulated guest of a busy
# machine gcc took two minutes.
PATIENCE, SOON = 600, 180


def huge_page_bytes():
    """The bytes that one PMD maps."""
    size = pathlib.Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
    return int(size.read_text()) if size.exists() else 2 << 20


HUGE = huge_page_bytes()

# In the environment of everything that a test starts, so that leftover processes can be found.
MARK = "T_HUGELD_TEST"
MARK_VALUE = str(uuid.uuid4())


def environment(**changes):
    """This process's environment without anything that concerns the dynamic linker, and CHANGES (None removes).  Where the
    options don't say which segments, all of them: there is more to move, and to go wrong."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "GLIBC_TUNABLES", "PYTHON"))}
    env[MARK] = MARK_VALUE
    env["LC_ALL"] = "C"
    changes["LD_HUGEPAGES_OPTIONS"] = ",".join(filter(None, [ALL_SEGMENTS, changes.get("LD_HUGEPAGES_OPTIONS")]))
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = str(value)
    return env


def runs_in_group(pid, group):
    """Whether PID is of GROUP and not yet dead."""
    with contextlib.suppress(OSError):
        state, _, pgrp, *_ = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(pgrp) == group and state not in "ZX"
    return False


def group_is_gone(group):
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return True
    return not any(entry.isdigit() and runs_in_group(entry, group) for entry in os.listdir("/proc"))


def end_process(process):
    """Kills a process of start()'s, with its whole process group, and waits until it is gone: a process that is killed in a
    long system call takes a moment to end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=PATIENCE)
    wait_until(lambda: group_is_gone(process.pid), what="the end of its group")
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def start(argv, env=None, **options):
    """Starts ARGV as the leader of a process group of its own."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    process = subprocess.Popen(
        [str(a) for a in argv], env=env or environment(), start_new_session=True, text=True, errors="replace", **options
    )
    wait_for_exec(process.pid)
    return process


def wait_for_exec(pid):
    """Waits until execve(2) of PID has mapped its program: Popen returns when the kernel has closed descriptors, and only then it maps
    segments; last of all it fills the auxiliary vector."""
    end = time.monotonic() + SOON
    with contextlib.suppress(OSError):
        while pathlib.Path(f"/proc/{pid}/auxv").read_bytes()[:8] == bytes(8) and time.monotonic() < end:
            time.sleep(0.001)


def run(argv, env=None, timeout=PATIENCE, **options):
    """Runs ARGV to its end; the result has returncode, stdout and stderr."""
    text = options.pop("input", None)
    if text is not None:
        options["stdin"] = subprocess.PIPE
    process = start(argv, env, **options)
    try:
        stdout, stderr = process.communicate(text, timeout=timeout)
        return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)
    finally:
        end_process(process)


def hugeld(*arguments, **options):
    """Runs the hugeld command."""
    return run([HUGELD, *arguments], **options)


def one_line(result, status, *words):
    """RESULT of the command says WORDS in one line on stderr, nothing on stdout, and ends with STATUS."""
    assert result.returncode == status, result.stderr
    assert result.stderr.startswith("hugeld: ") and result.stderr.count("\n") == 1, result.stderr
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr
    return result


def shown_on_terminal(argv):
    """The text that ARGV writes to standard error where that is a terminal."""
    master, slave = pty.openpty()
    process = start(argv, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        process.communicate(timeout=PATIENCE)
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError as error:  # all has been read of a terminal that no process has open
        assert error.errno == errno.EIO
    finally:
        end_process(process)
        os.close(master)
    return shown.decode()


def hugeld_json(command, *arguments):
    """The answer of `hugeld COMMAND --json ARGUMENTS`; it must succeed."""
    result = hugeld(command, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def preload(*libraries, patterns=None, options=None, **changes):
    """The environment of a program that runs with LIBRARIES preloaded."""
    return environment(
        LD_PRELOAD=":".join(map(str, libraries)) or None,
        LD_HUGEPAGES=patterns,
        LD_HUGEPAGES_OPTIONS=options,
        **changes,
    )


def run_preloaded(argv, patterns=None, options=None, library=LIBRARY, timeout=PATIENCE, **changes):
    """Runs ARGV the way a user would: LD_PRELOAD=libhugeld.so ARGV."""
    return run(argv, preload(library, patterns=patterns, options=options, **changes), timeout)


def is_marked(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={MARK_VALUE}".encode() in file.read().split(b"\0")
    return False


def marked_processes():
    """PIDs of everything still there that this test run started."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and is_marked(pid)]


def reason_rows():
    """The text of both tables of reasons."""
    return "".join((ROOT / name).read_text() for name in ("elf/reason.def", "command/lib/reason.def"))


def reasons():
    """The sentences of reason.def by their names."""
    return dict(re.findall(r'REASON\(\w+, "([^"]+)",\s*"([^"]+)"', reason_rows()))


def state_of(pid):
    """The letter of /proc/PID/stat, or '' when it has ended."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def ticks(pid):
    """The processor time that PID has taken, its own and the kernel's for it, in ticks."""
    return sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:13]))


def descriptors(pid, kind):
    """PID's descriptors by name of which the link has KIND in it; those that come and go meanwhile may be missing, as all do
    of a process that has ended."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if kind in os.readlink(entry.path):
                    found.append(entry.name)
    return found


def wait_until(condition, timeout=SOON, what="it"):
    """Waits until CONDITION() is true and returns its result."""
    end = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, f"{what} did not happen in {timeout} s"
        time.sleep(0.002)


def wait_for(look, condition, timeout=SOON, pause=0):
    """The result of LOOK(), asked every PAUSE seconds, once that is something and CONDITION is true of it."""
    found = []

    def is_fulfilled():
        time.sleep(pause)
        found[:] = [look()]
        return found[0] is not None and condition(found[0])

    wait_until(is_fulfilled, timeout)
    return found[0]


@contextlib.contextmanager
def paused(argv, env, name, timeout=PATIENCE, **options):
    """Starts ARGV, whose environment preloads pause.so, and stops at the end of the constructors of the program NAME.

    Gives a Popen with resume(), which lets it go on, and finish(), which also waits for its end and returns
    (returncode, stdout, stderr)."""
    process = start(argv, dict(env, T_PAUSE=name), **options)
    process.resume = lambda: os.kill(process.pid, signal.SIGCONT)

    def finish():
        process.resume()
        stdout, stderr = process.communicate(timeout=timeout)
        return process.returncode, stdout, stderr

    process.finish = finish
    try:
        wait_until(lambda: state_of(process.pid) in ("T", "Z", ""), timeout, f"{name} stopping")
        if state_of(process.pid) != "T":
            stdout, stderr = process.communicate(timeout=timeout)
            raise AssertionError(f"{name} ended before it stopped: {process.returncode}\n{stdout}\n{stderr}")
        yield process
    finally:
        end_process(process)


@contextlib.contextmanager
def at_end(command, *arguments):
    """Runs a shell COMMAND when the block ends, and also when this process is killed inside it."""
    guard = subprocess.Popen(
        ["sh", "-c", f"cat > /dev/null; {command}", "at_end", *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True,
    )
    try:
        yield
    finally:
        _, stderr = guard.communicate(timeout=PATIENCE)
    assert guard.returncode == 0, stderr


def forbid_calls(*names):
    """Lines of a Python script, after which these system calls kill it."""
    return (f"import ctypes\n"
            f"lib = ctypes.CDLL('libseccomp.so.2')\n"
            f"lib.seccomp_init.restype = ctypes.c_void_p\n"
            f"lib.seccomp_init.argtypes = [ctypes.c_uint32]\n"
            f"lib.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]\n"
            f"lib.seccomp_load.argtypes = [ctypes.c_void_p]\n"
            f"context = lib.seccomp_init(0x7fff0000)\n"  # SCMP_ACT_ALLOW
            f"for name in {[name.encode() for name in names]}:\n"
            f"    number = lib.seccomp_syscall_resolve_name(name)\n"
            f"    assert lib.seccomp_rule_add(context, 0x80000000, number, 0) == 0\n"  # SCMP_ACT_KILL_PROCESS
            f"assert lib.seccomp_load(context) == 0\n")


def become(user):
    """A command prefix that makes the command another user's, without groups and capabilities."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
