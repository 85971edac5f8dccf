# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stores: which files get into one and which do not, the leftovers when hugeld is killed, and the power of other users.

Everything happens in a mount namespace with a /run, /dev/shm and /etc of its own, which a process holds as long as the test
lasts; so nothing on this machine changes.  That pages are huge is read from smaps of a process that maps the image."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import struct
import subprocess
import time

import pytest

import helpers
from objects import read_headers
from worlds import APP, OTHER, SYSTEM, TOUCHER, USER, disk


PT_LOAD = 1


def refused(result, *words):
    """It says WORDS, in one line or a few, and made nothing."""
    assert result.returncode == 1 and ": enabled" not in result.stdout, result
    for word in words:
        assert word in result.stderr, result


def pending(result, *words):
    """It is enabled, and waits."""
    assert result.returncode == 3 and result.stderr.count("\n") == 1 and ": pending: " in result.stderr, result
    for word in words:
        assert word in result.stderr, result


def unlist(world, *paths):
    """Disables PATHS, or all that is enabled."""
    for path in paths or {file["entry"] for file in world.list() if file["entry"]}:
        assert world.hugeld("disable", path).returncode == 0


def check_huge(world, image, user=None):
    with world.mapped(image["image"], user) as huge:
        assert huge == image["huge_pages"] * helpers.HUGE > 0


def give(world, user):
    """Gives the program to USER, who then can see whether a process writes to it."""
    os.chown(world.path(APP), user, user)
    time.sleep(0.05)


# --- its effects ---


def test_add(world, tmp_path):
    assert re.fullmatch(rf"{APP}: image, \d+\.\d % of its text, \d+ huge pages\n{APP}: enabled; start it by hugeld run\n", world.enable(APP).stdout)
    [image] = world.list()
    status = world.path(APP).stat()
    assert (image["path"], image["state"], image["processes"], image["effective"]) == (APP, "fresh", 0, 0)
    assert image["key"] == (f"{status.st_dev:#x}-{status.st_ino:#x}-{status.st_size:#x}-{status.st_ctime_ns // 10**9:#x}."
                            f"{status.st_ctime_ns % 10**9:#x}")
    folder = world.path(SYSTEM) / image["key"]
    assert {p.name for p in folder.iterdir()} == {"app", ".digest", ".image", ".origin"}
    assert (os.readlink(folder / ".image"), os.readlink(folder / ".origin")) == ("app", APP)
    assert stat.S_IMODE((folder / "app").stat().st_mode) == 0o555 and stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert helpers.hugeld("image", world.path(APP), tmp_path / "image").returncode == 0
    assert (folder / "app").read_bytes() == (tmp_path / "image").read_bytes()
    check_huge(world, image, USER)
    assert world.enable(APP).stdout == f"{APP}: unchanged, it is enabled already\n" and world.left() == [image["key"]]
    text = world.hugeld("list").stdout
    assert APP in text and "fresh" in text


def test_mount(world):
    world.enable(APP)
    mounts = pathlib.Path(f"/proc/{world.pid}/mounts")
    [line] = [line for line in mounts.read_text().splitlines() if f" {SYSTEM} " in line]
    options = line.split()[3].split(",")
    assert {"nosuid", "nodev", "huge=always"} <= set(options) and "noexec" not in options
    assert any(option.startswith("size=") for option in options)
    world.settings(store_size="64M")
    world.enable(APP)
    assert "size=65536k" in mounts.read_text()
    shutil.copy(world.path(APP), world.path("/run/programs/other"))
    world.enable("/run/programs/other")
    world.settings(store_size="4k")
    refused(world.hugeld("apply"), "cannot resize to 4k")
    assert world.hugeld("disable", "/run/programs/other").returncode == 0 and len(world.left()) == 1  # as it says
    assert world.hugeld("apply").returncode == 1  # it holds the other one
    world.settings()
    assert world.hugeld("disable", APP).returncode == 0 and world.left() == []
    assert f" {SYSTEM} " in mounts.read_text()  # unmounted, it would be so in other namespaces, too


def test_folder_and_link(world):
    folder = world.path("/run/programs")
    shutil.copy(folder / "app", folder / "second")
    (folder / "text").write_text("no object\n")
    (folder / "sub").mkdir()
    (folder / "sub/link").symlink_to("../app")
    result = world.enable("/run/programs")
    assert [i["path"] for i in world.list()] == [APP, "/run/programs/second"] and result.stdout.count(": image, ") == 2
    assert world.enable("/run/programs/sub/link").stdout == f"{APP}: enabled; start it by hugeld run\n"
    shutil.copy("/bin/true", folder / "true")
    for path, words in (("/run/programs/text", "no ELF file"), ("/run/none", "No such file"), ("/run/programs/true", "huge page")):
        refused(world.hugeld("enable", path), path, words)
    assert world.path("/etc/hugeld/enabled.d/local.list").read_text() == f"/run/programs\n{APP}\n"


@pytest.mark.parametrize("what", ["no process", "namespace"])
def test_refresh_that_finds_nothing_out(world, what):
    """It is unknown at that moment whether all users can read the file, or where it lies: its image stays."""
    world.enable("--way=image", APP)
    before = [(image["key"], image["state"]) for image in world.list()]
    if what == "namespace":
        result = world.run("unshare", "-p", "-f", "--mount-proc", "/run/bin/hugeld", "apply")
        assert result.returncode == 0, result
    else:
        result = world.hugeld("apply", strace=["-e", "inject=clone:error=EAGAIN"])
        assert result.returncode == 0, result
    assert [(image["key"], image["state"]) for image in world.list()] == before


AUDITOR = """
#include <stdio.h>
#include <unistd.h>
unsigned int la_version(unsigned int version) {
    FILE *file = fopen("%s", "a");
    fprintf(file, "%%d\\n", (int)geteuid());
    fclose(file);
    return version;
}
"""


def test_auditing_library(world, tmp_path):
    """The dynamic linker executes the library in DT_AUDIT even when it only lists libraries: root must not do so for another
    user's program."""
    said = world.path("/run/said")
    said.touch()
    said.chmod(0o666)
    auditor = world.path("/run/programs/auditor.so")
    source = tmp_path / "auditor.c"
    source.write_text(AUDITOR % "/run/said")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", auditor, source], check=True)
    source.write_text("#include <unistd.h>\nint main(void) { return (int)read(0, (char[1]){0}, 1); }\n")
    audited = world.path("/run/programs/audited")
    subprocess.run(["cc", "-o", audited, source, "-Wl,--audit=/run/programs/auditor.so"], check=True)
    result = world.run("/run/bin/hugeld", "run", "-o", "verbose=1", "--", "/run/programs/audited")
    assert result.returncode == 0 and said.read_text() == "0\n", result  # its own start


def test_libraries_are_listed_as_nobody(world, builder):
    """Libraries of another user's program are listed as the user nobody, since the file may be another one by then."""
    app = world.path("/run/programs/private/app")
    app.parent.mkdir(mode=0o700)
    program, [library] = builder.with_library("dso")
    shutil.copy(program, app)
    shutil.copy(f"{library}.1", app.parent)
    for owner, lists in (0, True), (USER, False):
        os.chown(app, owner, owner)
        result = world.run("/run/bin/hugeld", "run", "-o", "verbose=1", "--", "/run/programs/private/app")
        assert ("most of its text is in a library" in result.stderr) == lists, result


def asks_fuse(pid):
    """Whether PID waits for the server of a FUSE."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/wchan").read_text() == "request_wait_answer"
    return False


@contextlib.contextmanager
def serving(world):
    """Serves /run/programs at /run/served by a FUSE, and gives its server."""
    if not shutil.which("bindfs"):
        pytest.skip("bindfs is not installed")
    served = world.path("/run/served")
    served.mkdir(exist_ok=True)
    before = os.stat(served).st_dev
    server = helpers.start(world.command("bindfs", "-f", "/run/programs", "/run/served"))
    try:
        helpers.wait_until(lambda: os.stat(served).st_dev != before or server.poll() is not None, what="the FUSE")
        if server.poll() is not None:
            pytest.skip(f"no FUSE here: {server.stderr.read()}")
        yield server
    finally:
        server.send_signal(signal.SIGCONT)
        world.run("umount", "-l", "/run/served")
        helpers.end_process(server)


def test_path_of_a_process_that_may_not_answer(world):
    """Here a FUSE lies at the path of the program that it executes in a mount namespace of its own: the FUSE is not asked."""
    world.path("/run/served").mkdir()
    script = ("mount -t tmpfs none /run/served && cp $(readlink -f /usr/bin/python3) /run/served/app && "
              "exec /run/served/app -c 'import time; print(1, flush=True); time.sleep(1000)'")
    process = helpers.start(world.command("unshare", "-m", "sh", "-c", script))
    try:
        assert process.stdout.readline() == "1\n", process.stderr.read()
        with serving(world) as server:
            for words in ["status"], ["inspect", "--pid"], ["status", "--json"]:
                server.send_signal(signal.SIGSTOP)
                asking = helpers.start(world.command("/run/bin/hugeld", *words, process.pid))
                try:
                    helpers.wait_until(lambda: asking.poll() is not None or asks_fuse(asking.pid), what="its end")
                    assert asking.poll() is not None, words
                finally:
                    server.send_signal(signal.SIGCONT)
                    helpers.end_process(asking)
    finally:
        helpers.end_process(process)


@pytest.mark.parametrize("how", ["apply", "enable"])
def test_another_file_system_is_mounted_there(world, how, tmp_path):
    """Another file system there is no store, and nothing is written to it."""
    (tmp_path / "other").mkdir(mode=0o755)
    world.path(SYSTEM).mkdir()
    assert world.run("mount", "--bind", tmp_path / "other", SYSTEM).returncode == 0
    if how == "apply":
        world.lists("some", APP)
    refused(world.hugeld(how, *([APP] if how == "enable" else [])), f"{SYSTEM}: another file system than tmpfs is mounted there")
    assert not list((tmp_path / "other").iterdir())
    assert how == "apply" or not world.path("/etc/hugeld/enabled.d/local.list").exists()


def test_folder_that_may_not_answer(world):
    """A folder or file on a FUSE gets one line, and no store is made: the file system's type is asked before the store is
    locked."""
    with serving(world):
        for path in "/run/served", "/run/served/app":
            refused(world.hugeld("enable", path), f"{path} is left out", "may not answer, such as FUSE or NFS; keep it on a local disk")
        assert world.left() == []


def test_unit_whose_program_may_not_answer(world):
    """Its program lies on a FUSE whose server does not answer: that is said, and nothing waits for it."""
    with serving(world) as server:
        server.send_signal(signal.SIGSTOP)
        run = world.systemctl("ExecStart={ path=/run/served/app ; argv[]=/run/served/app ; ignore_errors=no }")
        result = world.run(*run, "timeout", "-s", "KILL", "20", "/run/bin/hugeld", "enable", "demo.service")
        refused(result, "/run/served/app")
        assert world.left() == []


# --- rights to fill a store ---


def test_own_store(world):
    store = f"/run/user/{USER}/hugeld"
    give(world, USER)
    world.enable(APP, user=USER)
    [image] = world.list(user=USER)
    assert image["image"].startswith(store) and stat.S_IMODE(world.path(store).stat().st_mode) == 0o700
    check_huge(world, image, USER)
    for user, found in ((USER, image["image"]), (OTHER, None)):
        [told] = json.loads(world.run("/run/bin/hugeld", "inspect", "--json", APP, user=user).stdout)["files"]
        assert told["image"]["path"] == found
    assert world.run("cat", image["image"], user=OTHER).returncode != 0
    assert world.list(user=OTHER) == [] and world.hugeld("list", "--check", user=USER).returncode == 0
    assert world.hugeld("disable", APP, user=USER).returncode == 0 and world.left(store) == []


def test_old_kernel(world):
    """A kernel that cannot make huge pages on an ordinary tmpfs, and one that has none left."""
    give(world, USER)
    for error, words in (("EINVAL", "6.12"), ("ENOMEM", "did not become huge")):
        result = world.hugeld("enable", APP, user=USER, strace=["-e", f"inject=madvise:error={error}"])
        (refused if error == "EINVAL" else pending)(result, words)
        assert world.left(f"/run/user/{USER}/hugeld") == []


@pytest.mark.parametrize("how", ["another's", "group", "others", "link", "file", "noexec", "disk"])
def test_unsafe_store(world, how, tmp_path):
    store, folder = "/dev/shm/store", world.path("/dev/shm/store")
    words = {"link": "symbolic link", "file": "folder", "noexec": "noexec", "disk": "tmpfs"}.get(how, "writable by you alone")
    if how == "disk":
        store = str(tmp_path / "store")
        os.mkdir(store)
    elif how == "link":
        world.path("/dev/shm/real").mkdir()
        folder.symlink_to("real")
    elif how == "file":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o700)
    if how == "another's":
        os.chown(folder, OTHER, OTHER)
    elif how in ("group", "others"):
        folder.chmod(0o770 if how == "group" else 0o702)
    elif how == "noexec":
        assert world.run("mount", "-t", "tmpfs", "-o", "noexec,mode=0700", "none", store).returncode == 0
    world.path("/run/own.list").write_text(f"{APP}\n")
    for action in ("apply", "list"):
        refused(world.hugeld(action, "--list=/run/own.list", "--store", store), words)
    assert not folder.is_dir() or world.left("/dev/shm/store") == []


@pytest.mark.parametrize("how", ["folder", "link"])
def test_store_taken_by_another_user(world, how):
    """XDG_RUNTIME_DIR is another user's, as after su."""
    folder, words = f"/run/user/{OTHER}", "writable by you alone" if how == "folder" else "symbolic link"
    world.run("chmod", "777", folder)
    make = "mkdir -m 777 hugeld" if how == "folder" else "mkdir trap && ln -s trap hugeld"
    assert world.run("sh", "-c", f"cd {folder} && {make}", user=OTHER).returncode == 0
    result = world.run("env", f"XDG_RUNTIME_DIR={folder}", "/run/bin/hugeld", "enable", APP, user=USER)
    refused(result, f"{folder}/hugeld", words)
    assert world.left(f"{folder}/hugeld") == []


def test_store_of_nobody(world):
    """The ID of users that a user namespace does not map: its files are trusted nowhere."""
    folder, nobody = "/dev/shm/nobody", int(pathlib.Path("/proc/sys/kernel/overflowuid").read_text())
    world.path(folder).mkdir(mode=0o700)
    os.chown(world.path(folder), nobody, nobody)
    result = world.run("env", f"XDG_RUNTIME_DIR={folder}", f"XDG_CONFIG_HOME={folder}/config", "/run/bin/hugeld", "enable", APP, user=nobody)
    refused(result, "this user, stands for all", "run hugeld as another user")
    assert [path.name for path in world.path(folder).iterdir()] == ["config"]
    listed = world.run("env", f"XDG_RUNTIME_DIR={folder}", "/run/bin/hugeld", "list", user=nobody)
    assert listed.returncode == 0 and "fresh" not in listed.stdout, listed


def test_what_only_root_does(world):
    world.enable(APP)
    world.path("/run/own.list").write_text(f"{APP}\n")
    refused(world.hugeld("apply", "--list=/run/own.list", "--store", SYSTEM, user=USER), "only its owner can change this store")
    give(world, USER)
    refused(world.hugeld("enable", "--way=in-place", APP, user=USER), "its address is not congruent")
    refused(world.hugeld("enable", "some.service", user=USER), "run it as root")


@pytest.mark.parametrize("how", ["owner", "group", "others", "folder", "sticky", "hard link", "user's folder"])
def test_only_what_root_alone_can_write(world, how):
    path = world.path(APP)
    if how == "owner":
        os.chown(path, USER, 0)
    elif how in ("group", "others"):
        path.chmod(0o775 if how == "group" else 0o757)
    elif how in ("folder", "sticky"):
        path.parent.chmod(0o777 if how == "folder" else 0o1777)
    elif how == "user's folder":
        os.chown(path.parent, USER, 0)
    app = APP
    if how == "hard link":  # a link to root's file, in a folder where a user can replace it
        folder = world.path("/run/programs/theirs")
        folder.mkdir()
        os.chown(folder, USER, USER)
        os.link(path, folder / "app")
        app = "/run/programs/theirs/app"
    refused(world.hugeld("enable", app), app, "users other than root", "/run/programs/theirs" if app != APP else "/run/programs")
    assert world.list() == []
    assert world.apply_list("/dev/shm/mine", app).returncode == 0  # whose images only root can use
    world.path("/dev/shm/mine").chmod(0o755)
    shutil.rmtree(next(world.path("/dev/shm/mine").glob("0x*")))
    refused(world.apply_list("/dev/shm/mine", app), "users other than root")


# An access control list as setfacl(1) writes it: one named user may not read.
ACL = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in (
    (1, 7, 0xffffffff), (2, 0, USER), (4, 5, 0xffffffff), (0x10, 5, 0xffffffff), (0x20, 5, 0xffffffff)))


@pytest.mark.parametrize("how", ["owner alone", "not to read", "not for the group", "folder", "folder, not for the group",
                                 "list", "list of the folder"])
def test_only_what_all_users_can_read(world, how):
    """An image for all would make it readable for them."""
    path = world.path(APP)
    modes = {"owner alone": 0o700, "not to read": 0o711, "not for the group": 0o705}
    if how in modes:
        path.chmod(modes[how])
    elif how.startswith("list"):
        os.setxattr(path if how == "list" else path.parent, "system.posix_acl_access", ACL)
    else:
        path.parent.chmod(0o700 if how == "folder" else 0o705)
    refused(world.hugeld("enable", APP), "cannot be read by all users")
    assert world.left() == []
    assert world.apply_list("/dev/shm/mine", APP).returncode == 0  # which only root can read


@pytest.mark.parametrize("how", ["setuid", "setgid", "capability"])
def test_privileged(world, how):
    path = world.path(APP)
    if how == "capability":
        os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
    else:
        path.chmod(0o4755 if how == "setuid" else 0o2755)
    refused(world.hugeld("enable", APP), APP, "set-user-ID")
    assert world.list() == []


def test_other_users_cannot_touch_it(world):
    world.enable(APP)
    [image] = world.list()
    folder = f"{SYSTEM}/{image['key']}"
    attacks = [f"echo x >> {image['image']}", f"truncate -s 0 {image['image']}", f"rm -f {image['image']}",
               f"ln -sf /bin/true {folder}/.image", f"mv {folder} {SYSTEM}/elsewhere", f"mkdir {SYSTEM}/0x1-0x1-0x1-0x1.0x1",
               f"chmod 777 {image['image']}", f"touch {folder}/new"]
    before = world.path(image["image"]).read_bytes()
    for attack in attacks:
        assert world.run("sh", "-c", attack, user=USER).returncode != 0, attack
    assert world.path(image["image"]).read_bytes() == before and world.list() == [image]
    assert world.hugeld("list", "--check").returncode == 0


def test_another_users_lock(world):
    """A user may lock any file that he can open; no command waits for that."""
    world.enable(APP)
    [image] = world.list()
    assert world.run("cat", f"{SYSTEM}/.lock", user=USER).returncode != 0
    places = [SYSTEM, f"{SYSTEM}/{image['key']}", image["image"]]
    holders = [helpers.start(world.command("flock", place, "sh", "-c", "echo ready; exec sleep 1000", user=USER)) for place in places]
    try:
        assert all(holder.stdout.readline() == "ready\n" for holder in holders)
        shutil.copy(world.path(APP), world.path("/run/programs/second"))
        world.enable("/run/programs/second")
        assert world.hugeld("apply").returncode == 0
        unlist(world)
        assert world.left() == []
        assert all(holder.poll() is None for holder in holders)
    finally:
        for holder in holders:
            helpers.end_process(holder)


MADV_COLD = 20


def test_a_user_splits_pages(world):
    """check says so and changes nothing, refresh makes them huge again."""
    world.enable(APP)
    [image] = world.list()
    result = world.run("/usr/bin/python3", "-c", TOUCHER, image["image"], helpers.HUGE, MADV_COLD, user=USER)
    assert result.returncode == 0, result
    for _ in range(2):
        refused(world.hugeld("list", "--check"), "pages are not huge any more", "hugeld apply")
    assert world.list()[0]["text_share"] < image["text_share"]
    assert world.hugeld("apply").returncode == 0 and world.hugeld("list", "--check").returncode == 0
    check_huge(world, image)


# --- files whose numbers repeat ---


def test_another_disk(world, tmp_path):
    """Two file systems made of the same files have the same numbers, one after the other on the same device."""
    def make(file, tree):
        os.truncate(os.open(file, os.O_CREAT | os.O_RDWR), 64 << 20)
        return ["mkfs.ext4", "-q", "-d", tree, file]
    with disk(world, tmp_path, make) as app:
        world.path("/run/disk").chmod(0o755)
        refused(world.hugeld("enable", app), "another file system than the machine's / and /usr", "any_disk = yes")
        assert world.list() == []
        assert json.loads(world.hugeld("inspect", "--json", app).stdout)["files"][0]["verdict"]["way"] == "image"
        world.lists("mine", app)
        assert world.hugeld("apply").returncode == 1
        world.settings(any_disk="yes")
        assert world.hugeld("apply").returncode == 0  # at once, since the reason is gone
        assert [image["path"] for image in world.list()] == [app]


def test_times_that_its_maker_chose(world, tmp_path):
    if not shutil.which("mksquashfs"):
        pytest.skip("squashfs-tools is not installed")
    with disk(world, tmp_path, lambda file, tree: ["mksquashfs", tree, file, "-quiet", "-all-root", "-no-progress"]) as app:
        for any_disk in "no", "yes":
            world.settings(any_disk=any_disk)
            refused(world.hugeld("enable", app), "does not record every change")


@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_file_systems_that_tell_too_little(world, tmp_path, kind):
    """A store through a shared mapping changes no time on tmpfs; overlayfs says the same of every lower layer."""
    folder = world.path("/run/fs")
    folder.mkdir()
    options = ["-t", "tmpfs", "none"]
    if kind == "overlay":
        for name in ("upper", "work"):
            (tmp_path / name).mkdir()
        options = ["-t", "overlay", "-o", f"lowerdir=/run/programs,upperdir={tmp_path}/upper,workdir={tmp_path}/work", "none"]
    mounted = world.run("mount", *options, "/run/fs")
    if mounted.returncode != 0:
        pytest.skip(f"no {kind} here: {mounted.stderr}")
    world.run("cp", APP, "/run/fs/app") if kind == "tmpfs" else None
    world.run("chmod", "755", "/run/fs")
    for any_disk in "no", "yes":
        world.settings(any_disk=any_disk)
        refused(world.hugeld("enable", "/run/fs/app"), "does not record every change", "hugeld attach")
    assert world.list() == []
    assert world.hugeld("image", APP, "/run/fs/laid-out").returncode == 0
    told = world.hugeld("inspect", "/run/fs/laid-out").stdout
    assert ("best: in place, by root of the host; here a private copy" in told) == (kind == "overlay"), told
    assert "(measure it: hugeld bench --copy -- /run/fs/laid-out)" in told
    assert "started as it is: its file could be on huge pages in place, but only by root outside" in told or kind == "tmpfs"


# --- files that change ---

def await_new(world, store=SYSTEM):
    return helpers.wait_until(lambda: ".new" in world.left(store), what=".new")


@pytest.mark.parametrize("how, call", [("overwritten", "linkat"), ("replaced", "linkat"), ("made writable", "linkat"), ("removed", "linkat"),
                                       ("other headers", "fstat")])
def test_changed_while_it_is_added(world, how, call):
    path = world.path(APP)
    copy = pathlib.Path(shutil.copy(path, world.path("/run/programs/new")))
    pause = ["-e", f"inject={call}:delay_enter=12000000:when=1"]
    world.lists("some", APP)
    trace = world.path("/run/trace")
    trace.touch()
    adding = helpers.start(world.command("/run/bin/hugeld", "apply", strace=["-o", "/run/trace", *(["-P", APP] if call == "fstat" else []), *pause]))
    try:
        helpers.wait_until(lambda: "pread64" in trace.read_text(), what="the headers") if call == "fstat" else await_new(world)
        if how == "other headers":
            with open(path, "r+b") as file:
                file.seek(0x30)  # e_flags
                file.write(b"\1")
        elif how == "overwritten":
            with open(path, "r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(b"other bytes")
        elif how == "replaced":
            copy.rename(path)
        elif how == "made writable":
            path.chmod(0o777)
        else:
            path.unlink()
        stdout, stderr = adding.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(adding)
    pending(subprocess.CompletedProcess([], adding.returncode, stdout, stderr), "changed or replaced meanwhile")
    assert world.left() == []


def test_open_for_writing(world):
    """A file open for writing is refused, since writes through a mapping need not show in ctime."""
    with open(world.path(APP), "r+b"):
        pending(world.hugeld("enable", APP), "being written to")
    assert [(i["state"], i["reason"], i["key"]) for i in world.list()] == [("pending", "changing", None)]
    assert world.hugeld("apply").returncode == 3  # it is not tried again at once
    world.enable(APP)


def test_waits_for_the_clock(world):
    """A second change within the same tick of the clock could not be told from the first."""
    for _ in range(5):
        world.path(APP).chmod(0o755)
        before = world.path(APP).stat().st_ctime
        assert world.hugeld("enable", APP).returncode == 0
        [image] = world.list()
        assert world.path(image["image"]).stat().st_ctime > before + time.clock_getres(time.CLOCK_REALTIME)
        world.hugeld("disable", APP)


def test_check(world):
    world.enable(APP)
    [image] = world.list()
    assert world.hugeld("list", "--check").returncode == 0
    world.path(image["image"]).chmod(0o757)
    assert world.list()[0]["state"] == "broken" and world.hugeld("list").returncode == 1
    refused(world.hugeld("list", "--check"), "another user could write to it")
    assert world.hugeld("apply").returncode == 0 and world.hugeld("list", "--check").returncode == 0
    [image] = world.list()
    os.utime(world.path(APP))
    assert world.list()[0]["state"] == "changed"
    refused(world.hugeld("list", "--check"), "has changed since")
    answer = json.loads(world.hugeld("list", "--check", "--json").stdout)
    assert "has changed since" in answer["stores"][0]["problems"][0] and "has changed since" in answer["error"]["message"]
    world.path(APP).unlink()
    assert world.list()[0]["state"] == "unnamed"
    refused(world.hugeld("list", "--check"), "is gone", "there is no such file")


def flip(path, offset):
    """Changes one bit of the byte at OFFSET."""
    with open(path, "r+b") as file:
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def find_rest(path):
    """A byte of the image at PATH that no segment and no section has: behind the last segment, in its last page."""
    end = max(h.offset + h.file_bytes for h in read_headers(path) if h.type == PT_LOAD)
    assert end % helpers.PAGE != 0
    return end


@pytest.mark.parametrize("where", ["text", "rest"])
def test_damaged(world, where):
    """check finds a damaged image by its digest, also in a byte that is no segment's, and refresh makes it anew."""
    world.enable(APP)
    [image] = world.list()
    path = world.path(image["image"])
    flip(path, image["bytes"] // 2 if where == "text" else find_rest(path))
    said = world.hugeld("list", "--check")
    refused(said, APP, image["key"], "it is damaged", "hugeld apply")
    remedy = re.search(r"(rm -r \S+); hugeld apply$", said.stderr, re.MULTILINE)
    assert world.run("sh", "-c", remedy[1]).returncode == 0 and world.hugeld("apply").returncode == 0
    assert world.hugeld("list", "--check").returncode == 0 and world.list()[0]["key"] == image["key"]


def test_damaged_in_a_store_of_ones_own(world):
    """The remedy is the command that makes that image anew."""
    named = "--store=/dev/shm/mine and yours", "--list=/run/own.list"
    assert world.apply_list("/dev/shm/mine and yours", APP, options=["--any-disk"]).returncode == 0
    [image] = world.list(*named)
    flip(world.path(image["image"]), image["bytes"] // 2)
    said = world.hugeld("list", "--check", *named)
    refused(said, "it is damaged")
    remedy = re.search(r"rm -r .*; hugeld apply --store=.* --list=/run/own.list --any-disk$", said.stderr, re.MULTILINE)
    assert world.run("sh", "-c", remedy[0].replace("hugeld", "/run/bin/hugeld")).returncode == 0
    assert world.hugeld("list", "--check", *named).returncode == 0


@pytest.mark.parametrize("how", ["link", "mode"])
def test_only_attributes_changed(world, how):
    """perf record makes a hard link, and that changes ctime: the image gets its new key, and nothing is copied."""
    world.enable(APP)
    [before] = world.list()
    inode = world.path(before["image"]).stat().st_ino
    with world.mapped(before["image"]):
        if how == "link":
            os.link(world.path(APP), world.path("/run/programs/linked"))
        else:
            world.path(APP).chmod(0o755)
        assert world.list()[0]["state"] == "ctime"
        refused(world.hugeld("list", "--check"), "attributes have changed")
        assert world.hugeld("apply").returncode == 0
        [after] = world.list()
        assert (after["state"], after["processes"]) == ("fresh", 1) and after["key"] != before["key"]
        assert world.path(after["image"]).stat().st_ino == inode
    assert world.hugeld("list", "--check").returncode == 0 and world.left() == [after["key"]]


def test_bytes_changed_behind_the_times(world):
    """The modification time was set back, so that it seems that only attributes changed."""
    world.enable(APP)
    [before] = world.list()
    inode = world.path(before["image"]).stat().st_ino
    status = world.path(APP).stat()
    with open(world.path(APP), "r+b") as file:
        file.seek(status.st_size // 2)
        file.write(b"other bytes")
    os.utime(world.path(APP), ns=(status.st_atime_ns, status.st_mtime_ns))
    assert world.list()[0]["state"] == "ctime"
    assert world.hugeld("apply").returncode == 0 and world.hugeld("list", "--check").returncode == 0
    [after] = world.list()
    assert world.path(after["image"]).stat().st_ino != inode and b"other bytes" in world.path(after["image"]).read_bytes()
    assert world.left() == [after["key"]]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_refresh_of_what_became_private(world, what):
    """The image of a file that became private goes, since other users could still read it."""
    world.enable(APP)
    (world.path(APP) if what == "file" else world.path(APP).parent).chmod(0o700)
    refused(world.hugeld("apply"), "cannot be read by all users")
    assert [(i["state"], i["huge_pages"]) for i in world.list()] == [("refused", 0)] and world.left() == []


# --- crashes and races ---


def test_at_once(world):
    """Of several commands at once, one makes the store, too, and one the image."""
    world.lists("some", APP)
    adding = [helpers.start(world.command("/run/bin/hugeld", "apply", "--json")) for _ in range(6)]
    try:
        answers = [(*process.communicate(timeout=helpers.PATIENCE), process.returncode) for process in adding]
    finally:
        for process in adding:
            helpers.end_process(process)
    results = [json.loads(stdout)["files"][0]["result"] for stdout, _, _ in answers]
    assert sorted(results) == ["made"] + 5 * ["present"], answers
    assert all(code == 0 and (errors == "" or "waiting for " in errors) for _, errors, code in answers), answers
    [image] = world.list()
    assert world.left() == [image["key"]]
    assert pathlib.Path(f"/proc/{world.pid}/mounts").read_text().count(f" {SYSTEM} ") == 1
    check_huge(world, image)


# --- room ---


def test_full_store(world):
    world.settings(store_size="4M")
    pending(world.hugeld("enable", APP), APP, "the store has only", "store_size")
    assert world.left() == [] and [i["reason"] for i in world.list()] == ["store-full"]
    world.settings(store_size="64M")
    world.enable(APP)
    for call, when, words in (("pwrite64", 3, "the store is full"), ("symlinkat", 1, "the store is full"), ("mkdirat", 1, "No space")):
        unlist(world, APP)
        result = world.hugeld("enable", APP, strace=["-e", f"inject={call}:error=ENOSPC:when={when}"])
        assert result.returncode == 3 and words in result.stderr, result  # another process took the space
        assert world.left() == []


def test_memory_limit(world, cgroup):
    limit = cgroup("memory", v2=("memory.max", 12 << 20), v1=("memory.limit_in_bytes", 12 << 20))
    result = helpers.run([*limit, *world.command("/run/bin/hugeld", "enable", APP)])
    pending(result, "a memory limit", "has only")
    assert world.left() == [] and [i["reason"] for i in world.list()] == ["memory"]


# --- faults that reviewers found ---


def test_without_a_lease(world):
    """Root has the file mapped, and a page of it is dirty already: no store into it changes a time, and only root could see that
    it is being written to."""
    writer = helpers.start(world.command("/usr/bin/python3", "-c", WRITER, APP), stdin=subprocess.PIPE)
    try:
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.1)
        pending(world.hugeld("enable", APP, user=USER), "only its owner and root can see")
        pending(world.hugeld("enable", APP), "being written to")
        assert world.left() == [] and world.left(f"/run/user/{USER}/hugeld") == []
    finally:
        helpers.end_process(writer)


WRITER = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(file, 0)
os.close(file)
mapping[-1] = mapping[-1]
print("ready", flush=True)
sys.stdin.read()
"""


def test_roots_umask(world):
    """An image that root adds is for every user all the same."""
    result = world.run("sh", "-c", f"umask 077; exec /run/bin/hugeld enable {APP}")
    assert result.returncode == 0, result
    [image] = world.list(user=USER)
    assert image["state"] == "fresh"
    check_huge(world, image, USER)
    world.path(image["image"]).parent.chmod(0o700)
    refused(world.hugeld("list", "--check"), "incomplete")
    assert world.hugeld("apply").returncode == 0 and world.list(user=USER)[0]["state"] == "fresh"


@pytest.mark.parametrize("name", ["SIGSTOP", "SIGKILL"])
def test_signals_of_nobody(world, name):
    """A user whose ID a child has could stop it, and with it every process that waits for the store."""
    script = f"import os, signal\nprint(1, flush=True)\nwhile True:\n try: os.kill(-1, signal.{name})\n except OSError: pass"
    world.settings(any_disk="yes")
    # In a PID namespace of its own, where the child is visible, too: no other processes are hit.
    wrapped = ["unshare", "-p", "-f", "--kill-child", "--mount-proc", "sh", "-c",
               "setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 -c \"$0\" > /dev/null & "
               "for i in 1 2 3 4 5 6 7 8; do timeout 60 \"$1\" enable \"$2\" > /dev/null && \"$1\" apply > /dev/null && \"$1\" disable \"$2\" > /dev/null || exit 9; done",
               script, "/run/bin/hugeld", APP]
    result = world.run(*wrapped)
    assert result.returncode == 0 and result.stderr == "", result


def test_a_chroot_is_no_pinned_place(world):
    """A process may have another /: process 1's / and /usr count, and not those of a PID namespace."""
    refused(world.run("unshare", "-p", "-f", "--mount-proc", "/run/bin/hugeld", "enable", APP), "machine's / and /usr")


@pytest.mark.parametrize("error", ["EIO", "EMFILE", "ENOMEM"])
def test_original_cannot_be_opened(world, error):
    """An original that cannot be opened does not mean that the file is gone."""
    world.enable(APP)
    before = world.list()
    for action in (["apply"], ["list", "--check"]):
        world.hugeld(*action, strace=["-P", APP, "-P", "/run/programs", "-e", f"inject=openat:error={error}"])
        assert world.list() == before, action


@pytest.mark.parametrize("call", ["getdents64"])
def test_store_cannot_be_read(world, call):
    """No action claims success if it could not read the store."""
    world.enable(APP)
    inject = ["-e", f"inject={call}:error=EIO:when=1"]
    for action in (["list", "--check"], ["disable", APP], ["list"]):
        result = world.hugeld(*action, strace=inject)
        assert result.returncode != 0 and result.stderr != "", (action, result)
    assert len(world.list()) == 1


def test_half_of_a_shared_file_system_is_left(world):
    """Half of XDG_RUNTIME_DIR's file system is left, since others use it, too."""
    give(world, USER)
    world.run("mount", "-t", "tmpfs", "-o", f"mode=0700,uid={USER},gid={USER},huge=always,size=24M", "none", f"/run/user/{USER}")
    pending(world.hugeld("enable", APP, user=USER), "the store has only")
    assert world.left(f"/run/user/{USER}/hugeld") == []
    assert " KiB of 12288 KiB; 1 enabled\n" in world.hugeld("list", user=USER).stdout
    assert re.search(r"/run/user/.*, \d+ of 12 MiB free", world.hugeld("doctor", user=USER).stdout)
