# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld service` with `act = yes` on this kernel's ext4, xfs and overlayfs: text that was observed becomes huge while a process runs
it, or when no process maps it, or the service says that it can do neither; and the rights that the service needs to observe at
all."""

import contextlib
import json
import mmap
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time

import pytest

import helpers
import vmguest
from calls import build_calls
from pagecache import scatter
from smaps import read_smaps

CONFIGURATION = pathlib.Path("/run/hugeld.conf")
CALM = pathlib.Path("/tmp/calm")
PARANOID = pathlib.Path("/proc/sys/kernel/perf_event_paranoid")
SECONDS = 150  # a processor may be emulated, and a guest that says nothing for three minutes is ended
RELEASE = tuple(int(word) for word in platform.release().split("-")[0].split(".")[:2])


def build(builder):
    return pathlib.Path(builder.once("calls", lambda folder: build_calls(folder / "calls", "-no-pie", mib=4)))


@contextlib.contextmanager
def mounted(folder, *arguments):
    folder.mkdir(exist_ok=True)
    result = helpers.run(["mount", *arguments, folder])
    if result.returncode != 0:
        vmguest.absent(f"it cannot be mounted: {result.stderr.strip()}")
    try:
        yield folder
    finally:
        assert helpers.run(["umount", folder]).returncode == 0
        folder.rmdir()


@contextlib.contextmanager
def folder_on(kind):
    """An empty folder on ext4 or xfs, where root alone can write."""
    if kind == "xfs":
        if not vmguest.has_file_system("xfs"):
            vmguest.absent("no xfs")
        with mounted(pathlib.Path("/hugeld/xfs"), "-t", "xfs", vmguest.find_disk(0, b"XFSB")) as folder:
            yield folder
        return
    folder = pathlib.Path("/hugeld/acted")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=["ext4", "xfs"])
def program(request, builder):
    with folder_on(request.param) as folder:
        path = folder / "calls"
        shutil.copy(build(builder), path)
        path.chmod(0o755)
        scatter(path)
        yield path
        path.unlink()


@pytest.fixture(autouse=True)
def calm():
    """An emulated machine waits for its disk all the time."""
    covered = [path for path in ("/proc/pressure/io", "/proc/pressure/memory") if os.path.exists(path)]
    CALM.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    for path in covered:
        assert helpers.run(["mount", "--bind", CALM, path]).returncode == 0
    yield
    for path in covered:
        helpers.run(["umount", path])


class Service:
    def __init__(self, process, log):
        self.process, self.log = process, log

    def said(self):
        return self.log.read_text()

    def observed(self):
        result = helpers.hugeld("service", "status", "--json", "--config", CONFIGURATION)
        return json.loads(result.stdout)["observed"]

    def wait(self, condition):
        return helpers.wait_for(self.observed, condition, SECONDS, pause=0.3)

    def configure(self, *lines):
        write(*lines)
        self.process.send_signal(signal.SIGHUP)


def write(*lines):
    CONFIGURATION.write_text("".join(f"{line}\n" for line in ("observe = yes", "act = yes", "delay = 0", "eligible = /hugeld/*", *lines)))


@pytest.fixture
def service(tmp_path):
    """A service that observes, and does not act yet."""
    log = tmp_path / "log"
    write("window = 4", "interval = 8", "canary = 0")
    with open(log, "w") as file:
        process = helpers.start([helpers.HUGELD, "service", "--config", CONFIGURATION], stderr=file)
    try:
        yield Service(process, log)
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)  # the latter: it had hardly begun
    finally:
        helpers.end_process(process)
        CONFIGURATION.unlink()


@contextlib.contextmanager
def running(path, *words):
    process = helpers.start([path, *words], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        helpers.end_process(process)


def huge_bytes(path):
    """The bytes that a process that starts now has on huge pages of the page cache."""
    with running(path, 0, "wait") as process:
        assert process.stdout.readline()
        return 1024 * sum(m.kb["FilePmdMapped"] for m in read_smaps(process.pid) if m.name == str(path))


def samples(observed, path):
    return next((file["samples"] for file in observed["files"] if file["path"] == str(path)), 0)


def can_join(path):
    """Whether this kernel takes MADV_COLLAPSE for a mapping of the file, as image/in-place.c asks."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as room:
        try:
            room.madvise(25, 0, mmap.PAGESIZE)
        except OSError:
            return False
    return True


def act(service):
    """The results of acts, once there are any. An act that took too long is tried again a minute later."""
    service.configure("window = 4", "interval = 600")
    acts = service.wait(lambda observed: observed["acts"]["huge"] + observed["acts"]["failed"] > 0)["acts"]
    if acts["huge"] == 0 and "or to look takes too long" in service.said():
        acts = service.wait(lambda observed: observed["acts"]["huge"] > 0 or observed["acts"]["failed"] > 1)["acts"]
    return acts


def test_acts(service, program):
    """The service acts while a process runs the program, where the kernel joins pages; else when none maps it.  It is the same
    program."""
    before, joins = program.read_bytes(), can_join(program)
    with running(program, 10**12) as process:
        service.wait(lambda observed: samples(observed, program) >= 30)
        acts = act(service) if joins else None
        assert process.poll() is None
    if acts is None:
        acts = act(service)
    said = service.said()
    assert program.read_bytes() == before
    if acts["huge"] == 0:
        assert "keeps files on small pages; make an image" in said and huge_bytes(program) == 0, said
        assert "xfs" not in str(program) and RELEASE < (6, 16), said
        vmguest.absent("nothing can be put in place here, and the service says so")
    assert f"mapped by {'1 process' if joins else '0 processes'}\n" in said and huge_bytes(program) >= helpers.HUGE, said
    assert joins or RELEASE < (7, 2)


def test_overlay(service, program, tmp_path):
    """A layer's file is one file to all overlays: if it is put in place there, it is so for each container."""
    if not vmguest.has_file_system("overlay"):
        vmguest.absent("no overlayfs")
    added = helpers.hugeld("share", "add", "--way=place", "--any-disk", program)
    try:
        if added.returncode != 0:
            vmguest.absent(f"it cannot be put in place: {added.stderr.strip()}")
        with overlays(program.parent, tmp_path, ["one", "two"]) as layers:
            for layer in layers:
                assert huge_bytes(layer / program.name) >= helpers.HUGE
    finally:
        helpers.hugeld("share", "remove", "--all")


@contextlib.contextmanager
def overlays(layer, folder, names):
    """Two overlays of LAYER, with all else in FOLDER."""
    with contextlib.ExitStack() as stack:
        found = []
        for name in names:
            for part in "upper", "work":
                (folder / name / part).mkdir(parents=True)
            options = f"lowerdir={layer},upperdir={folder}/{name}/upper,workdir={folder}/{name}/work"
            found.append(stack.enter_context(mounted(pathlib.Path(f"/mnt/{name}"), "-t", "overlay", "-o", options, "overlay")))
        yield found


@pytest.mark.parametrize("where", ["tmpfs", "layer's"])
def test_mapped_through_overlays(program, tmp_path, where):
    """A process that maps a layer's file by an overlay counts as one that maps it, although its maps name another file: 16
    processes would wait for a page to be joined, and to read it anew would take it from them."""
    if not vmguest.has_file_system("overlay"):
        vmguest.absent("no overlayfs")
    layer, before = program.parent / "layer", program.read_bytes()
    layer.mkdir()
    os.link(program, layer / program.name)
    folder = tmp_path if where == "tmpfs" else program.parent / "upper"
    try:
        with overlays(layer, folder, ["one", "two"]) as layers, contextlib.ExitStack() as stack:
            for at in layers:
                stack.enter_context(mapped_by(at / program.name, 8))
            added = helpers.hugeld("share", "add", "--way=place", "--any-disk", program)
            assert added.returncode == 1 and ("processes map the file" in added.stderr or "it cannot be known" in added.stderr), added
            assert huge_bytes(program) == 0 and program.read_bytes() == before
    finally:
        helpers.hugeld("share", "remove", "--all")
        for left in layer, program.parent / "upper":
            shutil.rmtree(left, ignore_errors=True)


ASLEEP = 10  # seconds: longer than from one window to the next
INTERVAL = 8


def sleep_for(seconds):
    """The machine, in S3, from which its clock wakes it."""
    alarm, state = pathlib.Path("/sys/class/rtc/rtc0/wakealarm"), pathlib.Path("/sys/power/state")
    if not alarm.exists() or not state.exists() or "mem" not in state.read_text().split():
        vmguest.absent("this kernel cannot suspend, or not wake by the clock")
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    alarm.write_text("0")
    alarm.write_text(f"+{seconds}")
    try:
        state.write_text("mem")
    except OSError as error:
        vmguest.absent(f"this machine does not suspend: {error}")
    assert time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic() - asleep > seconds / 2


def in_window(service):
    """Whether it has rings of samples."""
    return bool(helpers.descriptors(service.process.pid, "perf_event"))


@pytest.mark.parametrize("program", ["ext4"], indirect=True)
def test_suspended(service, program):
    """In a window (once: QEMU's clock wakes it at once the second time): missed windows are not made up for, those after that are
    as usual, and then it acts."""
    with running(program, 10**12) as process:
        service.wait(lambda observed: samples(observed, program) >= 30)
        helpers.wait_until(lambda: in_window(service), SECONDS, "a window")
        sleep_for(ASLEEP)
        before, began, ticks = service.observed(), time.monotonic(), helpers.ticks(service.process.pid)
        after = service.wait(lambda observed: observed["windows"] >= before["windows"] + 2)
        assert time.monotonic() - began > 0.75 * INTERVAL - 1 and process.poll() is None
        used = (helpers.ticks(service.process.pid) - ticks) / os.sysconf("SC_CLK_TCK")
        assert used < 0.3 * (time.monotonic() - began) and after["windows_lost"] == 0
    acts = act(service)
    assert acts["huge"] + acts["failed"] >= 1, service.said()


YEARS = 5 * 365 * 86400


@contextlib.contextmanager
def clock_set(seconds):
    """The machine's clock is later by so many seconds."""
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)
    try:
        yield
    finally:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - seconds)


@pytest.mark.parametrize("program", ["ext4"], indirect=True)
@pytest.mark.parametrize("years", [YEARS, -YEARS], ids=["on", "back"])
def test_clock_is_set(service, program, years):
    """The clock is set by years, in a window: no window is lost, and the service acts; the file's change lies in the future then,
    or long ago."""
    with running(program, 10**12):
        service.wait(lambda observed: samples(observed, program) >= 30)
        helpers.wait_until(lambda: in_window(service), SECONDS, "a window")
        with clock_set(years):
            before = service.observed()["windows"]
            observed = service.wait(lambda observed: observed["windows"] >= before + 2 and samples(observed, program) >= 30)
            assert observed["windows_lost"] == 0
            service.configure("window = 4", "interval = 600", "delay = 3")
            service.wait(lambda observed: observed["acts"]["huge"] + observed["acts"]["failed"] > 0)


def state_of(path):
    files = json.loads(helpers.hugeld("service", "status", "--json", "--config", CONFIGURATION).stdout)["files"]
    return next((file["state"] for file in files if file["path"] == str(path)), None)


@pytest.mark.parametrize("program", ["ext4"], indirect=True)
def test_changed_in_the_future(service, program):
    """The file was changed in the future, by a clock that was set back since: it gets no image, with one line, and one when it is
    touched."""
    lines = ["window = 4", f"interval = {INTERVAL}", "canary = 0", "any_disk = yes", f"enabled = {program}"]
    try:
        with clock_set(-YEARS):
            service.configure(*lines)
            helpers.wait_until(lambda: "its ctime is in the future; fix the clock" in service.said(), SECONDS, "a line")
            assert state_of(program) == "pending"
            os.utime(program)
            helpers.wait_until(lambda: state_of(program) == "fresh", SECONDS, "its image")
            assert service.said().count("in the future") == 1, service.said()
    finally:
        helpers.hugeld("share", "remove", "--all", "--force")


# As many processes that map the second huge page of a file, all of it, until standard input ends.
MAPPERS = r"""
import mmap, os, sys
file, huge = os.open(sys.argv[1], os.O_RDONLY), 2 << 20
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        room = mmap.mmap(file, huge, mmap.MAP_PRIVATE, mmap.PROT_READ, offset=huge)
        assert sum(room[at] >= 0 for at in range(0, huge, 4096)) == 512
        os.write(1, b".")
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""


@contextlib.contextmanager
def mapped_by(path, n):
    process = helpers.start([sys.executable, "-c", MAPPERS, path, n], stdin=subprocess.PIPE)
    try:
        for _ in range(n):
            assert process.stdout.read(1) == ".", process.stderr.read()
        yield process
    finally:
        helpers.end_process(process)


def test_mapped_by_many(service, program):
    """All of them would wait for a page to be joined (on 7.3 and ext4, emulated: 66 ms, 814 ms for 1000, and a reader as long), so it stays
    as it is, and the service says so."""
    with mapped_by(program, 16) as mappers:
        with running(program, 10**12):
            service.wait(lambda observed: samples(observed, program) >= 30)
            acts = act(service)
        assert acts["huge"] == 0 and "processes map the file" in service.said() and mappers.poll() is None
        assert huge_bytes(program) == 0


# Keeps only the CAPABILITIES and executes the rest of its arguments.
CONFINE = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
kept = set(map(int, sys.argv[1].split(",")))
for capability in range(64):
    if capability not in kept:
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.argv[2], sys.argv[2:])
"""
PTRACE, SYS_ADMIN, PERFMON = 19, 21, 38


def test_paranoid():
    """Where kernel.perf_event_paranoid is 3, as it is by default on Debian, CAP_PERFMON is not enough, on any of its kernels; at 2
    it is enough; hugeld.service has it."""
    before, found = PARANOID.read_text(), {}
    try:
        for value in "3", "2":
            PARANOID.write_text(value)
            for name, capabilities in (("perfmon", [PTRACE, PERFMON]), ("sys_admin", [PTRACE, SYS_ADMIN])):
                result = helpers.run([sys.executable, "-c", CONFINE, ",".join(map(str, capabilities)), helpers.HUGELD, "survey", "--json",
                                      "--seconds", "1"], timeout=300)
                found[value, name] = "perf_event_paranoid" not in result.stderr
                assert found[value, name] or "set it to 2" in result.stderr
    finally:
        PARANOID.write_text(before)
    assert found == {("3", "perfmon"): False, ("3", "sys_admin"): True, ("2", "perfmon"): True, ("2", "sys_admin"): True}
