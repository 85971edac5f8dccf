# SPDX-License-Identifier: LGPL-2.1-or-later
"""`act = yes`: which of the observed files `hugeld service` puts in place, what keeps it from that, and what a user can make it do.

Each test observes first, with `canary = 0`, and lets the service act when the program has ended, so that a kernel which cannot
join pages that processes map reads the file anew.  The huge parts are read from smaps of a process that starts then."""

import collections
import contextlib
import mmap
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import helpers
from calls import build_calls
from hugepages import compact_memory
from pagecache import scatter
from pressure import CALM, waiting
from smaps import read_smaps
from test_samples import replaced
from watching import FOREVER, NOBODY, observed_row, observing, replace_text, running, write_configuration

pytestmark = pytest.mark.check_all(ci=True)  # the service goes


OBSERVES = ["window = 4", "interval = 8", "act = yes", "delay = 0", "canary = 0"]
ACTS = ["window = 4", "interval = 600", "act = yes", "delay = 0"]
SWITCH = "run/hugeld-service/stop"


# An act's outcomes on a busy machine, where it is tried again one minute later, then two, then four; and seconds in which that
# succeeds.
AGAIN = "or to look takes too long", "the kernel had no huge page for it"
ACTED = 500

# A number of samples that leaves enough in each of its two huge pages after two more windows, and that a busy machine reaches, too.
ENOUGH = 80


@pytest.fixture(scope="module")
def six(roots_folder):
    """Like the fixture calls, with two whole huge pages of text."""
    return build_calls(roots_folder / "six", "-no-pie", mib=6)


@pytest.fixture
def program(roots_folder, six, tmp_path):
    """A file of its own, scattered."""
    path = roots_folder / f"acted-{os.getpid()}-{tmp_path.name}"
    shutil.copy(six, path)
    scatter(path)
    yield path
    path.unlink(missing_ok=True)


class Acting:
    """A service that has observed a program and does not act yet."""

    def __init__(self, service, program, lines):
        self.service, self.program, self.lines = service, program, lines
        self.said = []

    def configure(self, *lines):
        write_configuration(self.service.configuration, self.program, lines=[*ACTS, *self.lines, *lines])
        self.service.process.send_signal(signal.SIGHUP)

    def wait(self, condition):
        """The totals of the acts, once CONDITION is true of them."""
        return helpers.wait_for(self.service.look, lambda observed: condition(observed["acts"]), ACTED, pause=0.3)["acts"]

    def lines_until(self, words):
        """The messages up to a line with WORDS."""
        while not self.said or words not in self.said[-1]:
            line = helpers.next_line(self.service.process)
            assert line, self.said
            self.said.append(line)
        return self.said


@pytest.fixture
def acting(root, program, tmp_path):
    """acting(lines...): a context with a service that has seen the program, which has ended, on a machine under no pressure."""
    @contextlib.contextmanager
    def begin(*lines, prefix=(), covers=()):
        calm = tmp_path / "calm"
        calm.write_text(CALM)
        covered = {path: file for file, path in covers}
        pressure = {path: calm for path in ("/proc/pressure/io", "/proc/pressure/memory") if os.path.exists(path)}
        covers = [(file, path) for path, file in {**pressure, **covered}.items()]
        with observing(tmp_path / "hugeld.conf", program, lines=[*OBSERVES, *lines], prefix=prefix, covers=covers) as service:
            with running([str(program), FOREVER]):
                service.wait_for(program, ENOUGH)
            yield Acting(service, program, lines)

    return begin


def huge_bytes(program):
    """The part of the text that a process that starts now has on huge pages."""
    process = helpers.start([str(program), 0, "wait"], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline()
        return 1024 * sum(m.kb["FilePmdMapped"] for m in read_smaps(process.pid) if m.name == str(program))
    finally:
        helpers.end_process(process)


def huge_or_skip(acting):
    """The acts, once one has succeeded."""
    found = acting.wait(lambda acts: acts["huge"] + acts["failed"] > 0)
    if found["huge"] > 0:
        return found
    line = acting.lines_until("not put in place")[-1]
    if "keeps files on small pages" in line:
        pytest.skip("this file system and kernel have no large folios")
    assert any(words in line for words in AGAIN), acting.said
    compact_memory()
    return acting.wait(lambda acts: acts["huge"] > 0)


def joins(path):
    """Whether this kernel joins pages of the file, which processes may map meanwhile: of less than a huge page there are none."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC) as mapping:
        try:
            mapping.madvise(25, 0, helpers.PAGE)  # MADV_COLLAPSE
        except OSError:
            return False
        return True


def test_acts(acting, program, tmp_path):
    """The file is put in place page by page, each with a line, after the file was unmapped for ten seconds; the program is the
    same; status and metrics say so."""
    metrics = tmp_path / "hugeld.prom"
    with acting(f"metrics = {metrics}") as service:
        before = program.read_bytes()
        assert huge_bytes(program) == 0
        began = time.monotonic()
        service.configure()
        acts = huge_or_skip(service)
        if not joins(program):
            assert time.monotonic() - began > 10
        assert acts["kept_bytes"] == acts["huge"] * helpers.HUGE and acts["lost"] == 0
        line = service.lines_until("put in place in")[-1]
        assert re.fullmatch(rf"hugeld: service: {re.escape(str(program))}: bytes (\d+) to (\d+) put in place in \d+\.\d ms, "
                            r"mapped by 0 processes\n", line)
        first, end = map(int, re.findall(r"bytes (\d+) to (\d+)", line)[0])
        assert first % helpers.HUGE == 0 and end - first == helpers.HUGE
        assert huge_bytes(program) >= helpers.HUGE and program.read_bytes() == before
        assert "put in place: " in service.service.run("status").stdout
        service.configure("canary = 0")
        helpers.wait_until(lambda: lines_of(service.service.look()["acts"]) <= set(metrics.read_text().splitlines()), ACTED, "the numbers")


def lines_of(acts):
    """In the metrics."""
    numbers = {"huge_total": "huge", "failed_total": "failed", "lost_total": "lost", "kept_bytes": "kept_bytes"}
    return {f"hugeld_acts_{name} {acts[key]}" for name, key in numbers.items()}


def system_calls(*names):
    """The system calls that SystemCallFilter= of systemd.exec(5) means by these names."""
    found = set()
    for name in names:
        if name.startswith("@"):
            lines = helpers.run(["systemd-analyze", "--no-pager", "syscall-filter", name]).stdout.splitlines()
            found |= system_calls(*(line.strip() for line in lines[1:] if line.strip() and "#" not in line))
        else:
            found.add(name)
    return found


@pytest.mark.check_all
def test_sandbox(acting, tmp_path):
    """hugeld.service is killed for a call that its filter does not have: all that it makes here are allowed."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    trace = tmp_path / "trace"
    with acting(prefix=["strace", "-D", "-f", "-qq", "-o", trace]) as service:
        service.configure()
        huge_or_skip(service)
    made = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.M))
    [words] = re.findall("^SystemCallFilter=(.*)", (helpers.ROOT / "data/hugeld.service").read_text(), re.M)
    assert {"mincore", "madvise", "perf_event_open"} <= made and made <= system_calls(*words.split(), "@default")


def test_not_by_default(observe, program):
    """Observing alone changes nothing."""
    with observe(program, lines=["window = 4", "interval = 8"]) as service:
        with running([str(program), FOREVER]):
            service.wait_for(program, ENOUGH)
        acts = service.next_windows(1)["acts"]
        assert acts["huge"] + acts["failed"] + acts["put_off"] == 0 and acts["reason"] is None
        assert huge_bytes(program) == 0


@pytest.mark.check_all
def test_budget(acting, program):
    """Acts use no more memory than the budget allows."""
    with acting("rate = 60", "budget = 2") as service:
        service.configure()
        huge_or_skip(service)
        acts = service.wait(lambda acts: "budget" in (acts["reason"] or ""))
        assert acts["huge"] == 1 and acts["kept_bytes"] == helpers.HUGE == acts["budget_bytes"]
        assert "2 MiB are in place, and the budget is 2 MiB" in acts["reason"] and huge_bytes(program) == helpers.HUGE


@pytest.mark.parametrize(("kib", "mib"), [(10 << 20, 204.8), (100 << 20, 1024)])
def test_budget_by_default(observe, tmp_path, kib, mib):
    """The default budget is 2 % of the memory, and at most 1 GiB."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n")
    with observe("/none/*", covers=[(meminfo, "/proc/meminfo")]) as service:
        acts = service.wait(lambda observed: True)["acts"]
        assert acts["budget_bytes"] == int(mib * 1024) << 10


@pytest.mark.parametrize(("what", "words"), [
    ("canary", "none of the 0 %"), ("io", "waited for disks"), *[pytest.param(*case, marks=pytest.mark.check_all(ci=True)) for case in (
        ("switch", "kill switch"), ("memory", "waited for memory"), ("meminfo", "less than 15 % of the memory"),
        ("isolated", "isolated"), ("no machine-id", "/etc/machine-id, which draws the 99 %"))]])
def test_gates(acting, program, tmp_path, what, words):
    """Behind a closed gate nothing is touched, and status says why."""
    file, covers, lines = tmp_path / "cover", [], []
    if what in ("io", "memory"):
        if not os.path.exists("/proc/pressure"):
            pytest.skip("this kernel has no pressure information")
        file.touch()
        covers = [(file, f"/proc/pressure/{what}")]
    if what == "meminfo":
        file.write_text("MemTotal: 1000000 kB\nMemFree: 10 kB\nMemAvailable: 149999 kB\n")
        covers = [(file, "/proc/meminfo")]
    if what == "isolated":
        path = "/sys/devices/system/cpu/isolated"
        if os.cpu_count() < 2 or not os.path.exists(path):
            pytest.skip("needs two processors, and a kernel that can isolate one")
        file.write_text("\n")
        covers = [(file, path)]
    if what == "no machine-id":
        file.write_text("uninitialized\n")  # machine-id(5)
        covers, lines = [(file, "/etc/machine-id")], ["canary = 99"]
    if what == "canary":
        lines = ["canary = 0"]
    busy = waiting(file) if what in ("io", "memory") else contextlib.nullcontext()
    with acting(covers=covers) as service, busy:
        if what == "isolated":
            file.write_text("1\n")  # after it was observed, on any processor
        if what == "switch":
            (service.service.root / SWITCH).touch()
        service.configure(*lines)
        acts = service.wait(lambda acts: words in (acts["reason"] or ""))
        assert acts["huge"] + acts["failed"] == 0 and acts["put_off"] > 0, acts
        assert huge_bytes(program) == 0
        assert f"nothing is put in place now: {acts['reason']}" in service.service.run("status").stdout
        if what == "canary":
            service.configure("act = no")
            assert service.wait(lambda acts: acts["reason"] is None)


def draw(machine):
    """The percentage at which this machine is chosen, by FNV-1a of its machine-id(5)."""
    value = 0xcbf29ce484222325
    for byte in machine.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value % 10000 / 100


@pytest.mark.check_all
def test_canary_is_drawn(acting, tmp_path):
    """The machine's id decides: one begins at a percentage that another one does not, and both at a larger one."""
    early, late = sorted((f"{i:032x}" for i in range(100)), key=draw)[5::89]
    assert draw(early) < 20 and draw(late) > 80
    file = tmp_path / "machine-id"
    file.write_text(f"{late}\n")
    with acting(covers=[(file, "/etc/machine-id")]) as service:
        service.configure("canary = 50")
        acts = service.wait(lambda acts: "none of the 50 %" in (acts["reason"] or ""))
        assert acts["huge"] + acts["failed"] == 0
        file.write_text(f"{early}\n")
        service.configure("canary = 50")
        service.wait(lambda acts: acts["huge"] + acts["failed"] > 0)


HALF = {"getrandom": (1, None)}  # without random numbers the delay is half of the configured one


@pytest.mark.check_all
def test_delay(acting, program):
    """The service does not act for some time after its start."""
    with acting("delay = 86400", prefix=replaced(HALF)) as service:
        service.configure()
        acts = service.wait(lambda acts: "started less than 86400 s ago" in (acts["reason"] or ""))
        assert acts["huge"] + acts["failed"] == 0 and huge_bytes(program) == 0


@pytest.mark.check_all
def test_delay_is_drawn(acting, clock):
    """The delay is random, so that a thousand machines do not begin together: one of them begins at once."""
    with acting("delay = 86400", prefix=["env", f"LD_PRELOAD={clock}", "CHANCE=0"]) as service:
        service.configure("delay = 86400")
        service.wait(lambda acts: acts["huge"] + acts["failed"] > 0)


@pytest.mark.check_all
def test_delay_after_a_change(acting, program):
    """The file changes as in an upgrade: a service that has run for long leaves it alone for the delay, too."""
    seconds = 25  # longer than it waits for the file to be unmapped
    with acting(f"delay = {2 * seconds}", prefix=replaced(HALF)) as service:
        with running([str(program), FOREVER]):
            time.sleep(seconds)  # since its start
            service.service.wait_for(program, ENOUGH)
        os.utime(program)
        changed = time.monotonic()
        service.configure()
        service.wait(lambda acts: acts["huge"] + acts["failed"] > 0)
        assert time.monotonic() - changed > seconds - 1, service.said  # it counts whole seconds


class Traced:
    """A service under strace, which writes down when each huge page was put in place.  The service begins to rest after that line, and
    the next line follows its rest, so the time between two is at least the rest, however busy the machine is."""

    def __init__(self, trace, calls="write", options=()):
        self.trace = trace
        self.prefix = ["strace", "-D", "-f", "-qq", "-ttt", "-s", "300", "-o", trace, "-e", f"trace={calls}", *options]

    def rests(self):
        """The seconds between acts, of which there would be another one by now if the service did not rest."""
        time.sleep(19)
        times = [float(at) for at in re.findall(r"^\d+ +([\d.]+) write\(2, .*put in place", self.trace.read_text(), re.M)]
        assert times, self.trace.read_text()
        return [later - earlier for earlier, later in zip(times, times[1:])]


@pytest.mark.check_all
def test_rate(acting, tmp_path):
    """The rate is the most huge pages in a minute."""
    traced = Traced(tmp_path / "trace")
    with acting("rate = 3", prefix=traced.prefix) as service:
        service.configure()
        huge_or_skip(service)
        assert all(seconds >= 20 for seconds in traced.rests()), traced.trace.read_text()


@pytest.mark.check_all
def test_rests(acting, tmp_path):
    """After each act it does nothing for twenty times as long, at any rate."""
    traced = Traced(tmp_path / "trace", "mincore,write", ["-e", "inject=mincore:delay_exit=100000"])
    with acting("rate = 60", prefix=traced.prefix) as service:
        service.configure()
        huge_or_skip(service)
        assert all(seconds > 5 for seconds in traced.rests()), traced.trace.read_text()


@pytest.mark.check_all
def test_pressure_is_not_known(acting, tmp_path):
    """A line says so once, and free memory alone decides."""
    if not os.path.exists("/proc/pressure"):
        pytest.skip("this kernel has no pressure information")
    empty = tmp_path / "empty"
    empty.write_text("")
    with acting(covers=[(empty, "/proc/pressure/io"), (empty, "/proc/pressure/memory")]) as service:
        service.configure()
        acts = huge_or_skip(service)
        service.configure()
        service.wait(lambda later: later["huge"] > acts["huge"])
        for _ in range(acts["huge"] + 1):
            service.lines_until("bytes")
            last = service.said.pop()
        assert sum("boot with psi=1" in line for line in service.said) == 1 and "bytes" in last


YEARS = 10 * 365 * 86400


@pytest.mark.check_all
@pytest.mark.parametrize("behind", [True, False], ids=["set back", "jumps"])
def test_clock(acting, program, tmp_path, clock, behind):
    """The file was changed in the future: the delay after a change counts from when the service has seen it.  And a clock that is set by
    years, again and again, ends nothing and makes nothing wait."""
    offset, settings = tmp_path / "offset", iter([-YEARS] if behind else 40 * [YEARS, -YEARS, 0])
    offset.write_text(str(next(settings)))
    with acting(prefix=["env", f"LD_PRELOAD={clock}", f"CLOCK={offset}"]) as service:
        service.configure("delay = 1")
        for value in settings:
            replace_text(offset, str(value))
            time.sleep(0.1)
        huge_or_skip(service)
        assert huge_bytes(program) >= helpers.HUGE


class Forward:
    """A service whose clock the test moves forward, but never by as much as the service has to wait: how long a wait took at least is
    then the same on a busy machine."""

    def __init__(self, clock, file):
        self.file, self.prefix = file, ["env", f"LD_PRELOAD={clock}", f"FORWARD={file}"]
        file.write_text("0")

    def go(self, seconds):
        replace_text(self.file, str(seconds))


@pytest.mark.check_all
def test_more_and_more_seldom(acting, program, tmp_path, clock):
    """An act in vain is tried again after one minute, and then after two, however often something may be done."""
    forward = Forward(clock, tmp_path / "forward")
    with acting("rate = 60", prefix=forward.prefix) as service, mapped_by_many(program):
        began = time.monotonic()
        service.configure()
        service.wait(lambda acts: acts["failed"] > 0)
        for seconds, failed in ((45, 2), (45 + 105, 3)):
            forward.go(seconds)
            service.configure()
            service.wait(lambda acts, n=failed: acts["failed"] >= n)
            assert time.monotonic() - began >= 15 * (failed - 1)


@pytest.mark.check_all
def test_lost(acting, program, tmp_path, clock):
    """A file that was dropped again is left alone, for a minute at first."""
    forward = Forward(clock, tmp_path / "forward")
    with acting(prefix=forward.prefix) as service:
        service.configure()
        huge_or_skip(service)
        done = service.wait(lambda acts: acts["huge"] == 2)
        service.configure("canary = 0")
        began = time.monotonic()
        scatter(program)
        write_configuration(service.service.configuration, program, lines=[*OBSERVES, "canary = 100"])
        service.service.process.send_signal(signal.SIGHUP)
        with running([str(program), FOREVER]):
            acts = service.wait(lambda acts: acts["lost"] > 0)
            forward.go(30)
            service.service.process.send_signal(signal.SIGHUP)
            service.wait(lambda acts: acts["huge"] + acts["failed"] > done["huge"] + done["failed"])
            assert time.monotonic() - began >= 30
        assert acts["kept_bytes"] == 0 or acts["huge"] > acts["lost"]


@pytest.mark.check_all
def test_another_file(acting, program, six):
    """A package replaced it meanwhile: samples of the old file are no reason to touch the new one."""
    with acting() as service:
        new = program.with_suffix(".new")
        shutil.copy(six, new)
        new.rename(program)
        scatter(program)
        service.configure()
        acts = service.wait(lambda acts: acts["huge"] + acts["failed"] > 0)
        assert acts["huge"] == 0 and huge_bytes(program) == 0
        assert "it is another file now" in service.lines_until("not put in place")[-1]


@pytest.mark.check_all
def test_excluded_since(acting, program):
    """Earlier samples count for nothing."""
    with acting() as service:
        service.configure(f"excluded = {program}")
        service.service.process.send_signal(signal.SIGHUP)
        time.sleep(12)  # as long as it would have waited for the file to be unmapped
        acts = service.service.look()["acts"]
        assert acts["huge"] + acts["failed"] == 0 and huge_bytes(program) == 0


def test_mapped(acting, program):
    """A mapped file is joined while a process runs it, or left alone with one line; nothing is dropped under a process."""
    with acting() as service:
        with running([str(program), FOREVER]) as [process]:
            service.configure()
            acts = service.wait(lambda acts: acts["huge"] + acts["failed"] > 0)
            if acts["huge"] == 0:
                assert "processes map the file" in service.lines_until("not put in place")[-1]
                assert sum(m.kb["FilePmdMapped"] for m in read_smaps(process.pid)) == 0
            assert process.poll() is None


@contextlib.contextmanager
def mapped_by_many(program):
    with contextlib.ExitStack() as stack:
        for _ in range(13):
            process = helpers.start([str(program), 0, "wait"], stdin=subprocess.PIPE)
            stack.callback(helpers.end_process, process)
            assert process.stdout.readline()
        yield


@pytest.mark.check_all
def test_kept_by_many(acting, program):
    """Many processes map it and would all wait: nothing is done, even on a kernel that joins pages."""
    with acting() as service, mapped_by_many(program):
        service.configure()
        service.wait(lambda acts: acts["failed"] > 0)
        assert "processes map the file" in service.lines_until("not put in place")[-1] and huge_bytes(program) == 0


MAPPINGS = r"""
import mmap, sys
kept = []
try:
    while len(kept) < 60000:
        kept.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if len(kept) % 2 else mmap.PROT_READ | mmap.PROT_WRITE))
except OSError:
    pass
print(len(kept), flush=True)
sys.stdin.read()
"""


@pytest.mark.check_all
def test_mappings_of_a_user(acting, program):
    """A user with processes of very many mappings keeps the service from acting, and from nothing else: it answers within a second."""
    with contextlib.ExitStack() as stack:
        for _ in range(12):  # before the program is observed: on a busy machine that would be long ago when they are ready
            process = helpers.start([*NOBODY, sys.executable, "-c", MAPPINGS], stdin=subprocess.PIPE)
            stack.callback(helpers.end_process, process)
            assert int(process.stdout.readline()) > 30000
        service = stack.enter_context(acting())
        began = helpers.ticks(service.service.process.pid)
        service.configure()
        acts = service.wait(lambda acts: acts["failed"] + acts["huge"] > 0)
        if acts["huge"] == 0:
            assert "to look takes too long" in service.lines_until("not put in place")[-1]
        before = helpers.ticks(service.service.process.pid)
        assert before - began < os.sysconf("SC_CLK_TCK")  # of a processor: how long it waits for one is the machine's
        slept = time.monotonic()
        time.sleep(10)
        assert helpers.ticks(service.service.process.pid) - before < 0.2 * (time.monotonic() - slept) * os.sysconf("SC_CLK_TCK")


# Executes a loop at OFFSET of FILE for as long as it lives.
LOOPER = r"""
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file, offset = os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
at = libc.mmap(None, os.fstat(file).st_size, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file, 0)
print("ready", flush=True)
ctypes.CFUNCTYPE(None)(at + offset)()
"""
LOOP = {"x86_64": b"\xeb\xfe", "aarch64": b"\x00\x00\x00\x14"}[os.uname().machine]


@pytest.mark.parametrize("kind", ["data", pytest.param("behind the text", marks=pytest.mark.check_all(ci=True))])
def test_a_users_loop(observe, program, roots_folder, tmp_path, kind):
    """A user can execute any file that he can read, and have it sampled: a database's file, or the data beside a program's text.
    Nothing is done to such pages."""
    path = roots_folder / f"looped-{os.getpid()}"
    size = program.stat().st_size
    offset = (size // helpers.HUGE + 2) * helpers.HUGE
    with open(path, "wb") as file:
        file.write(program.read_bytes() if kind != "data" else bytes(size))
        file.truncate(offset + helpers.HUGE)
        file.seek(offset)
        file.write(LOOP)
    path.chmod(0o755)
    scatter(path)
    try:
        with observe(path, lines=["act = yes", "delay = 0"]) as service:
            looper = helpers.start([*NOBODY, sys.executable, "-c", LOOPER, path, offset])
            try:
                assert looper.stdout.readline() == "ready\n", looper.stderr.read()
                observed = service.wait_for(path, 50)
            finally:
                helpers.end_process(looper)
            observed = service.next_windows(1)
            found = observed_row(observed, path)
            assert not any(chunk["can_be_huge"] for chunk in found["chunks"] if chunk["offset"] == offset)
            if kind == "data":
                assert "no ELF file" in found["obstacle"]
            assert observed["acts"]["huge"] + observed["acts"]["failed"] == 0
    finally:
        path.unlink()


@pytest.mark.check_all
def test_unmounted(observe, program, tmp_path, roots_folder):
    """Observing a file keeps no file system busy."""
    folder, image = roots_folder / "disk", tmp_path / "disk"
    folder.mkdir(exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    assert helpers.run(["mke2fs", "-q", "-t", "ext4", image]).returncode == 0
    if helpers.run(["mount", "-o", "loop", image, folder]).returncode != 0:
        pytest.skip("no loop device here")
    is_mounted = True
    try:
        shutil.copy(program, folder / "program")
        (folder / "program").chmod(0o755)
        with observe(f"{folder}/*", lines=OBSERVES) as service:
            with running([str(folder / "program"), FOREVER]):
                service.wait_for(folder / "program", 50)
            # The service's mount namespace has a copy of the mount, which goes with it unless a file is open.
            assert helpers.run(["nsenter", "-t", service.process.pid, "-m", "umount", folder]).returncode == 0
            assert helpers.run(["umount", folder]).returncode == 0
            is_mounted = False
            write_configuration(service.configuration, f"{folder}/*", lines=ACTS)
            service.process.send_signal(signal.SIGHUP)
            observed = service.wait(lambda observed: observed["acts"]["failed"] > 0)
            assert "it cannot be read any more" in helpers.next_line(service.process) and observed["acts"]["huge"] == 0
    finally:
        if is_mounted:
            helpers.run(["umount", folder])
        folder.rmdir()


@pytest.mark.check_all
@pytest.mark.parametrize(("call", "n"), [("fadvise64", 1), ("madvise", 1), ("madvise", 3)])
def test_killed(acting, program, tmp_path, call, n):
    """The service is killed before one of its steps: the program is as before, and the next service begins."""
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    plain = helpers.run([str(program), "1000", "touch"])
    before = program.read_bytes()
    log = tmp_path / "trace"
    trace = ["strace", "-f", "-o", log, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}"]
    with contextlib.suppress(AssertionError), acting(prefix=trace) as service:
        [traced] = pathlib.Path(f"/proc/{service.service.process.pid}/task/{service.service.process.pid}/children").read_text().split()
        write_configuration(service.service.configuration, program, lines=ACTS)
        os.kill(int(traced), signal.SIGHUP)  # strace takes none
        helpers.wait_until(lambda: service.service.process.poll() is not None, ACTED, "its end")
    calls = collections.Counter(line.split()[0] for line in log.read_text().splitlines() if f" {call}(" in line)
    assert max(calls.values(), default=0) == n, calls
    assert program.read_bytes() == before
    after = helpers.run([str(program), "1000", "touch"])
    assert (after.returncode, after.stdout, after.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    with acting() as service:
        service.configure()
        huge_or_skip(service)
        assert program.read_bytes() == before


@pytest.mark.parametrize(("line", "words"), [
    ("act = yes", "write observe = yes"), ("act = perhaps", "yes or no"), ("canary = 5 %", "without %"), ("canary = 101", "0 to 100"),
    ("delay = -1", "0 to 86400"), ("rate = 0", "1 to 60"), ("rate = 1000", "1 to 60"), ("budget = 1", "2 to 1048576")])
def test_mistakes(tmp_path, root, line, words):
    (tmp_path / "hugeld.conf").write_text(f"{line}\n")
    helpers.one_line(helpers.hugeld("service", "--dry-run", "--config", tmp_path / "hugeld.conf"), 2, words)
