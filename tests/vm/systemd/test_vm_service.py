# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld.service as it is installed: it makes the images of enabled files, holds them, follows their files, puts observed files in
place, is reloaded and stopped, and started anew where something holds it; and the groups to which images that root makes are
charged."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

import helpers
import vmguest
from calls import build_calls
from pagecache import scatter
from smaps import read_smaps

CONFIGURATION = pathlib.Path("/etc/hugeld/hugeld.conf")
PARANOID = pathlib.Path("/proc/sys/kernel/perf_event_paranoid")
SLICE = pathlib.Path("/sys/fs/cgroup/hugeld.slice")
DISK = "/dev/nvme0n2"
SECONDS = 60  # its pace is some seconds, and the processor may be emulated


def systemctl(*arguments):
    return helpers.run(["systemctl", *arguments], timeout=120)


def show(what):
    return systemctl("show", "--value", "-p", what, "hugeld.service").stdout.strip()


def journal():
    assert helpers.run(["journalctl", "--sync"]).returncode == 0
    return helpers.run(["journalctl", "-q", "-o", "cat", f"_SYSTEMD_INVOCATION_ID={show('InvocationID')}"]).stdout


def images():
    return [i for store in helpers.hugeld_json("share", "list")["stores"] for i in store["images"]]


def fresh(*paths):
    """The images, once there are those of PATHS and no others, and a process would find each."""
    wanted = sorted(str(path) for path in paths)

    def look():
        found = images()
        return found if sorted(i["path"] for i in found if i["state"] == "fresh") == wanted and len(found) == len(wanted) else []

    return helpers.wait_until(look, SECONDS, f"images of {wanted}")


def held():
    """Bytes of images that the service maps by huge entries."""
    return sum(m.kb["ShmemPmdMapped"] * 1024 for m in read_smaps(int(show("MainPID"))) if m.name.startswith("/run/hugeld/"))


def shmem(group):
    return int(re.search(r"^shmem (\d+)$", (pathlib.Path(group) / "memory.stat").read_text(), re.M)[1])


def bytes_of(found):
    return sum(i["huge_pages"] for i in found) * helpers.HUGE


@pytest.fixture(autouse=True)
def calm():
    """An emulated machine waits for its disk all the time, and the service makes no image while programs wait."""
    text = pathlib.Path("/run/calm")
    text.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    covered = [path for path in ("/proc/pressure/io", "/proc/pressure/memory") if os.path.exists(path)]
    for path in covered:
        assert helpers.run(["mount", "--bind", text, path]).returncode == 0
    yield
    for path in covered:
        assert helpers.run(["umount", path]).returncode == 0
    text.unlink()


@pytest.fixture
def program(service):
    """The service of the tests, where root alone can write to it."""
    there = pathlib.Path("/usr/local/bin/kept")
    shutil.copy(service, there)
    there.chmod(0o755)
    yield there
    for path in there.parent.glob("kept*"):
        path.unlink()


@pytest.fixture
def start(program):
    """start(): hugeld.service with the program enabled; the images."""
    def begin():
        CONFIGURATION.parent.mkdir(exist_ok=True)
        CONFIGURATION.write_text(f"enabled = {program}\n")
        assert systemctl("daemon-reload").returncode == 0
        started = systemctl("start", "hugeld.service")
        assert started.returncode == 0, (started.stderr, journal())
        found = images()
        assert [(i["path"], i["state"]) for i in found] == [(str(program), "fresh")], (found, journal())
        assert helpers.wait_until(lambda: held() == bytes_of(found) > 0, SECONDS, "what it holds")
        return found

    yield begin
    systemctl("stop", "hugeld.service")
    helpers.hugeld("share", "remove", "--all", "--force")
    CONFIGURATION.unlink(missing_ok=True)


def stop():
    stopped = systemctl("stop", "hugeld.service")
    assert stopped.returncode == 0, stopped.stderr
    assert (show("Result"), show("ExecMainStatus"), show("NRestarts")) == ("success", "0", "0"), journal()


def test_enabled(program):
    """As the manual has it, after `make install`: a program is enabled, and the unit that was installed makes its image at boot."""
    assert helpers.hugeld("enable", program).returncode == 0
    try:
        enabled = systemctl("enable", "--now", "hugeld")
        assert enabled.returncode == 0, (enabled.stderr, journal())
        assert show("FragmentPath") == "/usr/local/lib/systemd/system/hugeld.service"
        found = fresh(program)
        refused = helpers.hugeld("reset")
        assert refused.returncode == 1 and "stop it first" in refused.stderr and images() == found
        stop()
        helpers.hugeld("reset")
        assert not os.path.exists("/run/hugeld") and not os.path.exists("/run/hugeld-service")
        assert systemctl("start", "multi-user.target").returncode == 0  # as at boot
        fresh(program)
        assert helpers.hugeld("disable", program).returncode == 0 and not CONFIGURATION.exists() and images() == []
    finally:
        systemctl("disable", "--now", "hugeld")
        helpers.hugeld("reset")
        CONFIGURATION.unlink(missing_ok=True)
    assert show("ActiveState") == "inactive" and not os.path.exists("/run/hugeld")


def test_started_and_stopped(start):
    """It reports the images that it holds; they stay, and are charged to its slice; its sandbox hindered nothing."""
    found = start()
    assert (show("ActiveState"), show("SubState"), show("Slice")) == ("active", "running", "hugeld.slice")
    assert f"1 images on {found[0]['huge_pages']} huge pages" in show("StatusText")
    assert shmem(SLICE) >= bytes_of(found)
    stop()
    assert images() == found and "hugeld:" not in journal()


def test_reload(start, program):
    """The configuration is read again."""
    start()
    second = program.with_name("kept-too")
    shutil.copy(program, second)
    CONFIGURATION.write_text(f"enabled = {program}\nenabled = {second}\n")
    assert systemctl("reload", "hugeld.service").returncode == 0, journal()
    found = fresh(program, second)
    assert helpers.wait_until(lambda: held() == bytes_of(found), SECONDS, "what it holds")
    assert show("ActiveState") == "active"
    stop()


def test_undone(start):
    """Neither a reload, as by dpkg's trigger, nor another start makes anything, as long as the switch is there."""
    start()
    undone = helpers.hugeld("service", "undo")
    assert undone.returncode == 0, (undone.stderr, journal())
    try:
        for action in ("reload", "restart"):
            assert systemctl(action, "hugeld.service").returncode == 0, journal()
            assert show("ActiveState") == "active" and not os.path.exists("/run/hugeld"), journal()
    finally:
        os.unlink("/run/hugeld-service/stop")
    assert systemctl("reload", "hugeld.service").returncode == 0, journal()
    assert helpers.wait_until(lambda: held() == bytes_of(images()) > 0, SECONDS, "what it holds")
    stop()


def test_hard_link(unit, start, program):
    """perf record makes one for its build-id cache: the same image gets its new key, and a process that starts then has it."""
    [before] = start()
    inode = os.stat(before["image"]).st_ino
    os.link(program, program.with_name("kept-link"))
    [after] = fresh(program)
    assert after["key"] != before["key"] and os.stat(after["image"]).st_ino == inode
    stop()
    one = unit([f"ExecStart={helpers.HUGELD} run -- {program}"])
    assert one.start().returncode == 0 and one.said(1), one.journal()
    assert after["image"] in pathlib.Path(f"/proc/{one.pid()}/maps").read_text(), one.journal()
    one.stop()


def test_upgrade(start, program):
    [before] = start()
    new = program.with_name("kept-new")
    shutil.copy(program, new)
    os.replace(new, program)
    [after] = fresh(program)
    assert after["key"] != before["key"] and not os.path.exists(before["image"])
    stop()


def test_unmounted(start, program):
    """The numbers of a file on a disk that is gone may be another file's next, so its image is removed with it."""
    folder = pathlib.Path("/mnt/second")
    folder.mkdir(exist_ok=True)
    start()
    assert helpers.run(["mount", "-t", "ext4", DISK, folder]).returncode == 0
    try:
        there = folder / "kept"
        shutil.copy(program, there)
        added = helpers.hugeld("share", "add", "--way=image", "--any-disk", there)
        assert added.returncode == 0, added.stderr
        found = fresh(program, there)
        assert helpers.wait_until(lambda: held() == bytes_of(found), SECONDS, "what it holds")
    finally:
        unmounted = helpers.run(["umount", folder])
    assert unmounted.returncode == 0, unmounted.stderr
    found = fresh(program)
    assert helpers.wait_until(lambda: held() == bytes_of(found), SECONDS, "what it holds")
    stop()


def test_appears(start, program):
    """A disk is mounted while the service runs, and with it an enabled file: both come into its sandbox."""
    folder = pathlib.Path("/mnt/second")
    folder.mkdir(exist_ok=True)
    start()
    there = folder / "kept"
    CONFIGURATION.write_text(f"enabled = {program}\nenabled = {there}\nany_disk = yes\n")
    assert systemctl("reload", "hugeld.service").returncode == 0, journal()
    fresh(program)
    assert helpers.run(["mount", "-t", "ext4", DISK, folder]).returncode == 0
    try:
        shutil.copy(program, there)
        found = fresh(program, there)
        assert helpers.wait_until(lambda: held() == bytes_of(found), SECONDS, "what it holds")
        there.unlink()
    finally:
        unmounted = helpers.run(["umount", folder])
    assert unmounted.returncode == 0, unmounted.stderr
    fresh(program)
    stop()


def test_held_up(start):
    """A file system makes it wait for ever: systemd ends it, and another one holds the images. A service that goes on is not
    ended."""
    folder = pathlib.Path("/run/systemd/system/hugeld.service.d")
    folder.mkdir(parents=True)
    (folder / "watchdog.conf").write_text("[Service]\nWatchdogSec=4\nRestartSec=1\n")
    try:
        found = start()
        first = int(show("MainPID"))
        time.sleep(10)
        assert (int(show("MainPID")), show("NRestarts")) == (first, "0"), journal()
        os.kill(first, signal.SIGSTOP)
        assert helpers.wait_until(lambda: show("NRestarts") == "1" and show("ActiveState") == "active", SECONDS, "another one")
        assert int(show("MainPID")) != first and not os.path.exists(f"/proc/{first}/exe")
        assert helpers.wait_until(lambda: held() == bytes_of(found) > 0, SECONDS, "what it holds")
        assert images() == found
    finally:
        systemctl("stop", "hugeld.service")
        shutil.rmtree(folder)
        systemctl("daemon-reload")


@pytest.fixture
def acted(builder):
    """A program that computes, on xfs, where root alone can write."""
    if not vmguest.has_file_system("xfs"):
        vmguest.absent("no xfs")
    folder = pathlib.Path("/mnt/acted")
    folder.mkdir()
    assert helpers.run(["mount", "-t", "xfs", vmguest.find_disk(0, b"XFSB"), folder]).returncode == 0
    built = builder.once("calls", lambda made: build_calls(made / "calls", "-no-pie", mib=4))
    shutil.copy(built, folder / "calls")
    scatter(folder / "calls")
    yield folder / "calls"
    systemctl("stop", "hugeld.service")
    CONFIGURATION.unlink()
    assert helpers.run(["umount", folder]).returncode == 0
    folder.rmdir()


def observed():
    return helpers.hugeld_json("service", "status")["observed"]


def test_acts(acted):
    """It observes and acts inside of its sandbox, and the program is huge for all users that start it."""
    lines = ["observe = yes", "act = yes", "delay = 0", "window = 4", f"eligible = {acted}"]
    CONFIGURATION.parent.mkdir(exist_ok=True)
    CONFIGURATION.write_text("".join(f"{line}\n" for line in [*lines, "interval = 8", "canary = 0"]))
    PARANOID.write_text("2")  # as the manual says of Debian's kernels
    before = acted.read_bytes()
    assert systemctl("start", "hugeld.service").returncode == 0, journal()
    process = helpers.start([acted, 10**12])
    try:
        helpers.wait_for(observed, lambda found: any(file["samples"] >= 30 for file in found["files"]), 2 * SECONDS, pause=0.5)
    finally:
        helpers.end_process(process)
    CONFIGURATION.write_text("".join(f"{line}\n" for line in [*lines, "interval = 600"]))  # samples are not forgotten meanwhile
    assert systemctl("reload", "hugeld.service").returncode == 0, journal()
    acts = helpers.wait_for(observed, lambda found: found["acts"]["huge"] + found["acts"]["failed"] > 0, 2 * SECONDS, pause=0.5)["acts"]
    assert acts["huge"] > 0, journal()
    assert "put in place in" in journal() and acted.read_bytes() == before
    stop()
    process = helpers.start([acted, 0, "wait"], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline()
        assert sum(1024 * m.kb["FilePmdMapped"] for m in read_smaps(process.pid) if m.name == str(acted)) >= helpers.HUGE
    finally:
        helpers.end_process(process)


def test_share_add_pays_elsewhere(unit, start, program):
    start()
    other = program.with_name("kept-added")
    shutil.copy(program, other)
    before = shmem(SLICE)
    one = unit([f"ExecStart={helpers.HUGELD} share add --way=image {other}", "MemoryMax=128M", "Type=oneshot",
                "RemainAfterExit=yes"])
    assert one.start().returncode == 0, one.journal()
    [made] = [i for i in fresh(program, other) if i["path"] == str(other)]
    assert shmem(SLICE) - before >= made["huge_pages"] * helpers.HUGE > 0
    assert not [group for group in SLICE.glob("*.scope") if (group / "cgroup.procs").read_text()]
