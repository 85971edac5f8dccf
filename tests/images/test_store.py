# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld share`: what gets into a store and what does not, what is left when it is killed, and what other users can do.

Everything happens in a mount namespace with a /run, /dev/shm and /etc of its own, which a process holds as long as the test
lasts; so nothing on this machine changes.  That pages are huge is read from smaps of a process that maps the image."""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import stat
import struct
import subprocess
import time

import pytest

import helpers

pytestmark = pytest.mark.beside

USER, OTHER = 12345, 12346
SYSTEM = "/run/hugeld"

# Maps FILE at a multiple of a huge page, reads one byte of each page, prints ready and its smaps, and waits.
MAPPER = r"""
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file, huge = os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
size = -(-os.fstat(file).st_size // huge) * huge
room = libc.mmap(None, size + huge, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
at = -(-room // huge) * huge
assert libc.mmap(at, size, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_SHARED | 0x10, file, 0) == at
for page in range(0, os.fstat(file).st_size, huge):
    ctypes.string_at(at + page, 1)
print(f"{at:x}-{at + size:x}", flush=True)
sys.stdin.read()
"""


class World:
    """A mount namespace of its own, and what is done in it."""

    def __init__(self, holder):
        self.pid = holder.pid
        self.root = pathlib.Path(f"/proc/{holder.pid}/root")

    def path(self, path):
        return self.root / str(path).lstrip("/")

    def command(self, *arguments, user=None, strace=None):
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        trace = ["strace", "-f", "-o", "/dev/null", *strace] if strace else []
        return ["nsenter", "-t", self.pid, "-m", "--wd=/", *become, *trace, *arguments]

    def run(self, *arguments, **options):
        return helpers.run(self.command(*arguments, **options))

    def share(self, *arguments, **options):
        return self.run("/run/bin/hugeld", "share", *arguments, **options)

    def add(self, *arguments, **options):
        result = self.share("add", *arguments, **options)
        assert (result.returncode, result.stderr) == (0, ""), result
        return result

    def list(self, *arguments, **options):
        """All images that there are."""
        result = self.share("list", "--json", *arguments, **options)
        assert (result.returncode, result.stderr) == (0, ""), result
        return [image for store in json.loads(result.stdout)["stores"] for image in store["images"]]

    def left(self, store=SYSTEM):
        """Every name in the folder of the store."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.path(store)))
        return []

    @contextlib.contextmanager
    def mapped(self, image, user=None):
        """A process that maps IMAGE: gives bytes of it that are mapped by huge entries."""
        process = helpers.start(self.command("/usr/bin/python3", "-c", MAPPER, image, helpers.HUGE, user=user),
                                stdin=subprocess.PIPE)
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            start = int(line.partition("-")[0], 16)
            mapping = next(m for m in helpers.read_smaps(process.pid) if m.start == start)
            yield (mapping.kb["ShmemPmdMapped"] + mapping.kb["FilePmdMapped"]) * 1024 + mapping.hugetlb_bytes
        finally:
            helpers.end_process(process)


@pytest.fixture(scope="module")
def folders(builder, tmp_path_factory):
    """Folders with the program, made some tests before they are used: an image is made of a file that is a second old."""
    ready = collections.deque()

    def take():
        while len(ready) < 4:
            ready.append(tmp_path_factory.mktemp("programs"))
            ready[-1].chmod(0o755)
            shutil.copy(builder.executable("pie"), ready[-1] / "app")
            (ready[-1] / "app").chmod(0o755)
        return ready.popleft()

    yield take
    for folder in ready:
        shutil.rmtree(folder)


@pytest.fixture
def world(root, folders):
    """One with a program at /run/programs/app, on which only root can lay hands."""
    script = """
        mount -t tmpfs -o mode=0755 none /run && mount -t tmpfs -o mode=1777,size=256M none /dev/shm &&
        mount -t tmpfs -o mode=0755 none /etc && mkdir /run/bin /run/programs && mount --bind "$0" /run/programs &&
        echo ready && exec sleep 1000
    """
    programs = folders()
    holder = helpers.start(["unshare", "-m", "sh", "-c", script, programs])
    try:
        assert holder.stdout.readline() == "ready\n", holder.stderr.read()
        world = World(holder)
        shutil.copy(helpers.HUGELD, world.path("/run/bin/hugeld"))
        world.path("/run/bin/hugeld").chmod(0o755)
        yield world
    finally:
        helpers.end_process(holder)
        shutil.rmtree(programs)


APP = "/run/programs/app"


def refused(result, *words):
    """RESULT says WORDS in one line, and nothing else."""
    assert result.returncode == 1, result
    assert result.stdout == "" and result.stderr.count("\n") == 1 and result.stderr.startswith("hugeld: "), result
    for word in words:
        assert word in result.stderr, result
    return True


def check_huge(world, image, user=None):
    with world.mapped(image["image"], user) as huge:
        assert huge == image["huge_pages"] * helpers.HUGE > 0


# --- what it does ---


def test_add(world, tmp_path):
    assert re.fullmatch(rf"{APP}: \d+ huge pages\n", world.add(APP).stdout)
    [image] = world.list()
    status = world.path(APP).stat()
    assert (image["path"], image["state"], image["processes"], image["replicas"]) == (APP, "fresh", 0, 0)
    assert image["key"] == (f"{status.st_dev:#x}-{status.st_ino:#x}-{status.st_size:#x}-{status.st_ctime_ns // 10**9:#x}."
                            f"{status.st_ctime_ns % 10**9:#x}")
    folder = world.path(SYSTEM) / image["key"]
    assert {p.name for p in folder.iterdir()} == {"app", ".image", ".origin"}
    assert (os.readlink(folder / ".image"), os.readlink(folder / ".origin")) == ("app", APP)
    assert stat.S_IMODE((folder / "app").stat().st_mode) == 0o555 and stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert helpers.hugeld("image", world.path(APP), tmp_path / "image").returncode == 0
    assert (folder / "app").read_bytes() == (tmp_path / "image").read_bytes()
    check_huge(world, image, USER)
    assert "there already" in world.add(APP).stdout and world.left() == [image["key"]]
    text = world.share("list").stdout
    assert APP in text and image["key"] in text and "fresh" in text


def test_mount(world):
    world.add(APP)
    mounts = pathlib.Path(f"/proc/{world.pid}/mounts")
    [line] = [line for line in mounts.read_text().splitlines() if f" {SYSTEM} " in line]
    options = line.split()[3].split(",")
    assert {"nosuid", "nodev", "huge=always"} <= set(options) and "noexec" not in options
    assert any(option.startswith("size=") for option in options)
    refused(world.share("add", "--pages=hugetlb", APP), "tmpfs already", "remove --all")
    world.add("--size=64M", APP)
    assert "size=65536k" in mounts.read_text()
    refused(world.share("add", "--size=4k", APP), "its size cannot become")
    world.share("remove", "--all")
    assert f" {SYSTEM} " not in mounts.read_text() and not world.path(SYSTEM).exists()


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
    for path, words in (("/run/programs/text", "no ELF file"), ("/run/none", "No such file"), ("/run/bin/hugeld", "huge page")):
        refused(world.share("add", path), path, words)


def test_json_of_add(world):
    result = world.share("add", "--json", APP, "/run/bin/hugeld")
    assert result.returncode == 1
    made, small = json.loads(result.stdout)["files"]
    assert (made["result"], made["path"], made["store"], made["sentence"]) == ("made", APP, SYSTEM, None)
    assert (small["result"], small["reason"], small["huge_pages"]) == ("nothing", "too-small", 0)


def test_running(world):
    process = helpers.start(world.command("/run/programs/app"), stdin=subprocess.PIPE)
    process.communicate(timeout=30)  # the program runs at all
    with world.mapped(APP):
        result = world.share("add", "--running", "no-such-process")
        refused(result, "no-such-process", "no process")
    cc1plus = helpers.find_cc1plus()
    fifo = world.path("/run/fifo")
    os.mkfifo(fifo)
    compiler = helpers.start(world.command(cc1plus, "-quiet", "/run/fifo", "-o", "/dev/null"))
    try:
        helpers.wait_until(lambda: os.readlink(f"/proc/{compiler.pid}/exe") == cc1plus, what="cc1plus")
        helpers.wait_until(lambda: "libc.so.6" in pathlib.Path(f"/proc/{compiler.pid}/maps").read_text(), what="libc")
        time.sleep(0.2)
        result = world.share("add", "--running", "cc1plus")
        assert result.returncode == 0, result
        assert cc1plus in [i["path"] for i in world.list()]
    finally:
        helpers.end_process(compiler)


def test_per_node(world):
    nodes = pathlib.Path("/sys/devices/system/node/has_memory").read_text().strip()
    numbers = [n for part in nodes.split(",") for n in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]
    world.add(APP)  # without: then it is made anew
    world.add("--per-node", APP)
    [image] = world.list()
    assert image["replicas"] == len(numbers)
    folder = world.path(SYSTEM) / image["key"]
    assert os.readlink(folder / ".image") == f"node{numbers[0]}/app"
    for number in numbers:
        assert os.readlink(folder / f".image-{number}") == f"node{number}/app"
    check_huge(world, dict(image, huge_pages=image["huge_pages"] // len(numbers)))
    assert world.share("check").returncode == 0
    assert world.share("remove", APP).returncode == 0 and world.left() == []


# --- who may fill which store ---


def test_own_store(world):
    store = f"/dev/shm/hugeld-{USER}"
    world.add(APP, user=USER)
    [image] = world.list(user=USER)
    assert image["image"].startswith(store) and stat.S_IMODE(world.path(store).stat().st_mode) == 0o700
    check_huge(world, image, USER)
    for user, found in ((USER, image["image"]), (OTHER, None)):
        [told] = json.loads(world.run("/run/bin/hugeld", "inspect", "--json", APP, user=user).stdout)["files"]
        assert told["image"]["path"] == found
    assert world.run("cat", image["image"], user=OTHER).returncode != 0
    assert world.list(user=OTHER) == [] and world.share("check", user=USER).returncode == 0
    refused(world.share("add", "--pages=tmpfs", APP, user=USER), "only root")
    assert world.share("remove", "--all", user=USER).returncode == 0 and not world.path(store).exists()


def test_old_kernel(world):
    """One that cannot make huge pages on an ordinary tmpfs, and one that has none left."""
    for error, words in (("EINVAL", "6.12"), ("ENOMEM", "did not become huge")):
        result = world.share("add", APP, user=USER, strace=["-e", f"inject=madvise:error={error}"])
        refused(result, words)
        assert world.left(f"/dev/shm/hugeld-{USER}") == []


@pytest.mark.parametrize("how", ["another's", "group", "others", "link", "file", "noexec", "disk"])
def test_unsafe_store(world, how, tmp_path):
    store, folder = "/dev/shm/store", world.path("/dev/shm/store")
    words = {"link": "symbolic link", "file": "folder", "noexec": "noexec", "disk": "tmpfs"}.get(how, "another user")
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


def test_store_taken_by_another_user(world):
    """Somebody was faster in making the folder that is to be this user's, or a link of that name."""
    store = f"/dev/shm/hugeld-{USER}"
    assert world.run("mkdir", "-m", "777", store, user=OTHER).returncode == 0
    refused(world.share("add", APP, user=USER), store, "another user")
    assert world.left(store) == []
    assert world.run("rmdir", store, user=OTHER).returncode == 0
    assert world.run("sh", "-c", f"mkdir /dev/shm/trap && ln -s trap {store}", user=OTHER).returncode == 0
    refused(world.share("add", APP, user=USER), store, "symbolic link")


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
    if how == "hard link":  # of root's file, where a user can put another in its place
        folder = world.path("/run/programs/theirs")
        folder.mkdir()
        os.chown(folder, USER, USER)
        os.link(path, folder / "app")
        app = "/run/programs/theirs/app"
    refused(world.share("add", app), app, "somebody other than root", "/run/programs/theirs" if app != APP else "/run/programs")
    assert world.list() == []
    world.add("--store", "/dev/shm/mine", app)  # whose images only root can use
    world.path("/dev/shm/mine").chmod(0o755)
    world.share("remove", "--store", "/dev/shm/mine", app)
    refused(world.share("add", "--store", "/dev/shm/mine", app), "somebody other than root")


def test_a_users_link_to_roots_file(world):
    """Is the file that it leads to: nothing in it is the user's."""
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


# --- files that change ---

def await_new(world, store=SYSTEM):
    return helpers.wait_until(lambda: [name for name in world.left(store) if name.startswith(".new-")], what=".new-XXXXXX")


@pytest.mark.parametrize("call", ["linkat", pytest.param("symlinkat", marks=pytest.mark.whole)])
@pytest.mark.parametrize("how", ["overwritten", "replaced", *(pytest.param(how, marks=pytest.mark.whole) for how in (
    "moved away", "made writable", "removed"))])
def test_changed_while_it_is_added(world, how, call):
    path = world.path(APP)
    pause = ["-e", f"inject={call}:delay_enter=1500000:when=1"]
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
        stdout, stderr = adding.communicate(timeout=30)
    finally:
        helpers.end_process(adding)
    refused(subprocess.CompletedProcess([], adding.returncode, stdout, stderr), "changed or replaced meanwhile")
    assert world.left() == []


def test_open_for_writing(world):
    """Also through a mapping, whose stores need not show in ctime."""
    with open(world.path(APP), "r+b"):
        refused(world.share("add", APP), "being written to")
    assert world.list() == []
    world.add(APP)


def test_waits_for_the_clock(world):
    """A second change within the same tick of the clock could not be told from the first."""
    world.path(APP).chmod(0o755)
    before = world.path(APP).stat().st_ctime
    world.add(APP)
    assert time.time() - before >= 1
    assert world.path(f"{SYSTEM}/{world.list()[0]['key']}").stat().st_mtime - before >= 1


def test_check(world):
    world.add(APP)
    [image] = world.list()
    assert world.share("check").stdout == f"{SYSTEM}: 1 image, nothing is wrong\n"
    path = world.path(image["image"])
    with open(path, "r+b") as file:
        file.seek(image["bytes"] // 2)
        old = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([old[0] ^ 1]))
    refused(world.share("check"), APP, image["key"], "its bytes are not")
    assert world.share("refresh").returncode == 0  # makes it anew
    assert world.share("check").returncode == 0 and world.list()[0]["key"] == image["key"]
    world.path(image["image"]).chmod(0o757)
    assert world.list()[0]["state"] == "broken"
    refused(world.share("check"), "somebody else could write to it")
    assert world.share("refresh").returncode == 0 and world.share("check").returncode == 0
    os.utime(world.path(APP))
    assert world.list()[0]["state"] == "changed"
    refused(world.share("check"), "has changed since")
    answer = json.loads(world.share("check", "--json").stdout)["files"]
    assert [(f["result"], f["key"]) for f in answer] == [("bad", image["key"])]
    world.path(APP).unlink()
    assert world.list()[0]["state"] == "gone"
    refused(world.share("check"), "is gone")


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


def test_list_of_shared(world):
    folder = world.path("/run/programs")
    for name in ("a1", "a2", "b"):
        shutil.copy(folder / "app", folder / name)
    assert world.share("refresh").returncode == 0 and not world.path(SYSTEM).exists()  # nothing is asked for
    world.path("/etc/hugeld").mkdir()
    world.path("/etc/hugeld/shared").write_text("# what is shared\n\n  /run/programs/a* \n/run/programs/app\n")
    assert world.share("refresh").returncode == 0
    assert [i["path"] for i in world.list()] == [f"/run/programs/{name}" for name in ("a1", "a2", "app")]
    world.path("/etc/hugeld/shared").write_text("/run/none\n")
    result = world.share("refresh")
    assert result.returncode == 1 and result.stderr == "hugeld: /etc/hugeld/shared: /run/none: there is no such file\n"
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
    assert world.share("remove", APP).returncode == 0 and world.list() == []  # the name of what is gone


# --- crashes and races ---


CALLS = [("mkdirat", 1), ("flock", 1), ("ftruncate", 1), ("fchmod", 1), ("linkat", 1), ("symlinkat", 1), ("symlinkat", 2),
         ("renameat", 1)]


@pytest.mark.whole
@pytest.mark.parametrize("pages, call, when", [
    *(("tmpfs", *call) for call in [*CALLS, ("pwrite64", 1), ("pwrite64", 20)]),
    *(("hugetlb", *call) for call in [*CALLS, ("mkdirat", 2), ("fallocate", 1), ("fallocate", 4)]),
])
def test_killed(world, call, when, pages, pool):
    pool(32)
    world.add(f"--pages={pages}", APP)
    world.share("remove", APP)
    free = helpers.free_pages()
    result = world.share("add", APP, strace=["-e", f"inject={call}:signal=KILL:when={when}"])
    assert result.returncode == -9 or result.returncode == 137, result
    assert world.list() == [] and not [name for name in world.left() if name.startswith("0x")]
    left = [name for name in world.left() if name.startswith(".new-")]
    assert len(left) == 1 or (call, when) == ("mkdirat", 1)
    assert world.share("refresh").returncode == 0  # sweeps
    assert not [name for name in world.left() if name.startswith(".new-")] and helpers.free_pages() == free
    world.add(APP)
    assert world.share("check").returncode == 0


@pytest.mark.whole
@pytest.mark.parametrize("call, when", [("renameat", 1), ("unlinkat", 1), ("unlinkat", 2), ("unlinkat", 4)])
def test_killed_while_removing(world, call, when):
    world.add(APP)
    result = world.share("remove", APP, strace=["-e", f"inject={call}:signal=KILL:when={when}"])
    assert result.returncode in (-9, 137), result
    world.add(APP)
    [image] = world.list()
    assert world.left() == [image["key"]] and world.share("check").returncode == 0


@pytest.mark.whole
def test_killed_at_any_time(world):
    """By chance; whatever is visible is whole."""
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


def test_leftover_of_a_living_one_stays(world):
    world.add(APP)
    world.share("remove", APP)
    pause = ["-e", "inject=renameat:delay_enter=1000000:when=1"]
    adding = helpers.start(world.command("/run/bin/hugeld", "share", "add", APP, strace=pause))
    try:
        await_new(world)
        assert world.share("refresh").returncode == 0
        assert [name for name in world.left() if name.startswith(".new-")]
        stdout, stderr = adding.communicate(timeout=30)
    finally:
        helpers.end_process(adding)
    assert adding.returncode == 0, stderr
    assert len(world.left()) == 1 and world.share("check").returncode == 0


def test_at_once(world):
    """Also the store is made by one of them."""
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
    for call, when in (("pwrite64", 3), ("symlinkat", 1), ("mkdirat", 1)):  # somebody else took what was there
        result = world.share("add", APP, strace=["-e", f"inject={call}:error=ENOSPC:when={when}"])
        assert result.returncode == 1 and result.stderr.count("\n") == 1 and "No space" in result.stderr or "full" in result.stderr
        assert world.left() == []


@pytest.mark.whole
def test_full_for_real(world):
    """Room that vanishes after it was looked at."""
    world.add("--size=32M", APP)
    world.share("remove", APP)
    pause = ["-e", "inject=ftruncate:delay_enter=1000000:when=1"]
    adding = helpers.start(world.command("/run/bin/hugeld", "share", "add", APP, strace=pause))
    try:
        await_new(world)
        with contextlib.suppress(OSError), open(world.path(f"{SYSTEM}/filler"), "wb", buffering=0) as file:
            while file.write(bytes(1 << 20)):
                pass
        stdout, stderr = adding.communicate(timeout=30)
    finally:
        helpers.end_process(adding)
    refused(subprocess.CompletedProcess([], adding.returncode, stdout, stderr), "the store is full", "--size")
    assert world.left() == ["filler"]


def test_hugetlb(world, pool):
    pool(32)
    world.add("--pages=hugetlb", APP)
    [image] = world.list()
    assert 32 - helpers.free_pages() == image["huge_pages"] and world.share("check").returncode == 0
    check_huge(world, image, USER)
    assert image["image"].endswith("/app")
    assert world.share("remove", APP).returncode == 0 and helpers.free_pages() == 32
    assert world.share("remove", "--all").returncode == 0 and not world.path(SYSTEM).exists()


def test_pool_too_small(world, pool):
    pool(3)
    refused(world.share("add", "--pages=hugetlb", APP), "the huge page pool has room for 6 MiB", "vm.nr_hugepages")
    assert world.left() == [".hugetlb"] and world.left(f"{SYSTEM}/.hugetlb") == [] and helpers.free_pages() == 3


def test_memory_limit(world, cgroup):
    limit = cgroup("memory", v2=("memory.max", 12 << 20), v1=("memory.limit_in_bytes", 12 << 20))
    result = helpers.run([*limit, *world.command("/run/bin/hugeld", "share", "add", APP)])
    refused(result, "a memory limit", "has room for")
    assert world.list() == []


# --- wrong use ---


@pytest.mark.parametrize("arguments", [
    [], ["nonsense"], ["add"], ["list", "file"], ["add", "--all", "file"], ["remove"], ["remove", "--all", "file"],
    ["list", "--running"], ["check", "--size=1G"], ["add", "--size=0", "f"], ["add", "--size=101%", "f"],
    ["add", "--size=many", "f"], ["add", "--pages=thp", "f"],
], ids=" ".join)
def test_wrong_use(arguments):
    result = helpers.hugeld("share", *arguments)
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and result.stdout == "", result
