# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld service`: the images that it holds, the files that it watches, and that everything is as before when it has ended."""

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

import helpers
from pagecache import evict
from smaps import read_smaps
from worlds import APP, SYSTEM, TOUCHER, USER, disk

pytestmark = pytest.mark.check_all(ci=True)  # the service goes


REST = 3  # seconds between two looks at one file
CONFIGURATION = "/etc/hugeld/hugeld.conf"
CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
COVERS = itertools.count()


def cover(world, path, text):
    """Covers the file PATH of /proc in the world with one that has TEXT."""
    file = f"/run/cover-{next(COVERS)}"
    world.path(file).write_text(text)
    assert world.run("mount", "--bind", file, path).returncode == 0


def be_calm(world):
    """Nothing seems to wait, even on a busy machine: the service makes no image while programs wait."""
    for path in ("/proc/pressure/io", "/proc/pressure/memory"):
        if os.path.exists(path):
            cover(world, path, CALM)


@contextlib.contextmanager
def service(world, prefix=(), options=(), **streams):
    """The process, once it has something to hold."""
    be_calm(world)
    process = helpers.start(world.command(*prefix, "/run/bin/hugeld", "service", *options), **streams)
    try:
        yield process
        assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(helpers.PATIENCE) == 0, process.stderr.read()
    finally:
        helpers.end_process(process)


def held(process):
    """Bytes of images that it maps by huge entries."""
    return sum(m.kb["ShmemPmdMapped"] * 1024 for m in read_smaps(process.pid) if m.name.startswith(SYSTEM))


def holds(process, image):
    return helpers.wait_until(lambda: held(process) == image["huge_pages"] * helpers.HUGE > 0)


def wait_for(world, condition, patience=helpers.SOON):
    """The one image, once CONDITION is true of it."""
    found = []

    def look():
        found[:] = world.list()
        return len(found) == 1 and condition(found[0])

    assert helpers.wait_until(look, patience), found
    return found[0]


def enable(world, *entries, lines=()):
    world.path(CONFIGURATION).parent.mkdir(exist_ok=True)
    world.path(CONFIGURATION).write_text("".join(f"enabled = {entry}\n" for entry in entries) + "".join(f"{line}\n" for line in lines))


def replace(world, path):
    """PATH is another file, with the same bytes."""
    shutil.copy(world.path(path), world.path(f"{path}-new"))
    world.path(f"{path}-new").rename(world.path(path))


def wait_for_rest(process):
    """Waits until it has read nothing for longer than it rests; the number of bytes that it has read."""
    def bytes_read():
        return int(re.search(r"rchar: (\d+)", pathlib.Path(f"/proc/{process.pid}/io").read_text())[1])

    def rests():
        before = bytes_read()
        time.sleep(REST + 1)
        return bytes_read() == before

    helpers.wait_until(rests, helpers.PATIENCE, "its rest")
    return bytes_read()


def state(world):
    [image] = world.list()
    return image["state"], image["huge_pages"]


def test_holds_what_is_enabled(world):
    """Images of enabled files are held, and so are images that are added meanwhile.  An image can be removed although it is
    held."""
    enable(world, APP)
    with service(world) as process:
        image = wait_for(world, lambda image: image["state"] == "fresh")
        assert holds(process, image) and image["processes"] == 0
        shutil.copy(world.path(APP), world.path("/run/programs/second"))
        world.add("/run/programs/second")
        assert helpers.wait_until(lambda: held(process) == 2 * image["huge_pages"] * helpers.HUGE)
        assert world.share("remove", "--all").returncode == 0 and world.left() == []
        assert helpers.wait_until(lambda: held(process) == 0)


def test_nobody_splits_what_is_held(world):
    world.add(APP)
    [image] = world.list()
    with service(world) as process:
        assert holds(process, image)
        result = world.run("/usr/bin/python3", "-c", TOUCHER, image["image"], helpers.HUGE, 20, user=USER)
        assert result.returncode == 0, result
        assert world.share("check").returncode == 0 and held(process) == image["huge_pages"] * helpers.HUGE


@pytest.mark.check_all
def test_what_lies_beside_is_nothing_to_it(world):
    """Any user may change attributes in /tmp, which lies in a folder of every original, and make root read all images for ever."""
    theirs = world.path("/run/theirs")
    theirs.mkdir()
    shutil.chown(theirs, USER, USER)
    world.add("--way=image", APP)
    [image] = world.list()
    with service(world) as process:
        assert holds(process, image)
        before = wait_for_rest(process)
        for _ in range(3):
            assert world.run("touch", "/run/theirs", user=USER).returncode == 0
        time.sleep(1)
        assert wait_for_rest(process) - before < world.path(APP).stat().st_size
        world.path("/run/programs").chmod(0o700)
        wait_for(world, lambda image: image["state"] == "pending")


@pytest.mark.parametrize("how", ["link", "replaced", "overwritten"])
def test_follows_the_file(world, how):
    """perf record makes a hard link, which changes ctime; the image gets its new key and is not copied for that."""
    world.add(APP)
    [before] = world.list()
    inode = world.path(before["image"]).stat().st_ino
    with service(world) as process:
        assert holds(process, before)
        if how == "link":
            os.link(world.path(APP), world.path("/run/programs/linked"))
        elif how == "replaced":
            replace(world, APP)
        else:
            with open(world.path(APP), "r+b") as file:
                file.seek(-1, os.SEEK_END)
                byte = file.read(1)
                file.seek(-1, os.SEEK_END)
                file.write(byte)
        after = wait_for(world, lambda image: image["state"] == "fresh" and image["key"] != before["key"])
        assert holds(process, after)
        assert (world.path(after["image"]).stat().st_ino == inode) == (how == "link")
        assert world.share("check").returncode == 0


def scarce(image):
    """A /proc/meminfo by which there is memory for IMAGE, and for nothing else."""
    kib = image["huge_pages"] * helpers.HUGE // 1024
    return f"MemTotal: {100 * kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib + 1024} kB\n"


@pytest.mark.parametrize("what", ["memory", "waiting"])
def test_makes_none_while_it_is_short(world, what):
    """No image of a changed file is made while memory is short, since other programs need it; an explicit request makes one."""
    world.add("--way=image", APP)
    [before] = world.list()
    with service(world) as process:
        assert holds(process, before)
        if what == "memory":
            cover(world, "/proc/meminfo", scarce(before))
        elif os.path.exists("/proc/pressure"):
            cover(world, "/proc/pressure/memory", CALM.replace("avg10=0.00", "avg10=60.00"))
        else:
            pytest.skip("this kernel has no pressure information")
        replace(world, APP)
        helpers.wait_until(lambda: state(world) == ("pending", 0), what="a pending image")
        assert {"memory": "less than 15 % of the memory", "waiting": "waited for memory"}[what] in helpers.next_line(process)
        if what == "memory":
            helpers.one_line(world.share("refresh", "--unattended"), 1, "less than 15 % of the memory", "hugeld share refresh")
            assert state(world) == ("pending", 0)
        assert world.share("refresh").returncode == 0
        after = wait_for(world, lambda image: image["state"] == "fresh")
        assert holds(process, after) and after["key"] != before["key"]


def failed(path):
    """How many images could not be made, as the metrics say."""
    with contextlib.suppress(OSError):
        return int(re.search(r"^hugeld_stored_failed_total (\d+)$", path.read_text(), re.M)[1])
    return 0


@pytest.mark.check_all
def test_tries_again_more_and_more_seldom(world, later):
    """An image is tried again after one minute, two, four and eight; here a second is a minute."""
    world.add("--way=image", APP)
    [before] = world.list()
    enable(world, lines=["metrics = /run/hugeld.prom"])
    fast = [word if not word.startswith("FAKETIME=") else "FAKETIME=+0 x60" for word in later if "DONT_FAKE" not in word]
    with service(world, fast) as process:
        assert holds(process, before)
        cover(world, "/proc/meminfo", scarce(before))
        replace(world, APP)
        path = world.path("/run/hugeld.prom")
        helpers.wait_until(lambda: failed(path) >= 1, what="a first attempt")
        began = time.monotonic()
        helpers.wait_until(lambda: failed(path) >= 5, helpers.PATIENCE, "four more attempts")
        assert time.monotonic() - began > 9  # minutes of its own: 1 + 2 + 4 + 8, less the time between two writes of metrics


def cached_bytes(path):
    libc = ctypes.CDLL(None)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as room:
        pages = ctypes.create_string_buffer(-(-len(room) // helpers.PAGE))
        assert libc.mincore(ctypes.addressof(ctypes.c_char.from_buffer(room)), len(room), pages) == 0
        return helpers.PAGE * sum(byte & 1 for byte in pages.raw)


@pytest.mark.check_all
def test_reads_nothing_that_has_not_changed(world):
    """Files that no process uses would take the place of others in memory, each hour and at each reload.  A person's check reads all."""
    world.add("--way=image", APP)
    enable(world, APP)
    path = world.path(APP)
    size = path.stat().st_size
    with service(world) as process:
        assert holds(process, world.list()[0])
        wait_for_rest(process)
        evict(path)
        assert cached_bytes(path) < size / 4
        process.send_signal(signal.SIGHUP)
        time.sleep(1)
        wait_for_rest(process)
        assert cached_bytes(path) < size / 4
        assert world.share("check").returncode == 0 and cached_bytes(path) > size / 2
        assert state(world)[0] == "fresh"


def test_what_could_not_be_made_at_first(world):
    """An image cannot be made, say at boot: it is pending, status and metrics say so, and the service makes it when something
    changes."""
    world.add("--way=image", APP)
    [image] = world.list()
    assert world.share("remove", "--all").returncode == 0
    enable(world, APP, lines=["metrics = /run/hugeld.prom"])
    cover(world, "/proc/meminfo", scarce(image))
    helpers.one_line(world.run("/run/bin/hugeld", "service", "--once"), 1, APP, "less than 15 % of the memory")
    assert state(world) == ("pending", 0)
    helpers.one_line(world.share("refresh", "--unattended"), 1, APP)
    assert state(world) == ("pending", 0)
    with service(world, options=["--keep-only"]) as process:
        metrics = world.path("/run/hugeld.prom")
        helpers.wait_until(lambda: metrics.exists() and "hugeld_stored_pending 1\n" in metrics.read_text(), what="metrics")
        assert [file["state"] for file in status(world)["files"]] == ["pending"]
        assert world.run("umount", "/proc/meminfo").returncode == 0
        world.path(APP).chmod(0o755)
        assert holds(process, wait_for(world, lambda image: image["state"] == "fresh"))


def test_another_way_of_the_same_file(world, tmp_path):
    """An image added by hand, from a disk that the configuration does not accept, stays when its file is enabled."""
    def make(file, tree):
        return ["mke2fs", "-q", "-t", "ext4", "-d", tree, file, "64M"]

    with disk(world, tmp_path, make) as app:
        time.sleep(0.1)
        world.add("--any-disk", "--way=image", app)
        before = world.list()
        enable(world, app)
        assert world.share("refresh").returncode == 1 and world.list() == before
        assert world.share("remove", "--all").returncode == 0


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_becomes_private(world, what):
    """Its image goes, and comes back when all users can read the file again."""
    world.add(APP)
    [before] = world.list()
    path = world.path(APP if what == "file" else "/run/programs")
    with service(world) as process:
        assert holds(process, before)
        path.chmod(0o700)
        wait_for(world, lambda image: (image["state"], image["huge_pages"]) == ("pending", 0))
        assert helpers.wait_until(lambda: held(process) == 0)
        path.chmod(0o755)
        assert holds(process, wait_for(world, lambda image: image["state"] == "fresh"))


def test_events_of_a_user(world):
    """A user makes events without end, in a folder beside the original's, as in /tmp beside /usr: the service looks at them fifty
    times a second at most, and still sees the other events."""
    def waits():
        [n] = re.findall(r"^voluntary_ctxt_switches:\s(\d+)$", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.M)
        return int(n)

    world.add("--way=image", APP)
    [image] = world.list()
    world.path("/run/shared").mkdir()
    world.path("/run/shared").chmod(0o777)
    script = "import os\nos.utime('/run/shared')\nprint(flush=True)\nwhile True:\n    os.utime('/run/shared')"
    with service(world) as process:
        assert holds(process, image)
        user = helpers.start(world.command("/usr/bin/python3", "-c", script, user=USER))
        try:
            assert user.stdout.readline(), user.stderr.read()
            before, began = waits(), time.monotonic()
            time.sleep(3)
            assert waits() - before < 200 * (time.monotonic() - began)
            world.path("/run/programs").chmod(0o700)
            wait_for(world, lambda image: image["state"] == "pending")
            assert user.poll() is None
        finally:
            helpers.end_process(user)


@contextlib.contextmanager
def holding_a_disk(world, tmp_path):
    """The service, which holds the image of a program on a disk at /run/disk."""
    def make(file, tree):
        return ["mke2fs", "-q", "-t", "ext4", "-d", tree, file, "64M"]

    with disk(world, tmp_path, make) as app:
        time.sleep(0.1)
        world.add("--any-disk", app)
        [image] = world.list()
        with service(world) as process:
            assert holds(process, image)
            yield process


@pytest.mark.parametrize("removed", [False, True])
def test_unmounted(world, tmp_path, removed):
    """The numbers of a file on a disk that is gone may be another's next, so its image goes at once; also if the file went first."""
    with holding_a_disk(world, tmp_path) as process:
        if removed:
            world.path("/run/disk/app").unlink()
        assert world.run("umount", "/run/disk").returncode == 0
        helpers.wait_until(lambda: world.left() == [] and held(process) == 0, 150)  # a failed try is repeated after 60


def test_unmounted_while_the_store_is_locked(world, tmp_path):
    """The store is locked, say by share refresh: the image goes when that has ended."""
    with holding_a_disk(world, tmp_path) as process:
        holder = helpers.start(world.command("flock", f"{SYSTEM}/.lock", "sh", "-c", "echo ready; exec cat"), stdin=subprocess.PIPE)
        try:
            assert holder.stdout.readline() == "ready\n"
            assert world.run("umount", "/run/disk").returncode == 0
            time.sleep(1)
            assert world.left() != []
        finally:
            helpers.end_process(holder)
        helpers.wait_until(lambda: world.left() == [] and held(process) == 0, what="the image to be gone")


@pytest.mark.check_all
def test_store_that_is_read_only(world, tmp_path):
    """A line says so once."""
    world.add("--way=image", APP)
    with open(tmp_path / "said", "w") as log, service(world, stderr=log) as process:
        assert holds(process, world.list()[0])
        assert world.run("mount", "-o", "remount,ro", SYSTEM).returncode == 0
        for mode in [0o755, 0o711] * 4:
            world.path("/run/programs").chmod(mode)
            time.sleep(1)
        world.path("/run/programs").chmod(0o755)
        helpers.wait_until((tmp_path / "said").read_text, what="a line")
        assert world.run("mount", "-o", "remount,rw", SYSTEM).returncode == 0
    said = (tmp_path / "said").read_text()
    assert said.count("cannot be locked") == 1 and said.count("\n") == 1, said


def test_watches_are_used_up(world):
    """A line says so once."""
    world.add("--way=image", APP)
    be_calm(world)
    script = ("/run/bin/hugeld service --keep-only & until ls -l /proc/$!/fd | grep -q signalfd; do sleep 0.1; done; "
              "for i in 1 2 3; do sleep 1; kill -HUP $!; done; sleep 1; kill $!; wait $!")
    result = world.run("sh", "-c", script, strace=["-e", "inject=inotify_add_watch:error=ENOSPC"])
    said = [line for line in result.stderr.splitlines() if line.startswith("hugeld: ")]
    assert (result.returncode, sum("the store cannot be watched" in line for line in said)) == (0, 1), result
    assert all("raise fs.inotify.max_user_watches" in line for line in said) and len(said) == 2, said


@pytest.mark.check_all
def test_store_is_exchanged(world):
    """The store is unmounted lazily and another one mounted there: the new one's images are held, the old one's are not."""
    def devices():
        lines = pathlib.Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        return {line.split()[3] for line in lines if line.split()[-1].startswith(f"{SYSTEM}/")}

    enable(world, APP)
    with service(world) as process:
        assert holds(process, wait_for(world, lambda image: image["state"] == "fresh"))
        [old] = devices()
        done = world.run("sh", "-c", f"umount -l {SYSTEM} && mount -t tmpfs -o mode=755,huge=always,size=64m none {SYSTEM}")
        assert done.returncode == 0, done
        world.add(APP)
        assert helpers.wait_until(lambda: devices() and old not in devices())
        assert holds(process, wait_for(world, lambda image: image["state"] == "fresh"))


def test_store_that_others_can_write(world):
    """A store that others can write is not used for as long as they can, so no image of it is held."""
    world.add("--way=image", APP)
    [image] = world.list()
    with service(world, stderr=subprocess.DEVNULL) as process:
        assert holds(process, image)
        world.path(SYSTEM).chmod(0o777)
        process.send_signal(signal.SIGHUP)
        helpers.wait_until(lambda: held(process) == 0, what="its end")
        world.path(SYSTEM).chmod(0o755)
        process.send_signal(signal.SIGHUP)
        assert holds(process, image)


def test_hup_reads_the_configuration_again(world):
    with service(world) as process:
        assert not world.path(SYSTEM).exists()
        enable(world, APP)
        helpers.wait_until(lambda: helpers.descriptors(process.pid, "signalfd"))
        process.send_signal(signal.SIGHUP)
        assert holds(process, wait_for(world, lambda image: image["state"] == "fresh"))


def test_only_one(world):
    world.add(APP)
    [image] = world.list()
    with service(world) as process:
        assert holds(process, image)
        second = world.run("/run/bin/hugeld", "service")
        assert second.returncode == 1 and "another one runs already" in second.stderr
    assert world.run("/run/bin/hugeld", "service", user=USER).stderr.startswith("hugeld: service: only root")


def test_once(world):
    enable(world, APP, "/run/none")
    result = world.run("/run/bin/hugeld", "service", "--once")
    assert result.returncode == 1 and result.stderr == "hugeld: /etc/hugeld/hugeld.conf: /run/none: there is no such file\n"
    enable(world, APP)
    result = world.run("/run/bin/hugeld", "service", "--once")
    assert (result.returncode, result.stderr) == (0, "") and [image["state"] for image in world.list()] == ["fresh"]


def test_killed(world):
    """Nothing of a killed service stays: images can be removed, and another one can begin."""
    world.add(APP)
    [image] = world.list()
    process = helpers.start(world.command("/run/bin/hugeld", "service"))
    try:
        assert holds(process, image)
    finally:
        helpers.end_process(process)
    with service(world) as process:
        assert holds(process, image)
    assert world.share("remove", "--all").returncode == 0 and world.left() == []


@contextlib.contextmanager
def listening(world):
    """The socket /run/notify, as systemd has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        folder = os.open(world.path("/run"), os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/notify")
        finally:
            os.close(folder)
        listener.settimeout(helpers.PATIENCE)
        yield listener


def test_tells_systemd(world):
    """The service sends READY=1 and the status by systemd's socket, each once."""
    enable(world, APP)
    with listening(world) as listener:
        with service(world, ["env", "NOTIFY_SOCKET=/run/notify"]):
            said = ""
            while "READY=1" not in said:
                said = listener.recv(4096).decode()
            assert "STATUS=" in said and "huge pages" in said
            # Another user's changes beside an enabled file wake the service, which repeats no line.
            for mode in [0o755, 0o711] * 10:
                world.path("/run/programs").chmod(mode)
                time.sleep(0.05)
            world.path("/run/programs").chmod(0o755)
            listener.settimeout(1)
            again = []
            with contextlib.suppress(TimeoutError):
                while True:
                    again.append(listener.recv(4096).decode())
            assert len(again) <= 2 and len(set(again)) == len(again), again


def test_feeds_the_watchdog(world):
    """The service tells systemd that it is alive often enough not to be killed."""
    enable(world, APP)
    with listening(world) as listener, service(world, ["env", "NOTIFY_SOCKET=/run/notify", "WATCHDOG_USEC=1000000"]):
        said = []
        while said.count("WATCHDOG=1") < 4:
            said.append(listener.recv(4096).decode())


@pytest.mark.check_all
def test_full_store(world, tmp_path):
    """Images that fit are made and held, the others are reported once and not tried again and again; when there is room, they are
    made."""
    names = [f"/run/programs/app-{i}" for i in range(8)]
    for name in names:
        shutil.copy(world.path(APP), world.path(name))
    world.add("--size=32M", APP)
    enable(world, "/run/programs/*")
    with open(tmp_path / "said", "w") as log, service(world, stderr=log) as process:
        helpers.wait_until(lambda: held(process) > 0, what="what it holds")
        fits = [image for image in world.list() if image["state"] == "fresh"]
        assert 1 < len(fits) < len(names) and {image["state"] for image in world.list()} == {"fresh", "pending"}
        assert held(process) == sum(image["huge_pages"] for image in fits) * helpers.HUGE
        replaced = next(image["path"] for image in fits if image["path"] != APP)
        new = world.path("/run/programs/.new")
        shutil.copy(world.path(APP), new)
        with open(new, "ab") as file:
            file.write(bytes(4 << 20))  # its image needs no more room, but it is another file
        with contextlib.suppress(OSError), open(world.path(f"{SYSTEM}/filler"), "wb", buffering=0) as file:
            while file.write(bytes(1 << 20)):
                pass
        new.rename(world.path(replaced))
        before = helpers.ticks(process.pid)
        time.sleep(4 * REST)
        assert helpers.ticks(process.pid) - before < 0.2 * 4 * REST * os.sysconf("SC_CLK_TCK")
        assert sorted(i["path"] for i in world.list() if i["state"] == "fresh") == sorted({i["path"] for i in fits} - {replaced})
        world.path(f"{SYSTEM}/filler").unlink()
        process.send_signal(signal.SIGHUP)
        assert helpers.wait_until(lambda: replaced in [i["path"] for i in world.list() if i["state"] == "fresh"], helpers.PATIENCE)
    said = (tmp_path / "said").read_text().splitlines()
    lines = [line for line in said if f" {replaced}: " in line and "has room" in line]
    assert len(lines) == 1, said
    assert len(said) < 3 * len(names), said


@pytest.mark.parametrize(("line", "words"), [
    ("enabeld = /run/programs/app", ("3: enabeld", "did you mean enabled?")),
    ("/run/programs/app", ("3: /run/programs/app", "no =")),
    ("enabled =", ("3: enabled", "no value")),
    ("enabled = programs/app", ("3: enabled", "absolute path")),
    ("enabled = /run/\0programs/app", ("3: ", "NUL byte")),
    ("\x1b[2J\rsett\aing = 1", ("3: ?[2J?sett?ing", "no such setting")),
], ids=["misspelled", "bare", "empty", "relative", "nul", "control"])
def test_mistake(world, line, words):
    """One line says it, the old configuration stays, and nothing begins with it."""
    enable(world, "/run/programs/a*", lines=["# mine", line])
    for command in ("service",), ("service", "--once"), ("service", "--dry-run"):
        helpers.one_line(world.run("/run/bin/hugeld", *command), 2, f"hugeld: {CONFIGURATION}:", *words)
    helpers.one_line(world.share("refresh"), 1, *words)
    assert not world.path(SYSTEM).exists()
    enable(world, APP)
    with service(world) as process:
        image = wait_for(world, lambda image: image["state"] == "fresh")
        assert holds(process, image)
        shutil.copy(world.path(APP), world.path("/run/programs/another"))
        enable(world, "/run/programs/another", lines=["# mine", line])
        process.send_signal(signal.SIGHUP)
        assert words[1] in helpers.next_line(process)
        time.sleep(0.3)
        assert holds(process, image) and world.list() == [image]


def test_configuration_that_cannot_be_read_to_its_end(world):
    """Later lines, which exclude files, would be lost; so the configuration is not used, and not written anew without them."""
    enable(world, "/run/none", lines=["# nothing"] * 1000)
    before = world.path(CONFIGURATION).read_text()
    error = ["-P", CONFIGURATION, "-e", "inject=read:error=EIO:when=2"]
    for command, code in ((["service", "--dry-run"], 2), (["service", "--once"], 2), (["disable", "/run/none"], 1)):
        result = world.run("/run/bin/hugeld", *command, strace=error)
        said = [line for line in result.stderr.splitlines() if line.startswith("hugeld: ")]
        assert result.returncode == code and len(said) == 1 and "cannot be read: Input/output error" in said[0], result
    error[-1] = "inject=read:error=EIO:when=5"  # after the three of the first reading
    result = world.run("/run/bin/hugeld", "disable", "/run/none", strace=error)
    assert result.returncode == 1 and "cannot be changed: Input/output error" in result.stderr, result
    assert world.path(CONFIGURATION).read_text() == before
    assert os.listdir(world.path(CONFIGURATION).parent) == ["hugeld.conf"]


@pytest.mark.parametrize("what", ["user's", "folder", "pipe", "long"])
def test_configuration_that_is_none(world, what):
    enable(world, APP)
    path = world.path(CONFIGURATION)
    if what == "user's":
        os.chown(path, USER, USER)
    elif what == "long":
        with open(path, "r+b") as file:
            file.truncate(2 << 20)
    else:
        path.unlink()
        if what == "folder":
            path.mkdir()
        else:
            os.mkfifo(path)
    result = world.run("/run/bin/hugeld", "service", "--once")
    helpers.one_line(result, 2, f"hugeld: {CONFIGURATION}: ", {"user's": "other users", "long": "1 MiB"}.get(what, "regular file"))
    assert not world.path(SYSTEM).exists()


def test_dry_run(world):
    """It lists the images that another configuration than the machine's would make, and makes none."""
    enable(world, "/run/none")
    world.path("/run/other.conf").write_text("enabled = /run/programs/*\nenabled = large.service\n")
    systemctl = world.systemctl(f"ExecStart={{ path={APP} ; argv[]={APP} --serve }}")
    shutil.copy(world.path(APP), world.path("/run/programs/writable"))
    world.path("/run/programs/writable").chmod(0o777)
    command = [*systemctl, "/run/bin/hugeld", "service", "--config", "/run/other.conf"]
    for options in ("--dry-run",), ("--once", "--dry-run"):
        result = world.run(*command, *options)
        assert (result.returncode, result.stderr) == (0, ""), result
        first, second, third = result.stdout.splitlines()
        assert first == third == f"{APP}: it would be put on huge pages"
        assert second.startswith("/run/programs/writable: nothing would be done: ") and "users other than root" in second
        assert not world.path(SYSTEM).exists()
    result = world.run(*command, "--once")
    assert result.returncode == 1 and "writable" in result.stderr
    assert [image["path"] for image in world.list() if image["state"] == "fresh"] == [APP]
    assert f"{APP}: it is shared already\n" in world.run(*command, "--dry-run").stdout


STOP = "/run/hugeld-service/stop"


def status(world, expected=0, **options):
    result = world.run("/run/bin/hugeld", "service", "status", "--json", **options)
    assert (result.returncode, result.stderr) == (expected, ""), result
    return json.loads(result.stdout)


def test_status(world):
    """Every user can ask for the status."""
    enable(world, APP)
    before = status(world, 1, user=USER)
    assert (before["process"], before["stopped"], before["enabled"], before["files"]) == (None, False, [APP], [])
    with service(world) as process:
        image = wait_for(world, lambda image: image["state"] == "fresh")
        assert holds(process, image)
        said = status(world, user=USER)
        assert (said["process"], said["configuration"]) == (process.pid, CONFIGURATION)
        assert said["files"] == [{"path": APP, "way": "image", "state": "fresh", "huge_pages": image["huge_pages"], "processes": 0}]
        text = world.run("/run/bin/hugeld", "service", "status").stdout
        assert f"process {process.pid}\n" in text and APP in text
    assert status(world, 1)["files"] != []
    world.path(CONFIGURATION).write_text("enabled = \n")
    assert world.run("/run/bin/hugeld", "service", "status").returncode == 2


def test_status_of_hostile_names(world):
    """Others choose the names of files."""
    name = "/run/programs/\x1b[2J\u202e\"\xff'"
    shutil.copy(world.path(APP), world.path(name))
    world.add(name)
    assert status(world, 1)["files"][0]["path"] == name
    assert "\x1b" not in world.run("/run/bin/hugeld", "service", "status").stdout


def test_kill_switch(world):
    """While the switch is there no image is made, not even at SIGHUP; images that are held stay so."""
    enable(world, APP)
    with service(world) as process:
        image = wait_for(world, lambda image: image["state"] == "fresh")
        assert holds(process, image)
        world.path(STOP).touch()
        assert status(world)["stopped"]
        os.link(world.path(APP), world.path("/run/programs/linked"))
        shutil.copy(world.path(APP), world.path("/run/programs/another"))
        enable(world, "/run/programs/another")
        process.send_signal(signal.SIGHUP)
        assert STOP in helpers.next_line(process)
        helpers.one_line(world.share("refresh", "--unattended"), 1, STOP)
        time.sleep(1)
        assert [(i["path"], i["state"]) for i in world.list()] == [(APP, "ctime")] and holds(process, image)
        world.path(STOP).unlink()
        wait_for(world, lambda image: image["state"] == "fresh")


def test_undo(world):
    """It waits for the process that has pages of an image, and says when all is back."""
    enable(world, APP)
    with service(world) as process:
        image = wait_for(world, lambda image: image["state"] == "fresh")
        assert holds(process, image)
        with world.mapped(image["image"]) as huge:
            assert huge > 0
            result = world.run("/run/bin/hugeld", "service", "undo", "--seconds", "1")
            assert result.returncode == 1 and "after 1 s processes still have" in result.stderr, result
            undoing = helpers.start(world.command("/run/bin/hugeld", "service", "undo"))
            time.sleep(0.5)
            assert undoing.poll() is None
        output, errors = undoing.communicate(timeout=helpers.PATIENCE)
        assert undoing.returncode == 0 and "all is back" in output, (output, errors)
        assert not world.path(SYSTEM).exists() and held(process) == 0
        process.send_signal(signal.SIGHUP)
        assert STOP in helpers.next_line(process) and not world.path(SYSTEM).exists()
    assert world.run("/run/bin/hugeld", "service", "undo", user=USER).returncode == 1
    assert world.run("/run/bin/hugeld", "service", "--once").returncode == 1
    world.path(STOP).unlink()
    assert world.run("/run/bin/hugeld", "service", "--once").returncode == 0 and len(world.list()) == 1


def test_undo_beside_a_process_that_does_not_answer(world):
    """A reader of its maps waits for ever: undo does not."""
    world.add("--way=image", APP)
    process = helpers.start(["sleep", "1000"])
    try:
        assert world.run("sh", "-c", f"mkfifo /run/fifo && mount --bind /run/fifo /proc/{process.pid}/maps").returncode == 0
        undone = helpers.run(world.command("timeout", "-s", "KILL", "20", "/run/bin/hugeld", "service", "undo", "--seconds", "1"))
        assert undone.returncode == 0 and "all is back" in undone.stdout, undone
    finally:
        helpers.end_process(process)


def stays(process):
    """Whether it is the service by now, and takes signals."""
    return bool(helpers.descriptors(process.pid, "signalfd"))


@pytest.mark.check_all
@pytest.mark.parametrize("user", [USER, 0])
def test_process_whose_maps_do_not_answer(world, user):
    """The service ends, and so does the next one.  The third leaves out the processes of that user, or for root that process alone;
    it says so, also in the metrics."""
    busy, metrics = "/run/programs/busy", world.path("/run/one.prom")
    shutil.copy("/bin/sh", world.path(busy))
    loop = world.command("nice", "-n", "19", busy, "-c", "while :; do :; done", user=user)  # it disturbs no test beside
    processes = [helpers.start(loop) for _ in range(2)]

    def observed():
        return status(world)["observed"] or {"windows": 0, "files": []}

    try:
        hidden = processes[0].pid
        assert world.run("sh", "-c", f"mkfifo /run/fifo && mount --bind /run/fifo /proc/{hidden}/maps").returncode == 0
        enable(world, lines=["observe = yes", "eligible = /run/programs/*", "window = 1", "interval = 2", "metrics = /run/one.prom"])
        for _ in range(2):
            ended = helpers.start(world.command("/run/bin/hugeld", "service", "--keep-only"))
            try:
                assert ended.wait(2 * helpers.PATIENCE) == -signal.SIGALRM, ended.stderr.read()
                assert f"process {hidden}" not in ended.stderr.read()
            finally:
                helpers.end_process(ended)
        with service(world, options=["--keep-only"]) as third:
            said = helpers.next_line(third)
            assert f"process {hidden} of user {user}, " in said and ("all processes of this user" in said) == (user != 0), said
            helpers.wait_until(lambda: observed()["windows"] > 3 and (user != 0 or observed()["files"]), 2 * helpers.PATIENCE, "windows")
            assert "hugeld_users_left_out 1\n" in metrics.read_text()
            assert [file["path"] for file in observed()["files"]] == [busy] * (user == 0)
        assert not world.path("/run/hugeld-service/reading").exists()
    finally:
        for process in processes:
            helpers.end_process(process)


def test_process_that_ends_before_the_next_service(world):
    """A process counts for its user although the next service does not see it any more; SIGALRM is sent, so that none waits for the
    clock."""
    busy, metrics, note = "/run/programs/busy", world.path("/run/one.prom"), world.path("/run/hugeld-service/reading")
    shutil.copy("/bin/sh", world.path(busy))
    enable(world, lines=["observe = yes", "eligible = /run/programs/*", "window = 1", "interval = 2", "metrics = /run/one.prom"])
    for number in range(2):
        hidden = helpers.start(world.command("nice", "-n", "19", busy, "-c", "while :; do :; done", user=USER))
        try:
            covered = f"mkfifo /run/fifo{number} && mount --bind /run/fifo{number} /proc/{hidden.pid}/maps"
            assert world.run("sh", "-c", covered).returncode == 0
            ended = helpers.start(world.command("/run/bin/hugeld", "service", "--keep-only"))
            try:
                noted = hidden.pid.to_bytes(4, sys.byteorder)
                helpers.wait_until(lambda: note.exists() and noted in note.read_bytes(), helpers.PATIENCE, "the reading")
                ended.send_signal(signal.SIGALRM)
                assert ended.wait(helpers.PATIENCE) == -signal.SIGALRM, ended.stderr.read()
            finally:
                helpers.end_process(ended)
        finally:
            helpers.end_process(hidden)
    with service(world, options=["--keep-only"]) as third:
        said = helpers.next_line(third)
        assert f"process {hidden.pid} of user {USER}, " in said and "all processes of this user" in said, said
        helpers.wait_until(lambda: metrics.exists() and "hugeld_users_left_out 1\n" in metrics.read_text(), what="the metric")


def test_very_many_processes_whose_maps_did_not_answer(world):
    """One process each of 64 users did not answer: from then on everything is left out, and the metric says so."""
    metrics, note = world.path("/run/one.prom"), world.path("/run/hugeld-service/reading")
    enable(world, lines=["metrics = /run/one.prom"])
    users = [struct.pack("@IiQI0Q", 1000 + number, 1, 1, 1) for number in range(64)]  # struct left_out
    note.parent.mkdir()
    note.write_bytes(struct.pack("@?7x", True) + users[63] + struct.pack("@I0Q", 63) + b"".join(users[:63]).ljust(64 * len(users[0]), b"\0"))
    with service(world, options=["--keep-only"]) as process:
        said = helpers.next_line(process)
        assert "ended once more while" in said and "all processes are left out" in said, said
        helpers.wait_until(lambda: metrics.exists() and "hugeld_users_left_out 64\n" in metrics.read_text(), what="the metric")


def test_readings_have_a_clock_without_a_note(world):
    """It ends the service although that was started with SIGALRM ignored."""
    world.path("/run/hugeld-service/reading").mkdir(parents=True)  # so that it cannot be a file
    process = helpers.start(world.command("env", "--ignore-signal=ALRM", "/run/bin/hugeld", "service", "--keep-only"))
    try:
        helpers.wait_until(lambda: stays(process), what="its start")
        process.send_signal(signal.SIGALRM)
        assert process.wait(helpers.PATIENCE) == -signal.SIGALRM
    finally:
        helpers.end_process(process)


def test_what_a_killed_one_has_left(world):
    """No other service shows a killed one's status as its own, and reset removes it."""
    folder = world.path("/run/hugeld-service")
    names = [folder / "observed.json", folder / "observed.json.new"]
    folder.mkdir()
    for name in names:
        name.write_text("{}")
    with service(world) as process:
        helpers.wait_until(lambda: stays(process), what="its start")
        helpers.wait_until(lambda: not any(name.exists() for name in names))
    for name in names:
        name.write_text("{}")
    assert world.run("/run/bin/hugeld", "reset").returncode == 0 and not folder.exists()


def test_dry_run_of_what_gains_nothing(world):
    """A file that share refresh would not put on huge pages gets a line that says so."""
    folder, script, small = "/run/programs/folder", "/run/programs/script", "/run/programs/small"
    world.path(folder).mkdir()
    world.path(script).write_text("#!/bin/sh\n")
    world.path(script).chmod(0o755)
    shutil.copy("/bin/true", world.path(small))
    enable(world, folder, script, small, APP)
    said = world.run("/run/bin/hugeld", "service", "--dry-run").stdout.splitlines()
    assert f"{APP}: it would be put on huge pages" in said
    for path in folder, script, small:
        assert [line.startswith(f"{path}: nothing would be done: ") for line in said if line.startswith(f"{path}: ")] == [True], said


@pytest.mark.parametrize("words", [["service", "--once"], ["reset"]], ids=lambda words: words[-1])
def test_only_the_service_that_stays_runs(world, words):
    """Another command with the service's lock does not count as the running service, here one that waits for the store."""
    enable(world, APP)
    world.add(APP)
    lock = world.path("/run/hugeld-service/lock")
    holder = helpers.start(world.command("flock", f"{SYSTEM}/.lock", "sh", "-c", "echo ready; exec cat"), stdin=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == "ready\n"
        waits = helpers.start(world.command("/run/bin/hugeld", *words))
        try:
            helpers.wait_until(lambda: lock.exists() and f":{lock.stat().st_ino} " in pathlib.Path("/proc/locks").read_text())
            assert status(world, 1)["process"] is None and waits.poll() is None
        finally:
            helpers.end_process(waits)
    finally:
        helpers.end_process(holder)


def test_metrics_move(world):
    """The file at the old path is removed; a full disk is named as the reason."""
    enable(world, lines=["metrics = /run/one.prom"])
    one, two = world.path("/run/one.prom"), world.path("/run/two.prom")
    with service(world) as process:
        helpers.wait_until(one.exists)
        enable(world, lines=["metrics = /run/two.prom"])
        process.send_signal(signal.SIGHUP)
        helpers.wait_until(lambda: two.exists() and not one.exists())
        assert world.run("sh", "-c", "mkdir /run/full && mount -t tmpfs -o size=64k none /run/full && ! cat /dev/zero > /run/full/zeros").returncode == 0
        enable(world, lines=["metrics = /run/full/three.prom"])
        process.send_signal(signal.SIGHUP)
        assert "No space left on device" in helpers.next_line(process)
        assert not two.exists()
        for name in "/run/none", "/run/neither":
            enable(world, lines=[f"metrics = {name}/four.prom"])
            process.send_signal(signal.SIGHUP)
            assert name + "/four.prom: the metrics cannot be written: No such" in helpers.next_line(process)


def test_packages_are_upgraded(world):
    """dpkg's trigger starts no service that the administrator has stopped, and makes nothing while the kill switch is there."""
    enable(world, APP)
    wants = world.path("/etc/systemd/system/multi-user.target.wants")
    wants.mkdir(parents=True)
    (wants / "hugeld.service").touch()
    assert world.run("/run/bin/hugeld", "service", "undo").returncode == 0
    world.path(SYSTEM).mkdir()
    own = world.path("/run/own")
    own.mkdir()
    # Of a unit that is inactive.
    (own / "systemctl").write_text('#!/bin/sh\ncase "$*" in *try-*) ;; *start*) echo started > /run/started ;; esac\n')
    (own / "systemctl").chmod(0o755)
    trigger = ["env", "PATH=/run/own:/run/bin:/usr/bin:/bin", "sh", helpers.ROOT / "debian/hugeld.postinst", "triggered"]
    assert world.run(*trigger).returncode == 0 and world.left() == []
    world.path("/run/systemd/system").mkdir(parents=True)
    assert world.run(*trigger).returncode == 0 and not world.path("/run/started").exists()
    world.path(STOP).unlink()
    world.path("/run/systemd/system").rmdir()
    assert world.run(*trigger).returncode == 0 and [image["state"] for image in world.list()] == ["fresh"]


def test_keep_only_without_a_store(world):
    """In a container no enabled image is made; the service says so."""
    enable(world, APP)
    with service(world, options=["--keep-only"]) as process:
        assert "--keep-only makes nothing" in helpers.next_line(process)
        helpers.wait_until(lambda: stays(process), what="its start")
        assert not world.path(SYSTEM).exists()


def test_hardened(tmp_path):
    """systemd's rating of the unit's exposure; data/hugeld.service has the reason for each setting that is open."""
    unit = tmp_path / "hugeld.service"
    unit.write_text((helpers.ROOT / "data/hugeld.service").read_text().replace("@bindir@", "/usr/bin"))
    result = helpers.run(["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=50", unit])
    assert result.returncode == 0, result.stdout[-3000:]
