# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld share`: which files get into a store and which do not, the leftovers when it is killed, and the power of other users.

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
from calls import build_calls
from installed import find_cc1plus
from objects import read_headers
from worlds import APP, OTHER, SYSTEM, TOUCHER, USER, disk


PT_LOAD = 1


def refused(result, *words):
    return helpers.one_line(result, 1, *words)


def check_huge(world, image, user=None):
    with world.mapped(image["image"], user) as huge:
        assert huge == image["huge_pages"] * helpers.HUGE > 0


def give(world, user):
    """Gives the program to USER, who then can see whether a process writes to it."""
    os.chown(world.path(APP), user, user)
    time.sleep(0.05)


# --- its effects ---


def test_add(world, tmp_path):
    assert re.fullmatch(rf"{APP}: image, \d+\.\d % of its text, \d+ huge pages\n", world.add(APP).stdout)
    [image] = world.list()
    status = world.path(APP).stat()
    assert (image["path"], image["state"], image["processes"]) == (APP, "fresh", 0)
    assert image["key"] == (f"{status.st_dev:#x}-{status.st_ino:#x}-{status.st_size:#x}-{status.st_ctime_ns // 10**9:#x}."
                            f"{status.st_ctime_ns % 10**9:#x}")
    folder = world.path(SYSTEM) / image["key"]
    assert {p.name for p in folder.iterdir()} == {"app", ".digest", ".image", ".origin"}
    assert (os.readlink(folder / ".image"), os.readlink(folder / ".origin")) == ("app", APP)
    assert stat.S_IMODE((folder / "app").stat().st_mode) == 0o555 and stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert helpers.hugeld("image", world.path(APP), tmp_path / "image").returncode == 0
    assert (folder / "app").read_bytes() == (tmp_path / "image").read_bytes()
    check_huge(world, image, USER)
    assert "there already" in world.add(APP).stdout and world.left() == [image["key"]]
    text = world.share("list").stdout
    assert APP in text and image["key"] in text and "fresh" in text


def test_add_says_what_it_brings(world, tmp_path):
    """As much as a private copy at any address, including the part of a PIE's text that shares its last huge page with data."""
    folder, data = world.path("/run/programs"), tmp_path / "data.S"
    data.write_text(".section .rodata\n.fill 3 << 20, 1, 1\n.section .note.GNU-stack, \"\", %progbits\n")
    shutil.copy(build_calls(tmp_path / "pie", "-fPIE", "-pie", data, mib=7), folder / "pie")
    said = re.search(r"image, (\S+) % of its text, \d+ huge pages?$", world.add("/run/programs/pie").stdout, re.MULTILINE)
    [file] = json.loads(world.run("/run/bin/hugeld", "inspect", "--json", "/run/programs/pie").stdout)["files"]
    assert float(said[1]) >= 100 * file["range"]["text_share_min"] - 0.1, file["range"]


def test_mount(world):
    world.add(APP)
    mounts = pathlib.Path(f"/proc/{world.pid}/mounts")
    [line] = [line for line in mounts.read_text().splitlines() if f" {SYSTEM} " in line]
    options = line.split()[3].split(",")
    assert {"nosuid", "nodev", "huge=always"} <= set(options) and "noexec" not in options
    assert any(option.startswith("size=") for option in options)
    world.add("--size=64M", APP)
    assert "size=65536k" in mounts.read_text()
    refused(world.share("add", "--size=4k", APP), "cannot resize to 4k")
    assert world.share("remove", "--all").returncode == 0 and world.left() == []
    assert f" {SYSTEM} " in mounts.read_text()  # unmounted, it would be so in other namespaces, too


def test_a_foreign_mount_stays(world):
    world.path(SYSTEM).mkdir()
    assert world.run("mount", "-t", "tmpfs", "-o", "mode=0755,huge=always", "mine", SYSTEM).returncode == 0
    world.add(APP)
    assert world.share("remove", "--all").returncode == 0
    assert f"mine {SYSTEM} " in pathlib.Path(f"/proc/{world.pid}/mounts").read_text() and world.left() == []


def test_folder_and_link(world):
    folder = world.path("/run/programs")
    shutil.copy(folder / "app", folder / "second")
    (folder / "text").write_text("no object\n")
    (folder / "sub").mkdir()
    (folder / "sub/link").symlink_to("../app")
    result = world.add("/run/programs")
    assert [i["path"] for i in world.list()] == [APP, "/run/programs/second"] and "2 images made" in result.stdout
    assert "there already" in world.add("/run/programs/sub/link").stdout
    shutil.copy("/bin/true", folder / "true")
    for path, words in (("/run/programs/text", "no ELF file"), ("/run/none", "No such file"), ("/run/programs/true", "huge page")):
        refused(world.share("add", path), path, words)


def test_no_store_for_what_does_not_open(world):
    """No store is made if there is no image for it."""
    (world.path("/run/programs/text")).write_text("no object\n")
    for path, result, words in ("/run/none", "failed", "No such file"), ("/run/programs/text", "nothing", "no ELF file"):
        refused(world.share("add", path), f"{path}: no image: ", words)
        [file] = json.loads(world.share("add", "--json", path).stdout)["files"]
        assert (file["path"], file["store"], file["result"]) == (path, SYSTEM, result) and words in file["sentence"]
    assert not world.path(SYSTEM).exists()
    result = world.share("add", "/run/none", APP)
    assert result.returncode == 1 and "/run/none: no image: " in result.stderr and f"{APP}: image, " in result.stdout
    assert [i["path"] for i in world.list()] == [APP]


@pytest.mark.parametrize("action", [["list"], ["check"], ["remove", "--unused"], ["remove", "--all"]])
def test_says_that_there_is_no_store(world, action):
    """A missing store is no error, and a user has another one than root."""
    for user, stores in (None, SYSTEM), (USER, f"/run/user/{USER}/hugeld"):
        result = world.share(*action, user=user)
        both = f"{SYSTEM} or {stores}" if user and action[0] != "remove" else stores
        assert (result.returncode, result.stdout, result.stderr) == (0, f"there is no store at {both}\n", ""), result
        answer = json.loads(world.share(*action, "--json", user=user).stdout)
        assert answer == {"stores" if action == ["list"] else "files": []}


def test_json_of_add(world):
    shutil.copy("/bin/true", world.path("/run/programs/true"))
    result = world.share("add", "--json", APP, "/run/programs/true")
    assert result.returncode == 1
    made, small = json.loads(result.stdout)["files"]
    assert (made["result"], made["path"], made["store"], made["sentence"]) == ("made", APP, SYSTEM, None)
    assert (small["result"], small["reason"], small["huge_pages"]) == ("nothing", "too-small", 0)


def test_running(world):
    process = helpers.start(world.command("/run/programs/app"), stdin=subprocess.PIPE)
    process.communicate(timeout=helpers.PATIENCE)  # the program runs at all
    with world.mapped(APP):
        result = world.share("add", "--running", "no-such-process")
        refused(result, "no-such-process", "no process")
    compiler = "/run/programs/our-cc1plus"  # others' may lie on a disk that is refused
    shutil.copy(find_cc1plus(), world.path(compiler))
    fifo = world.path("/run/fifo")
    os.mkfifo(fifo)
    process = helpers.start(world.command(compiler, "-quiet", "/run/fifo", "-o", "/dev/null"))
    try:
        helpers.wait_until(lambda: os.readlink(f"/proc/{process.pid}/exe").endswith("/our-cc1plus"), what="cc1plus")
        helpers.wait_until(lambda: "libc.so.6" in pathlib.Path(f"/proc/{process.pid}/maps").read_text(), what="libc")
        time.sleep(1.2)  # the file is older than a second, and the program reads
        result = world.share("add", "--running", "our-cc1plus")
        assert result.returncode == 0, result
        assert compiler in [i["path"] for i in world.list()]
    finally:
        helpers.end_process(process)


@pytest.mark.parametrize("what", ["no process", "namespace"])
def test_refresh_that_finds_nothing_out(world, what):
    """It is unknown at that moment whether all users can read the file, or where it lies: its image stays."""
    world.add("--way=image", APP)
    before = [(image["key"], image["state"]) for image in world.list()]
    if what == "namespace":
        result = world.run("unshare", "-p", "-f", "--mount-proc", "/run/bin/hugeld", "share", "refresh")
        assert result.returncode == 0, result
    else:
        result = world.share("refresh", strace=["-e", "inject=clone:error=EAGAIN"])
        assert result.returncode == 1 and f"{APP}: it stays as it is: {APP} cannot be examined now" in result.stderr, result
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
    process = helpers.start(world.command("/run/programs/audited"), stdin=subprocess.PIPE)
    try:
        helpers.wait_until(lambda: said.read_text() == "0\n", what="the auditor")
        world.share("add", "--running", "audited")
        for what in (["/run/programs/audited"], [process.pid]):
            told = world.run("/run/bin/hugeld", "doctor", "-p", "*", "--", *what)
            assert "it names an auditing library" in told.stdout, told
        assert said.read_text() == "0\n"
    finally:
        helpers.end_process(process)


def test_libraries_are_listed_as_nobody(world):
    """Libraries are listed as the user nobody, since the file may be another one by then."""
    app = world.path("/run/programs/private/app")
    app.parent.mkdir(mode=0o700)
    shutil.copy("/bin/cat", app)
    process = helpers.start(world.command("/run/programs/private/app"), stdin=subprocess.PIPE)
    try:
        helpers.wait_until(lambda: os.readlink(f"/proc/{process.pid}/exe").endswith("private/app"), what="the program")
        told = world.run("/run/bin/hugeld", "doctor", "-p", "*", process.pid)
        assert "its libraries cannot be listed" in told.stdout, told
        named = world.run("/run/bin/hugeld", "doctor", "-p", "*", "--", "/run/programs/private/app")
        assert "cannot be listed" not in named.stdout, named
        os.chown(app, USER, USER)
        named = world.run("/run/bin/hugeld", "doctor", "-p", "*", "--", "/run/programs/private/app")
        assert "its libraries cannot be listed" in named.stdout, named
    finally:
        helpers.end_process(process)


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


def test_running_unanswered(world, builder):
    """A file that a process maps may lie on a FUSE that does not answer: the wait for it is without the store's lock."""
    _, [library] = builder.with_library("dso-aligned")
    shutil.copy(library, world.path("/run/programs/large.so"))
    script = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    served = "/run/served/large.so"
    world.add(APP)
    with serving(world) as server:
        mapper = helpers.start(world.command("/usr/bin/python3", "-c", script, served), stdin=subprocess.PIPE)
        try:
            assert mapper.stdout.readline() == "ready\n", mapper.stderr.read()
            server.send_signal(signal.SIGSTOP)
            adding = helpers.start(world.command("/run/bin/hugeld", "share", "add", "--running", mapper.pid))
            try:
                helpers.wait_until(lambda: adding.poll() is not None or asks_fuse(adding.pid), what="its question")
                assert adding.poll() is None and world.share("refresh").returncode == 0
                server.send_signal(signal.SIGCONT)
                _, stderr = adding.communicate(timeout=helpers.PATIENCE)
                assert adding.returncode == 1 and f"{served}: no image: its file system does not tell" in stderr, stderr
            finally:
                server.send_signal(signal.SIGCONT)
                helpers.end_process(adding)
        finally:
            helpers.end_process(mapper)


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


def test_lock_that_is_removed(world):
    """It is removed while a command waits for it: the command also waits for the holder of the new one."""
    world.add(APP)
    holder = ["flock", f"{SYSTEM}/.lock", "sh", "-c", "echo ready; exec cat"]
    with contextlib.ExitStack() as stack:
        def start(*arguments, **options):
            process = helpers.start(world.command(*arguments), **options)
            stack.callback(helpers.end_process, process)
            return process

        first = start(*holder, stdin=subprocess.PIPE)
        assert first.stdout.readline() == "ready\n"
        removing = start("/run/bin/hugeld", "share", "remove", "--all")
        helpers.wait_until(lambda: helpers.descriptors(removing.pid, ".lock"), what="its wait")
        world.path(f"{SYSTEM}/.lock").unlink()
        second = start(*holder, stdin=subprocess.PIPE)
        assert second.stdout.readline() == "ready\n"
        helpers.end_process(first)
        time.sleep(1)
        assert removing.poll() is None and len(world.left()) == 1
        helpers.end_process(second)
        assert removing.wait(helpers.PATIENCE) == 0 and world.left() == []


def test_store_that_cannot_be_mounted(world):
    """Nothing of the store stays; a folder that was there before does."""
    add = ["setpriv", "--bounding-set=-sys_admin", "/run/bin/hugeld", "share", "add", "--store=/run/own", "--size=64M", APP]
    refused(world.run(*add), "a store cannot be mounted here")
    assert not world.path("/run/own").exists()
    world.path("/run/own").mkdir()
    refused(world.run(*add), "a store cannot be mounted here")
    assert world.path("/run/own").exists()


@pytest.mark.parametrize("how", ["share add", "share refresh", "enable"])
def test_another_file_system_is_mounted_there(world, how, tmp_path):
    """Another file system there is no store, and nothing is written to it."""
    (tmp_path / "other").mkdir(mode=0o755)
    world.path(SYSTEM).mkdir()
    world.path("/etc/hugeld").mkdir()
    assert world.run("mount", "--bind", tmp_path / "other", SYSTEM).returncode == 0
    if how == "share refresh":
        world.path("/etc/hugeld/hugeld.conf").write_text(f"enabled = {APP}\n")
    arguments = [*how.split(), *([APP] if how != "share refresh" else [])]
    refused(world.run("/run/bin/hugeld", *arguments), f"{SYSTEM}: another file system than tmpfs is mounted there")
    assert os.listdir(tmp_path / "other") == []
    assert how == "share refresh" or not world.path("/etc/hugeld/hugeld.conf").exists()


def test_folder_that_may_not_answer(world):
    """A folder or file on a FUSE gets one line, and no store is made: the file system's type is asked before the store is
    locked."""
    with serving(world):
        refused(world.share("add", "/run/served"), "/run/served is left out", "may not answer, such as FUSE or NFS; keep it on a local disk")
        refused(world.share("add", "/run/served/app"), "/run/served/app: no image: its file system does not tell")
        refused(world.share("add", "--way=place", "/run/served/app"), "/run/served/app: not in place: its file system does not tell")
        [told] = json.loads(world.share("add", "--json", "/run/served/app").stdout)["files"]
        assert (told["result"], told["path"], told["key"], told["store"]) == ("failed", "/run/served/app", None, SYSTEM)
        assert not world.path(SYSTEM).exists()


# --- rights to fill a store ---


def test_own_store(world):
    store = f"/run/user/{USER}/hugeld"
    give(world, USER)
    world.add(APP, user=USER)
    [image] = world.list(user=USER)
    assert image["image"].startswith(store) and stat.S_IMODE(world.path(store).stat().st_mode) == 0o700
    check_huge(world, image, USER)
    for user, found in ((USER, image["image"]), (OTHER, None)):
        [told] = json.loads(world.run("/run/bin/hugeld", "inspect", "--json", APP, user=user).stdout)["files"]
        assert told["image"]["path"] == found
    assert world.run("cat", image["image"], user=OTHER).returncode != 0
    assert world.list(user=OTHER) == [] and world.share("check", user=USER).returncode == 0
    refused(world.share("add", "--size=1G", APP, user=USER), "only root")
    assert world.share("remove", "--all", user=USER).returncode == 0 and world.left(store) == []


def test_old_kernel(world):
    """A kernel that cannot make huge pages on an ordinary tmpfs, and one that has none left."""
    give(world, USER)
    for error, words in (("EINVAL", "6.12"), ("ENOMEM", "did not become huge")):
        result = world.share("add", APP, user=USER, strace=["-e", f"inject=madvise:error={error}"])
        refused(result, words)
        assert world.left(f"/run/user/{USER}/hugeld") == []


def test_old_kernel_at_first_use(world, later):
    """One huge page is tried, no image is written for nothing, and it is not tried again at the next starts."""
    give(world, USER)
    trace = ["strace", "-f", "-o", f"/run/user/{USER}/trace", "-e", "trace=pwrite64,fallocate,madvise", "-e",
             "inject=madvise:error=EINVAL"]
    result = world.run(*trace, *later, "/run/bin/hugeld", "run", "--first-use", "--", APP, user=USER)
    assert result.returncode == 0 and "6.12" in result.stderr, result
    calls = world.path(f"/run/user/{USER}/trace").read_text()
    assert "MADV_COLLAPSE" in calls or ", 0x19" in calls
    assert "fallocate(" not in calls
    assert sum(int(n) for n in re.findall(r"pwrite64\(.* = (\d+)$", calls, re.MULTILINE)) <= helpers.HUGE
    store = f"/run/user/{USER}/hugeld"
    assert world.left(store) == [] and world.path(f"{store}/.lock").stat().st_mtime > time.time() + 3000


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
    for action in (["add", APP], ["list"], ["check"], ["refresh"], ["remove", APP]):
        refused(world.share(*action, "--store", store), words)
    assert not folder.is_dir() or world.left("/dev/shm/store") == []


@pytest.mark.parametrize("how", ["folder", "link"])
def test_store_taken_by_another_user(world, how):
    """XDG_RUNTIME_DIR is another user's, as after su."""
    folder, words = f"/run/user/{OTHER}", "writable by you alone" if how == "folder" else "symbolic link"
    world.run("chmod", "777", folder)
    make = "mkdir -m 777 hugeld" if how == "folder" else "mkdir trap && ln -s trap hugeld"
    assert world.run("sh", "-c", f"cd {folder} && {make}", user=OTHER).returncode == 0
    result = world.run("env", f"XDG_RUNTIME_DIR={folder}", "/run/bin/hugeld", "share", "add", APP, user=USER)
    refused(result, f"{folder}/hugeld", words)
    assert world.left(f"{folder}/hugeld") == []


def test_no_place_for_a_store(world):
    result = world.run("env", "-u", "XDG_RUNTIME_DIR", "/run/bin/hugeld", "share", "add", APP, user=USER)
    refused(result, "XDG_RUNTIME_DIR is not set", "--store")
    for which in ("--all", "--unused", APP):
        result = world.run("env", "-u", "XDG_RUNTIME_DIR", "/run/bin/hugeld", "share", "remove", which, user=USER)
        refused(result, "XDG_RUNTIME_DIR is not set", "only root can remove images from /run/hugeld")
    best = world.run("env", "-u", "XDG_RUNTIME_DIR", "/run/bin/hugeld", "inspect", APP, user=USER).stdout
    assert f"(root can make it, or a user with XDG_RUNTIME_DIR set); hugeld share add {APP}, then hugeld run -- {APP}" in best


def test_store_of_nobody(world):
    """The ID of users that a user namespace does not map: its files are trusted nowhere."""
    folder, nobody = "/dev/shm/nobody", int(pathlib.Path("/proc/sys/kernel/overflowuid").read_text())
    world.path(folder).mkdir(mode=0o700)
    os.chown(world.path(folder), nobody, nobody)
    result = world.run("env", f"XDG_RUNTIME_DIR={folder}", "/run/bin/hugeld", "share", "add", APP, user=nobody)
    refused(result, f"user {nobody} stands for all", "run hugeld as another user")
    assert list(world.path(folder).iterdir()) == []
    listed = world.run("env", f"XDG_RUNTIME_DIR={folder}", "/run/bin/hugeld", "share", "list", user=nobody)
    assert (listed.returncode, listed.stderr) == (0, "")


def test_what_only_root_does(world):
    world.add(APP)
    refused(world.share("add", "--store", SYSTEM, APP, user=USER), "only its owner can change this store")
    for environment in (["env", "-u", "XDG_RUNTIME_DIR"], []):
        result = world.run(*environment, "/run/bin/hugeld", "share", "add", "--way=place", APP, user=USER)
        refused(result, "only root can put files in place")


def test_refused_store_leaves_no_folder(world, tmp_path):
    refused(world.share("add", "--store", tmp_path / "store", APP), "does not lie on tmpfs")
    assert not (tmp_path / "store").exists()


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
    refused(world.share("add", app), app, "users other than root", "/run/programs/theirs" if app != APP else "/run/programs")
    assert world.list() == []
    world.add("--store", "/dev/shm/mine", app)  # whose images only root can use
    world.path("/dev/shm/mine").chmod(0o755)
    world.share("remove", "--store", "/dev/shm/mine", app)
    refused(world.share("add", "--store", "/dev/shm/mine", app), "users other than root")


def test_advice_for_tmp(world):
    """A folder that all may write to is no place for such a file, and chmod is not the advice."""
    world.path(APP).parent.chmod(0o1777)
    result = world.share("add", APP)
    refused(result, "/run/programs can be written by users other than root", "keep the file where only root can write")
    assert "chmod" not in result.stderr and "chown" not in result.stderr


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
    refused(world.share("add", APP), "cannot be read by all users")
    assert world.left() == []
    world.add("--store", "/dev/shm/mine", APP)  # which only root can read


def test_only_for_its_user(world):
    """A file refused for everyone's store can be in one of root's own, as the refusal says."""
    world.path(APP).parent.chmod(0o700)
    said = re.search(r"\((hugeld share add .*?)\) and name that \((hugeld run .*?)\)", world.share("add", APP).stderr)
    folder = ["env", "PATH=/run/bin:/usr/bin:/bin"]
    assert world.run(*folder, *said[1].split()).returncode == 0
    result = world.run(*folder, *said[2].split(), "-o", "verbose=2", "--", APP)
    assert "from /run/own/" in result.stderr, result
    assert world.run("ls", "/run/own", user=USER).returncode != 0
    assert world.left() == []


def test_refused_by_the_kernel_alone(world):
    """Despite its mode bits, only root can reach a mount that is not there for others."""
    nobody = world.run("cat", APP, user=65534)
    assert nobody.returncode == 0, "the test's own folders keep users out"
    world.add(APP)


def test_a_users_link_to_roots_file(world):
    """A user's link to root's file counts as that file: nothing in it is the user's."""
    folder = world.path("/run/theirs")
    folder.mkdir()
    (folder / "link").symlink_to(APP)
    os.chown(folder, USER, USER)
    world.add("/run/theirs/link")
    assert [image["path"] for image in world.list()] == [APP]


@pytest.mark.parametrize("how", ["setuid", "setgid", "capability"])
def test_privileged(world, how):
    path = world.path(APP)
    if how == "capability":
        os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
    else:
        path.chmod(0o4755 if how == "setuid" else 0o2755)
    refused(world.share("add", APP), APP, "set-user-ID")
    assert world.list() == []


def test_other_users_cannot_touch_it(world):
    world.add(APP)
    [image] = world.list()
    folder = f"{SYSTEM}/{image['key']}"
    attacks = [f"echo x >> {image['image']}", f"truncate -s 0 {image['image']}", f"rm -f {image['image']}",
               f"ln -sf /bin/true {folder}/.image", f"mv {folder} {SYSTEM}/elsewhere", f"mkdir {SYSTEM}/0x1-0x1-0x1-0x1.0x1",
               f"chmod 777 {image['image']}", f"touch {folder}/new"]
    before = world.path(image["image"]).read_bytes()
    for attack in attacks:
        assert world.run("sh", "-c", attack, user=USER).returncode != 0, attack
    assert world.path(image["image"]).read_bytes() == before and world.list() == [image]
    assert world.share("check").returncode == 0


def test_another_users_lock(world):
    """A user may lock any file that he can open; no command waits for that."""
    world.add(APP)
    [image] = world.list()
    assert world.run("cat", f"{SYSTEM}/.lock", user=USER).returncode != 0
    places = [SYSTEM, f"{SYSTEM}/{image['key']}", image["image"]]
    holders = [helpers.start(world.command("flock", place, "sh", "-c", "echo ready; exec sleep 1000", user=USER)) for place in places]
    try:
        assert all(holder.stdout.readline() == "ready\n" for holder in holders)
        shutil.copy(world.path(APP), world.path("/run/programs/second"))
        world.add("/run/programs/second")
        assert world.share("refresh").returncode == 0
        assert world.share("remove", "--all").returncode == 0 and world.left() == []
        assert all(holder.poll() is None for holder in holders)
    finally:
        for holder in holders:
            helpers.end_process(holder)


MADV_COLD = 20


def huge_of(world):
    """Huge pages of all files on the store, as meminfo has it of the machine, and blocks of it."""
    status = os.statvfs(world.path(SYSTEM))
    return status.f_blocks - status.f_bfree


@pytest.mark.check_all
def test_a_user_does_not_fill_the_store(world, builder):
    """A user cannot fill the store by reading holes of an image, which would become memory."""
    sparse = world.path("/run/programs/sparse")
    source = "extern const char big_text[]; int main(void) { return 0; }"
    object_file = builder.executable("nopie")
    world.add(APP)
    for image in world.list():
        before = huge_of(world)
        assert world.run("/usr/bin/python3", "-c", TOUCHER, image["image"], helpers.HUGE, user=USER).stdout == "True\n"
        assert huge_of(world) == before
    (world.path("/run/programs") / "sparse.c").write_text('__asm__(".text\\n.p2align 12\\nx: .rept 6291456\\nnop\\n.endr"); ' + source)
    helpers.run(["gcc", "-no-pie", "-Wl,-z,max-page-size=0x2000000", "-o", sparse, world.path("/run/programs/sparse.c")])
    assert sparse.exists() and object_file
    refused(world.share("add", "--way=image", "/run/programs/sparse"), "too far apart")


def test_a_user_splits_pages(world):
    """check says so and changes nothing, refresh makes them huge again."""
    world.add(APP)
    [image] = world.list()
    result = world.run("/usr/bin/python3", "-c", TOUCHER, image["image"], helpers.HUGE, MADV_COLD, user=USER)
    assert result.returncode == 0, result
    for _ in range(2):
        refused(world.share("check"), "pages are not huge any more", "share refresh")
    assert world.share("refresh").returncode == 0 and world.share("check").returncode == 0
    check_huge(world, image)


def test_remove_all_in_another_namespace(world):
    """The store's mount stays: unmounting, or removing the folder, would take it from other namespaces, too."""
    world.add(APP)
    other = helpers.start(["nsenter", "-t", world.pid, "-m", "unshare", "-m", "sh", "-c", "echo ready; exec sleep 1000"])
    try:
        assert other.stdout.readline() == "ready\n"
        inside = ["nsenter", "-t", other.pid, "-m", "--wd=/"]
        assert helpers.run([*inside, "/run/bin/hugeld", "share", "remove", "--all"]).returncode == 0
        assert f" {SYSTEM} " in pathlib.Path(f"/proc/{world.pid}/mounts").read_text()
        world.add(APP)
        assert len(world.list()) == 1
    finally:
        helpers.end_process(other)


# --- files whose numbers repeat ---


def test_another_disk(world, tmp_path):
    """Two file systems made of the same files have the same numbers, one after the other on the same device."""
    def make(file, tree):
        os.truncate(os.open(file, os.O_CREAT | os.O_RDWR), 64 << 20)
        return ["mkfs.ext4", "-q", "-d", tree, file]
    with disk(world, tmp_path, make) as app:
        world.path("/run/disk").chmod(0o755)
        refused(world.share("add", app), "another file system than the machine's / and /usr", "--any-disk")
        assert world.list() == []
        world.add("--any-disk", app)
        assert [image["path"] for image in world.list()] == [app]


def test_times_that_its_maker_chose(world, tmp_path):
    if not shutil.which("mksquashfs"):
        pytest.skip("squashfs-tools is not installed")
    with disk(world, tmp_path, lambda file, tree: ["mksquashfs", tree, file, "-quiet", "-all-root", "-no-progress"]) as app:
        for option in ([], ["--any-disk"]):
            refused(world.share("add", *option, app), "does not tell every change")


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
    for option in ([], ["--any-disk"]):
        refused(world.share("add", *option, "/run/fs/app"), "does not tell every change", "hugeld attach")
    assert world.list() == []


# --- files that change ---

def await_new(world, store=SYSTEM):
    return helpers.wait_until(lambda: ".new" in world.left(store), what=".new")


@pytest.mark.parametrize("call", ["linkat", pytest.param("symlinkat", marks=pytest.mark.check_all)])
@pytest.mark.parametrize("how", ["overwritten", "replaced", *(pytest.param(how, marks=pytest.mark.check_all) for how in (
    "moved away", "made writable", "removed"))])
def test_changed_while_it_is_added(world, how, call):
    path = world.path(APP)
    pause = ["-e", f"inject={call}:delay_enter=4000000:when=1"]
    adding = helpers.start(world.command("/run/bin/hugeld", "share", "add", APP, strace=pause))
    try:
        await_new(world)
        if how == "overwritten":
            with open(path, "r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(b"other bytes")
        elif how == "replaced":
            shutil.copy(path, world.path("/run/programs/new"))
            world.path("/run/programs/new").rename(path)
        elif how == "moved away":
            path.rename(world.path("/run/programs/else"))
        elif how == "made writable":
            path.chmod(0o777)
        else:
            path.unlink()
        stdout, stderr = adding.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(adding)
    refused(subprocess.CompletedProcess([], adding.returncode, stdout, stderr), "changed or replaced meanwhile")
    assert world.left() == []


def test_open_for_writing(world):
    """A file open for writing is refused, since writes through a mapping need not show in ctime."""
    with open(world.path(APP), "r+b"):
        refused(world.share("add", APP), "being written to")
    assert world.list() == []
    world.add(APP)


def test_waits_for_the_clock(world):
    """A second change within the same tick of the clock could not be told from the first."""
    for _ in range(5):
        world.path(APP).chmod(0o755)
        before = world.path(APP).stat().st_ctime
        assert world.share("add", APP).returncode == 0
        [image] = world.list()
        assert world.path(image["image"]).stat().st_ctime > before + time.clock_getres(time.CLOCK_REALTIME)
        world.share("remove", APP)


def test_check(world):
    world.add(APP)
    [image] = world.list()
    assert world.share("check").stdout == f"{SYSTEM}: 1 image, nothing is wrong\n"
    world.path(image["image"]).chmod(0o757)
    assert world.list()[0]["state"] == "broken"
    refused(world.share("check"), "another user could write to it")
    assert world.share("refresh").returncode == 0 and world.share("check").returncode == 0
    [image] = world.list()
    os.utime(world.path(APP))
    assert world.list()[0]["state"] == "changed"
    refused(world.share("check"), "has changed since")
    answer = json.loads(world.share("check", "--json").stdout)["files"]
    assert [(f["result"], f["key"]) for f in answer] == [("bad", image["key"])]
    world.path(APP).unlink()
    assert world.list()[0]["state"] == "gone"
    refused(world.share("check"), "is gone")


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
    world.add(APP)
    [image] = world.list()
    path = world.path(image["image"])
    flip(path, image["bytes"] // 2 if where == "text" else find_rest(path))
    refused(world.share("check"), APP, image["key"], "it is damaged", "share refresh")
    assert world.share("refresh").returncode == 0
    assert world.share("check").returncode == 0 and world.list()[0]["key"] == image["key"]


def test_no_digest(world):
    """An image has no digest, as in stores made before there were any."""
    world.add(APP)
    [image] = world.list()
    (world.path(image["image"]).parent / ".digest").unlink()
    refused(world.share("check"), "no digest", "share refresh")
    assert world.share("refresh").returncode == 0 and world.share("check").returncode == 0


def test_refresh(world):
    second = world.path("/run/programs/second")
    shutil.copy(world.path(APP), second)
    world.add(APP, "/run/programs/second")
    old = {i["path"]: i["key"] for i in world.list()}
    data = bytearray(second.read_bytes())
    second.unlink()
    world.path(APP).write_bytes(data)  # in place: the same inode
    result = world.share("refresh")
    assert result.returncode == 0 and "the file is gone" in result.stdout, result
    [image] = world.list()
    assert image["path"] == APP and image["key"] != old[APP] and image["state"] == "fresh"
    assert world.left() == [image["key"]] and world.share("check").returncode == 0


@pytest.mark.parametrize("how", ["link", "mode"])
def test_only_attributes_changed(world, how):
    """perf record makes a hard link, and that changes ctime: the image gets its new key, and nothing is copied."""
    world.add(APP)
    [before] = world.list()
    inode = world.path(before["image"]).stat().st_ino
    with world.mapped(before["image"]):
        if how == "link":
            os.link(world.path(APP), world.path("/run/programs/linked"))
        else:
            world.path(APP).chmod(0o755)
        assert world.list()[0]["state"] == "ctime"
        refused(world.share("check"), "attributes have changed")
        assert world.share("refresh").returncode == 0
        [after] = world.list()
        assert (after["state"], after["processes"]) == ("fresh", 1) and after["key"] != before["key"]
        assert world.path(after["image"]).stat().st_ino == inode
    assert world.share("check").returncode == 0 and world.left() == [after["key"]]


def test_bytes_changed_behind_the_times(world):
    """The modification time was set back, so that it seems that only attributes changed."""
    world.add(APP)
    [before] = world.list()
    inode = world.path(before["image"]).stat().st_ino
    status = world.path(APP).stat()
    with open(world.path(APP), "r+b") as file:
        file.seek(status.st_size // 2)
        file.write(b"other bytes")
    os.utime(world.path(APP), ns=(status.st_atime_ns, status.st_mtime_ns))
    assert world.list()[0]["state"] == "ctime"
    assert world.share("refresh").returncode == 0 and world.share("check").returncode == 0
    [after] = world.list()
    assert world.path(after["image"]).stat().st_ino != inode and b"other bytes" in world.path(after["image"]).read_bytes()
    assert world.left() == [after["key"]]


def test_refresh_tries_again(world):
    """An image that could not be made anew is not forgotten, and takes no memory meanwhile."""
    world.add(APP)
    with open(world.path(APP), "r+b") as file:
        file.seek(4096)
        file.write(b"x")
        file.flush()
        for _ in range(2):
            refused(world.share("refresh"), "being written to")
            [image] = world.list()
            assert (image["path"], image["state"], image["huge_pages"]) == (APP, "pending", 0)
            refused(world.share("check"), "could not be made yet")
    assert world.share("refresh").returncode == 0 and world.share("check").returncode == 0
    [image] = world.list()
    assert image["state"] == "fresh" and world.left() == [image["key"]]


def test_refresh_of_what_became_private(world):
    """The image of a file that became private goes, since other users could still read it."""
    world.add(APP)
    world.path(APP).chmod(0o700)
    refused(world.share("refresh"), "cannot be read by all users")
    assert [(i["state"], i["huge_pages"]) for i in world.list()] == [("pending", 0)]


def test_killed_while_it_is_made_anew(world):
    for call, when in (("renameat", 1), ("renameat2", 1), ("unlinkat", 2), ("linkat", 1)):
        world.add(APP)
        with open(world.path(APP), "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(first)
        killed = world.share("refresh", strace=["-e", f"inject={call}:signal=KILL:when={when}"])
        assert killed.returncode in (-9, 137), (call, killed)
        assert [image["path"] for image in world.list()] == [APP], call
        assert world.share("refresh").returncode == 0 and world.share("check").returncode == 0
        assert [image["state"] for image in world.list()] == ["fresh"]


def test_what_is_enabled(world):
    folder = world.path("/run/programs")
    for name in ("a1", "a2", "b"):
        shutil.copy(folder / "app", folder / name)
    assert world.share("refresh").returncode == 0 and not world.path(SYSTEM).exists()  # nothing is asked for
    world.path("/etc/hugeld").mkdir()
    world.path("/etc/hugeld/hugeld.conf").write_text("# what is shared\n\n  enabled=/run/programs/a* \nenabled = /run/programs/app\n")
    assert world.share("refresh").returncode == 0
    assert [i["path"] for i in world.list()] == [f"/run/programs/{name}" for name in ("a1", "a2", "app")]
    world.path("/etc/hugeld/hugeld.conf").write_text("enabled = /run/none\n")
    result = world.share("refresh")
    assert result.returncode == 1 and result.stderr == "hugeld: /etc/hugeld/hugeld.conf: /run/none: there is no such file\n"
    assert len(world.list()) == 3


# --- removing ---


def test_remove(world):
    second = world.path("/run/programs/second")
    shutil.copy(world.path(APP), second)
    world.add(APP, "/run/programs/second")
    images = {i["path"]: i for i in world.list()}
    with world.mapped(images[APP]["image"]):
        assert [i["processes"] for i in world.list()] == [1, 0]
        refused(world.share("remove", APP), "1 process maps it", "--force")
        assert world.share("remove", "--unused").returncode == 0
        assert [i["path"] for i in world.list()] == [APP]
        result = world.share("remove", "--force", APP)
        assert result.returncode == 0 and "its memory stays" in result.stdout
        assert world.list() == [] and world.left() == []
    refused(world.share("remove", APP), "no image of it")
    world.add(APP)
    assert world.share("remove", images[APP]["key"]).returncode == 0 and world.list() == []
    world.add(APP)
    world.path(APP).unlink()
    assert world.share("remove", APP).returncode == 0 and world.list() == []  # the name of the removed image


# --- crashes and races ---


CALLS = [("mkdirat", 1), ("flock", 1), ("fallocate", 1), ("ftruncate", 1), ("fchmod", 1), ("utimensat", 1), ("linkat", 1), ("symlinkat", 1), ("symlinkat", 2),
         ("renameat", 1)]


@pytest.mark.check_all
@pytest.mark.parametrize("call, when", [*CALLS, ("pwrite64", 1), ("pwrite64", 20)])
def test_killed(world, call, when):
    world.add(APP)
    world.share("remove", APP)
    result = world.share("add", APP, strace=["-e", f"inject={call}:signal=KILL:when={when}"])
    assert result.returncode == -9 or result.returncode == 137, result
    assert world.list() == [] and not [name for name in world.left() if name.startswith("0x")]
    assert world.left() in ([], [".new"])
    assert world.share("refresh").returncode == 0 and world.left() == []
    world.add(APP)
    assert world.share("check").returncode == 0


@pytest.mark.check_all
@pytest.mark.parametrize("call, when", [("renameat", 1), ("unlinkat", 1), ("unlinkat", 2), ("unlinkat", 4)])
def test_killed_while_removing(world, call, when):
    world.add(APP)
    result = world.share("remove", APP, strace=["-e", f"inject={call}:signal=KILL:when={when}"])
    assert result.returncode in (-9, 137), result
    world.add(APP)
    [image] = world.list()
    assert world.left() == [image["key"]] and world.share("check").returncode == 0


@pytest.mark.check_all
def test_killed_at_any_time(world):
    """At random times; every visible image is complete."""
    world.add(APP)
    for i in range(12):
        assert world.share("remove", "--all", "--force").returncode == 0
        adding = helpers.start(world.command("/run/bin/hugeld", "share", "add", APP))
        time.sleep(0.004 * i)
        helpers.end_process(adding)
        assert all(image["state"] == "fresh" for image in world.list())
        assert world.share("check").returncode == 0
    world.add(APP)
    assert len(world.left()) == 1


def test_waits_for_another(world):
    """An unfinished image is not taken for a leftover."""
    world.add(APP)
    world.share("remove", APP)
    pause = ["-e", "inject=linkat:delay_enter=1000000:when=1"]
    adding = helpers.start(world.command("/run/bin/hugeld", "share", "add", APP, strace=pause))
    try:
        await_new(world)
        result = world.share("refresh")
        assert result.returncode == 0 and len(world.left()) == 1 and ".new" not in world.left(), "it did not wait"
        stdout, stderr = adding.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(adding)
    assert adding.returncode == 0, stderr
    assert len(world.left()) == 1 and world.share("check").returncode == 0


def test_at_once(world):
    """Of several commands at once, one makes the store, too, and one the image."""
    command = world.command("/run/bin/hugeld", "share", "add", "--json", APP)
    adding = [helpers.start(command) for _ in range(6)]
    try:
        answers = [(*process.communicate(timeout=60), process.returncode) for process in adding]
    finally:
        for process in adding:
            helpers.end_process(process)
    results = [json.loads(stdout)["files"][0]["result"] for stdout, _, _ in answers]
    assert sorted(results) == ["made"] + 5 * ["present"] and all((e, c) == ("", 0) for _, e, c in answers), answers
    [image] = world.list()
    assert world.left() == [image["key"]]
    assert pathlib.Path(f"/proc/{world.pid}/mounts").read_text().count(f" {SYSTEM} ") == 1
    check_huge(world, image)


# --- room ---


def test_full_store(world):
    refused(world.share("add", "--size=4M", APP), APP, "the store has room for", "--size")
    assert world.left() == []
    world.add("--size=64M", APP)
    world.share("remove", APP)
    for call, when in (("pwrite64", 3), ("symlinkat", 1), ("mkdirat", 1)):  # another process took the space
        result = world.share("add", APP, strace=["-e", f"inject={call}:error=ENOSPC:when={when}"])
        assert result.returncode == 1 and result.stderr.count("\n") == 1 and "No space" in result.stderr or "full" in result.stderr
        assert world.left() == []


@pytest.mark.check_all
def test_full_for_real(world):
    """The room vanishes after it was looked at."""
    world.add("--size=32M", APP)
    world.share("remove", APP)
    pause = ["-e", "inject=fallocate:delay_enter=4000000:when=1"]
    adding = helpers.start(world.command("/run/bin/hugeld", "share", "add", APP, strace=pause))
    try:
        await_new(world)
        with contextlib.suppress(OSError), open(world.path(f"{SYSTEM}/filler"), "wb", buffering=0) as file:
            while file.write(bytes(1 << 20)):
                pass
        stdout, stderr = adding.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(adding)
    refused(subprocess.CompletedProcess([], adding.returncode, stdout, stderr), "the store is full", "--size")
    assert world.left() == ["filler"]


def test_memory_limit(world, cgroup):
    limit = cgroup("memory", v2=("memory.max", 12 << 20), v1=("memory.limit_in_bytes", 12 << 20))
    result = helpers.run([*limit, *world.command("/run/bin/hugeld", "share", "add", APP)])
    refused(result, "a memory limit", "has room for")
    assert world.list() == []


# --- wrong use ---


@pytest.mark.parametrize("arguments", [
    [], ["nonsense"], ["add"], ["list", "file"], ["add", "--all", "file"], ["remove"], ["remove", "--all", "file"],
    ["list", "--running"], ["check", "--size=1G"], ["add", "--size=0", "f"], ["add", "--size=101%", "f"],
    ["add", "--size=many", "f"], ["list", "--any-disk"], ["add", "--pages=tmpfs", "f"],
], ids=" ".join)
def test_wrong_use(arguments):
    result = helpers.hugeld("share", *arguments)
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and result.stdout == "", result


# --- faults that reviewers found ---


def test_without_a_lease(world):
    """Root has the file mapped, and a page of it is dirty already: no store into it changes a time, and only root could see that
    it is being written to."""
    writer = helpers.start(world.command("/usr/bin/python3", "-c", WRITER, APP), stdin=subprocess.PIPE)
    try:
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.1)
        refused(world.share("add", APP, user=USER), "only its owner and root can see")
        refused(world.share("add", APP), "being written to")
        assert world.left() == [] and world.left(f"/run/user/{USER}/hugeld") == []
    finally:
        helpers.end_process(writer)
    refused(world.share("add", APP, strace=["-e", "inject=fcntl:error=EINVAL"]), "only its owner")  # fs.leases-enable=0


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
    result = world.run("sh", "-c", f"umask 077; exec /run/bin/hugeld share add {APP}")
    assert result.returncode == 0, result
    [image] = world.list(user=USER)
    assert image["state"] == "fresh"
    check_huge(world, image, USER)
    world.path(image["image"]).parent.chmod(0o700)
    refused(world.share("check"), "incomplete")
    assert world.share("refresh").returncode == 0 and world.list(user=USER)[0]["state"] == "fresh"


def test_folder_became_private(world):
    world.add(APP)
    world.path(APP).parent.chmod(0o700)
    refused(world.share("check"), "cannot be read by all users")
    refused(world.share("refresh"), "cannot be read by all users")
    assert [(i["state"], i["huge_pages"]) for i in world.list()] == [("pending", 0)]


@pytest.mark.parametrize("name", ["SIGSTOP", "SIGKILL"])
def test_signals_of_nobody(world, name):
    """A user whose ID a child has could stop it, and with it every process that waits for the store."""
    script = f"import os, signal\nprint(1, flush=True)\nwhile True:\n try: os.kill(-1, signal.{name})\n except OSError: pass"
    # In a PID namespace of its own, where the child is visible, too: no other processes are hit.
    wrapped = ["unshare", "-p", "-f", "--kill-child", "--mount-proc", "sh", "-c",
               "setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 -c \"$0\" > /dev/null & "
               "for i in 1 2 3 4 5 6 7 8; do timeout 60 \"$1\" share add --any-disk \"$2\" && \"$1\" share refresh && \"$1\" share remove \"$2\" || exit 9; done",
               script, "/run/bin/hugeld", APP]
    result = world.run(*wrapped)
    assert result.returncode == 0 and result.stderr == "", result


def test_a_chroot_is_no_pinned_place(world):
    """A process may have another /: process 1's / and /usr count, and not those of a PID namespace."""
    refused(world.run("unshare", "-p", "-f", "--mount-proc", "/run/bin/hugeld", "share", "add", APP), "machine's / and /usr")


def test_btrfs_like_numbers(world):
    """The file is looked for by its mount, in a bind mount as well."""
    assert world.share("add", APP).returncode == 0  # /run/programs is a bind mount of a disk


@pytest.mark.parametrize("error", ["EIO", "EMFILE", "ENOMEM"])
def test_original_cannot_be_opened(world, error):
    """An original that cannot be opened does not mean that the file is gone."""
    world.add(APP)
    before = world.list()
    for action in ("refresh", "check"):
        world.share(action, strace=["-P", APP, "-P", "/run/programs", "-e", f"inject=openat:error={error}"])
        assert world.list() == before, action


@pytest.mark.parametrize("call", ["getdents64", "fcntl"])
def test_store_cannot_be_read(world, call):
    """No action claims success if it could not read the store."""
    world.add(APP)
    inject = ["-e", f"inject={call}:error=EIO:when=1"]
    for action in (["refresh"], ["check"], ["remove", "--all"], ["list"]):
        result = world.share(*action, strace=inject)
        assert result.returncode != 0 and result.stderr != "", (action, result)
    assert len(world.list()) == 1


def test_pending_and_gone(world):
    world.add(APP)
    world.path(APP).chmod(0o700)
    assert world.share("refresh").returncode == 1 and world.list()[0]["state"] == "pending"
    world.path(APP).unlink()
    assert world.list()[0]["state"] == "gone"
    result = world.share("refresh")
    assert result.returncode == 0 and "the file is gone" in result.stdout and world.left() == []


def test_how_it_was_asked_for(world, tmp_path):
    """refresh makes an image as it was made first."""
    def make(file, tree):
        return ["mke2fs", "-q", "-t", "ext4", "-d", tree, file, "64M"]

    with disk(world, tmp_path, make) as app:
        time.sleep(0.1)
        world.add("--any-disk", app)
        os.link(world.path(app), world.path("/run/disk/linked"))
        time.sleep(0.1)
        assert world.share("refresh").returncode == 0 and world.share("check").returncode == 0
        with open(world.path(app), "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(first)
        time.sleep(0.1)
        assert world.share("refresh").returncode == 0
        assert {image["path"]: image["state"] for image in world.list()}[app] == "fresh"
        assert world.share("remove", app).returncode == 0


def test_split_and_touched(world):
    """The image gets its new key only when it is huge."""
    world.add(APP)
    [image] = world.list()
    assert world.run("/usr/bin/python3", "-c", TOUCHER, image["image"], helpers.HUGE, MADV_COLD, user=USER).returncode == 0
    os.link(world.path(APP), world.path("/run/programs/linked"))
    time.sleep(0.1)
    assert world.share("refresh").returncode == 0 and world.share("check").returncode == 0
    check_huge(world, world.list()[0])


def test_half_of_a_shared_file_system_is_left(world):
    """Half of XDG_RUNTIME_DIR's file system is left, since others use it, too."""
    give(world, USER)
    world.run("mount", "-t", "tmpfs", "-o", f"mode=0700,uid={USER},gid={USER},huge=always,size=24M", "none", f"/run/user/{USER}")
    refused(world.share("add", APP, user=USER), "the store has room for")
    assert world.left(f"/run/user/{USER}/hugeld") == []


def test_run_tells_of_attributes(world):
    """perf record makes a hard link; then the image is not used, and run says why if asked."""
    world.add(APP)
    command = ["/run/bin/hugeld", "run", "-o", "verbose=1", "-p", "main", "--", APP]
    assert "attributes changed" not in world.run(*command).stderr
    os.link(world.path(APP), world.path("/run/programs/linked"))
    assert "attributes changed since (a hard link, chmod); run hugeld share refresh" in world.run(*command).stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_descriptors(own_store, closed):
    """With standard output or error closed, no message goes into a file of the store."""
    command = f'exec "$0" share add "--store=$1" "$2" /nonexistent {closed}'
    result = helpers.run(["sh", "-c", command, helpers.HUGELD, own_store, os.path.realpath("/usr/bin/python3")])
    assert result.returncode == 1, result
    assert (own_store / ".lock").read_bytes() == b""
