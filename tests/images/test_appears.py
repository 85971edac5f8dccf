# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld service`: enabled files that are not there when it begins, and the cost of looking for them.

Here a second is a minute."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

import helpers
from test_service import CONFIGURATION, STOP, disk, enable, held, holds, replace, service, state, status, stays, wait_for
from worlds import APP, SYSTEM, USER

pytestmark = pytest.mark.check_all(ci=True)  # the service goes

LATE = "/run/programs/late"
LOOK = 10 / 60  # seconds between two looks
SOON = 50  # seconds, in which the service has looked many times, and less than an hour


@pytest.fixture
def fast(later):
    """Freed memory becomes bytes of 0xc0: as a time, that is long ago."""
    words = [word if not word.startswith("FAKETIME=") else "FAKETIME=+0 x60" for word in later if "DONT_FAKE" not in word]
    return [*words, "MALLOC_PERTURB_=192"]


@contextlib.contextmanager
def looking(world, fast, *entries, lines=(), log=subprocess.PIPE, options=("--keep-only",)):
    """The service, with a store in which nothing is, once it has looked for ENTRIES."""
    enable(world, *entries, lines=lines)
    world.run("/run/bin/hugeld", "service", "--once")  # as hugeld.service does it
    with service(world, fast, options, stderr=log) as process:
        helpers.wait_until(lambda: stays(process), what="its start")
        time.sleep(2)
        yield process


def put(world, path):
    """Puts the program at PATH as dpkg does."""
    world.path(path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(world.path(APP), world.path(f"{path}.dpkg-new"))
    world.path(f"{path}.dpkg-new").rename(world.path(path))


def put_of_user(world, path):
    """The same, USER's: it is never there as root's."""
    new = world.path("/run/programs/.new")
    shutil.copy(world.path(APP), new)
    os.chown(new, USER, USER)
    new.rename(path)


def is_fresh(image):
    return image["state"] == "fresh"


@pytest.mark.parametrize(("entry", "path"), [
    (LATE, LATE), ("/run/programs/new/folder/late", "/run/programs/new/folder/late"),
    ("/run/programs/app-*/late", "/run/programs/app-2/late"), ("/run/programs/new", "/run/programs/new/folder/late"),
    ("/run/programs/name", LATE), ("/run/programs/names", "/run/programs/new/late")],
    ids=["file", "folder", "pattern", "tree", "link", "tree by a link"])
@pytest.mark.parametrize("options", [["--keep-only"], []], ids=["unit", "alone"])
def test_appears(world, fast, entry, path, options):
    """The file, a folder of its path, one more that a pattern means, one in a folder that is enabled, the target of a link."""
    with looking(world, fast, entry, options=options) as process:
        assert world.list() == []
        put(world, path)
        if entry != path and "name" in entry:
            world.path(entry).symlink_to("new" if entry.endswith("s") else "late")
        image = wait_for(world, is_fresh)
        assert image["path"] == path and holds(process, image)


@pytest.mark.check_all
def test_comes_back(world, fast):
    """It is removed, its image goes a minute later; the same when it is there again, and when that is replaced."""
    with looking(world, fast, LATE) as process:
        for _ in range(2):
            put(world, LATE)
            first = wait_for(world, is_fresh)
            replace(world, LATE)
            second = wait_for(world, lambda image, key=first["key"]: is_fresh(image) and image["key"] != key)
            assert holds(process, second)
            world.path(LATE).unlink()
            helpers.wait_until(lambda: world.left() == [] and held(process) == 0, SOON, "its image to be gone")


def test_disk_is_mounted(world, fast, tmp_path):
    """No event tells of a mount; and after mounting the same disk again the file has the same numbers."""
    def make(file, tree):
        return ["mke2fs", "-q", "-t", "ext4", "-d", tree, file, "64M"]

    with disk(world, tmp_path, make) as app:
        unmount, mount = ["umount", "/run/disk"], ["mount", "-o", "loop", tmp_path / "disk", "/run/disk"]
        assert world.run(*unmount).returncode == 0
        with looking(world, fast, app, lines=["any_disk = yes"]) as process:
            for _ in range(2):
                assert world.list() == [] and world.run(*mount).returncode == 0
                assert holds(process, wait_for(world, is_fresh))
                assert world.run(*unmount).returncode == 0
                helpers.wait_until(lambda: world.left() == [] and held(process) == 0, SOON, "its image to be gone")
            assert world.run("sh", "-c", f"mount -o loop {tmp_path}/disk /run/disk").returncode == 0
            wait_for(world, is_fresh)
            # Unmounted and mounted between two looks.
            assert world.run("sh", "-c", f"umount /run/disk && mount -o loop {tmp_path}/disk /run/disk").returncode == 0
            time.sleep(20 * LOOK)
            assert holds(process, wait_for(world, is_fresh))


@pytest.mark.parametrize("what", ["folder", "owner"])
def test_exposed(world, fast, tmp_path, what):
    """Another user could write the file, or exchange it: a line says so once, and the file is looked at again when that has
    changed."""
    with open(tmp_path / "said", "w") as log, looking(world, fast, "/run/programs/new/late", log=log) as process:
        folder, file = world.path("/run/programs/new"), world.path("/run/programs/new/late")
        folder.mkdir()
        if what == "folder":
            folder.chmod(0o777)
            shutil.copy(world.path(APP), file)
        else:
            put_of_user(world, file)
        wait_for(world, lambda image: image["state"] == "pending")
        time.sleep(20 * LOOK)
        assert held(process) == 0 and state(world) == ("pending", 0)
        folder.chmod(0o755)
        os.chown(file, 0, 0)
        assert holds(process, wait_for(world, is_fresh))
    said = (tmp_path / "said").read_text()
    assert "users other than root" in said and said.count("\n") == 1, said


@pytest.mark.check_all
def test_folder_of_others(world, fast, tmp_path):
    """Files in a folder that another user can write are not looked for, and none is reported, however many they are."""
    with open(tmp_path / "said", "w") as log, looking(world, fast, "/run/programs/new", log=log) as process:
        shared = world.path("/run/programs/new/shared")
        shared.mkdir(parents=True)
        shared.chmod(0o777)
        shutil.copy(world.path(APP), shared / "theirs")
        shutil.copy(world.path(APP), world.path("/run/programs/new/late"))
        assert holds(process, wait_for(world, is_fresh))
        time.sleep(20 * LOOK)
        assert "theirs" not in world.run("/run/bin/hugeld", "share", "list").stdout
    assert (tmp_path / "said").read_text() == ""


@pytest.mark.parametrize(("entry", "left_out"), [
    ("/run/programs/theirs", "theirs"), ("/run/programs/new", None), ("/run/programs/home/*/*", "home/user"), ("/run/programs/li*", "link")],
    ids=["folder", "inside", "pattern", "link"])
def test_others_at_boot(world, entry, left_out):
    """share refresh too leaves out files that another user can change: a line says so of an enabled path, and none of a folder in
    it."""
    for folder in ("theirs", "new/shared", "home/user"):
        put(world, f"/run/programs/{folder}/late")
        world.path(f"/run/programs/{folder}").chmod(0o777)
    world.path("/run/programs/link").symlink_to(APP)
    os.lchown(world.path("/run/programs/link"), USER, USER)
    enable(world, entry)
    result = world.share("refresh")
    assert world.list() == [] and "late" not in result.stdout, result
    if left_out is None:
        assert (result.returncode, result.stderr) == (0, ""), result
    else:
        assert result.returncode == 1 and result.stderr.count("\n") == 1 and "chown" not in result.stderr, result
        assert f"/run/programs/{left_out} is left out, since users other than root can change it" in result.stderr


@pytest.mark.check_all
def test_link_of_others(world, fast, tmp_path):
    """The target of another user's link is not looked at, and a line says so once, until the link is root's."""
    link = world.path("/run/programs/link")
    link.symlink_to("late")
    os.lchown(link, USER, USER)
    with open(tmp_path / "said", "w") as log, looking(world, fast, "/run/programs/link", log=log) as process:
        put(world, LATE)
        time.sleep(20 * LOOK)
        assert world.list() == [] and held(process) == 0
        os.lchown(link, 0, 0)
        assert holds(process, wait_for(world, is_fresh))
    said = (tmp_path / "said").read_text()
    assert "/run/programs/link is left out" in said and said.count("\n") == 1, said


@pytest.mark.check_all
def test_mistake_meanwhile(world, fast, tmp_path):
    """A file appears while the configuration has a mistake, which one line reports: its image is made when the mistake is gone."""
    right = f"enabled = {LATE}\n"
    with open(tmp_path / "said", "w") as log, looking(world, fast, LATE, log=log) as process:
        world.path(CONFIGURATION).write_text("enabled = \n")
        put(world, LATE)
        time.sleep(20 * LOOK)
        world.path(CONFIGURATION).unlink()
        time.sleep(20 * LOOK)
        assert world.list() == []
        world.path(CONFIGURATION).write_text(right)
        assert holds(process, wait_for(world, is_fresh))
    said = (tmp_path / "said").read_text()
    assert "no value" in said and said.count("\n") == 1, said


@pytest.mark.check_all
def test_written_slowly(world, fast, tmp_path):
    """No image is tried, and no line written, as long as the file is not whole."""
    data = world.path(APP).read_bytes()
    slower = [word.replace("x60", "x6") for word in fast]  # between two writes there are less than its five seconds on a busy machine, too
    with open(tmp_path / "said", "w") as log, looking(world, slower, LATE, log=log) as process:
        with open(world.path(LATE), "wb", buffering=0) as file:
            os.fchmod(file.fileno(), 0o755)
            for at in range(0, len(data), -(-len(data) // 60)):
                file.write(data[at:at + -(-len(data) // 60)])
                time.sleep(0.1)
        assert holds(process, wait_for(world, is_fresh))
    assert (tmp_path / "said").read_text() == ""


def test_gains_nothing(world, fast, tmp_path):
    """A line names a file that would gain nothing, once; it does not in a folder."""
    with open(tmp_path / "said", "w") as log, looking(world, fast, LATE, "/run/programs/folder", log=log):
        for path in (LATE, "/run/programs/folder/small"):
            world.path(path).parent.mkdir(exist_ok=True)
            shutil.copy("/bin/true", world.path(path))
        helpers.wait_until((tmp_path / "said").read_text, SOON, "a line")
        time.sleep(20 * LOOK)
    [line] = (tmp_path / "said").read_text().splitlines()
    assert line.startswith(f"hugeld: {LATE}: ")


@pytest.mark.check_all
@pytest.mark.parametrize("others", [(), ("/run/programs/other",)], ids=["alone", "of-two"])
def test_taken_back(world, fast, others):
    """An image that a person removes, or disables, stays away, even if the file changes and the service was not reloaded."""
    with looking(world, fast, LATE, *others) as process:
        put(world, LATE)
        assert holds(process, wait_for(world, is_fresh))
        assert world.share("remove", "--all").returncode == 0
        time.sleep(20 * LOOK)
        assert world.left() == []
        replace(world, LATE)
        wait_for(world, is_fresh)
        assert world.run("/run/bin/hugeld", "disable", LATE).returncode == 0
        assert world.left() == [] and world.path(CONFIGURATION).exists() == bool(others)
        replace(world, LATE)
        time.sleep(20 * LOOK)
        assert world.left() == []


def test_stopped(world, fast):
    """The kill switch: nothing is made, and nothing spins, until it is gone."""
    with looking(world, fast, LATE) as process:
        world.path(STOP).touch()
        put(world, LATE)
        before = helpers.ticks(process.pid)
        time.sleep(20 * LOOK)
        assert helpers.ticks(process.pid) - before < 0.1 * 20 * LOOK * os.sysconf("SC_CLK_TCK")
        assert world.left() == [] and status(world)["stopped"]
        world.path(STOP).unlink()
        assert holds(process, wait_for(world, is_fresh))


def test_locked(world, fast):
    """Another command, say share refresh, has the store's lock: the service waits for it."""
    with looking(world, fast, LATE) as process:
        holder = helpers.start(world.command("flock", f"{SYSTEM}/.lock", "sh", "-c", "echo ready; exec cat"), stdin=subprocess.PIPE)
        try:
            assert holder.stdout.readline() == "ready\n"
            put(world, LATE)
            time.sleep(20 * LOOK)
            assert world.left() == []
        finally:
            helpers.end_process(holder)
        assert holds(process, wait_for(world, is_fresh))


def test_store_that_cannot_be_used(world, fast, tmp_path):
    """A line says so once; each look tries the store once, for any number of enabled files; once it can be used, images are
    made."""
    world.path(SYSTEM).mkdir()
    assert world.run("mount", "-t", "tmpfs", "-o", "noexec,mode=0755,huge=always", "none", SYSTEM).returncode == 0
    for i in range(40):
        os.link(world.path(APP), world.path(f"/run/programs/name-{i}"))
    slower = [word.replace("x60", "x10") for word in fast]  # a look in each second; it rests for a tenth after each file
    traced = [*slower, "strace", "-D", "-o", "/run/trace", "-e", "trace=openat", "-P", SYSTEM]
    began = time.monotonic()
    with open(tmp_path / "said", "w") as log, looking(world, traced, "/run/programs/name-*", log=log) as process:
        time.sleep(20 * LOOK)
        asked = world.path("/run/trace").read_text().count(f'"{SYSTEM}"')
        assert 0 < asked < time.monotonic() - began + 5
        assert world.run("mount", "-o", "remount,exec", SYSTEM).returncode == 0
        helpers.wait_until(lambda: held(process) > 0, what="an image")
    said = (tmp_path / "said").read_text()
    assert said.count("mounted noexec") == 2 and said.count("makes nothing") == 1, said  # the former also by its keeper


@pytest.mark.check_all
def test_costs(world, tmp_path):
    """On a slow disk, with very many files, the service is at work for a hundredth of the time."""
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    folder, trace = world.path("/run/programs/many"), tmp_path / "trace"
    folder.mkdir()
    for i in range(3000):
        (folder / str(i)).touch()
    enable(world, "/run/programs/many", *(f"/run/programs/none-{i}" for i in range(100)))
    world.add("--way=image", APP)
    slow = ["strace", "-D", "-f", "-qq", "-o", trace, "-e", "trace=openat,statx", "-e", "inject=statx:delay_exit=1000"]
    with service(world, slow, ["--keep-only"], stderr=subprocess.DEVNULL) as process:
        helpers.wait_until(lambda: trace.exists() and '"many"' in trace.read_text(), what="a look")
        began, before, ticks = time.monotonic(), trace.read_text().count("statx("), helpers.ticks(process.pid)
        time.sleep(10)
        helpers.wait_until(lambda: trace.read_text().count("statx(") > before, what="another step")
        # Steps of 10 ms, and a second of rest after each.
        assert trace.read_text().count("statx(") - before < 30 * (time.monotonic() - began)
        assert helpers.ticks(process.pid) - ticks < 0.05 * (time.monotonic() - began) * os.sysconf("SC_CLK_TCK")


# A FUSE that answers nothing, at $1.
HUNG = """
mkdir -p "$1" && exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0,allow_other none "$1" &&
echo ready && exec sleep 1000
"""


@contextlib.contextmanager
def hung(world, path):
    holder = helpers.start(world.command("sh", "-c", HUNG, "sh", path))
    try:
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"no FUSE here: {holder.stderr.read()}")
        yield
    finally:
        world.run("umount", "-l", path)
        helpers.end_process(holder)


@pytest.mark.parametrize(("entry", "way"), [
    ("/run/programs/hung/late", "file"), ("/run/programs/*/late", "pattern"), ("/run/programs/new", "folder"), ("/run/programs/link", "link")],
    ids=lambda value: None if value[0] == "/" else value)
@pytest.mark.parametrize("when", ["before", "after"])
def test_does_not_answer(world, fast, tmp_path, entry, way, when):
    """A file system that never answers, at an enabled place: the rest is looked for, made and ended as usual, and a line says so
    if it was there when the configuration was read."""
    place = "/run/programs/new/hung" if way == "folder" else "/run/programs/hung"
    if way == "link":
        world.path("/run/programs/link").symlink_to("hung/late")
    world.path(place).mkdir(parents=True)
    with contextlib.ExitStack() as stack, open(tmp_path / "said", "w") as log:
        if when == "before":
            stack.enter_context(hung(world, place))
        process = stack.enter_context(looking(world, fast, entry, LATE, log=log))
        if when == "after":
            stack.enter_context(hung(world, place))
            time.sleep(2)
        put(world, LATE)
        image = wait_for(world, is_fresh)
        assert image["path"] == LATE and holds(process, image)
        assert world.run("/run/bin/hugeld", "service", "--once").returncode == 1
        assert world.run("timeout", "-s", "KILL", "20", "/run/bin/hugeld", "service", "--dry-run").returncode in (0, 1)
    said = (tmp_path / "said").read_text()
    if when == "before":
        assert "may not answer" in said and entry in said and said.count("\n") == 1, said
    else:
        assert said == ""


def in_time(world, *arguments):
    """Its answer, which must come without waiting for a file system."""
    return world.run("timeout", "-s", "KILL", "30", "/run/bin/hugeld", *arguments)


def states(world):
    result = in_time(world, "share", "list", "--json")
    assert result.returncode == 0, result
    return {image["path"]: image["state"] for image in json.loads(result.stdout)["stores"][0]["images"]}


def test_metrics_elsewhere(world, fast, tmp_path):
    """Metrics are written through links of root's, not through another user's, and not to a file system that does not answer."""
    for folder in ("mine", "theirs", "victim"):
        world.path(f"/run/{folder}").mkdir()
    world.path("/run/theirs/link").symlink_to("/run/victim")
    for path in ("theirs", "theirs/link"):
        os.lchown(world.path(f"/run/{path}"), USER, USER)
    world.path("/run/link").symlink_to("mine")
    with open(tmp_path / "said", "w") as log, hung(world, "/run/served"), service(world, fast, ["--keep-only"], stderr=log) as process:
        helpers.wait_until(lambda: stays(process), what="its start")
        for path, words in (("theirs/link", "a symbolic link in its path is another user's"), ("served", "may not answer")):
            enable(world, lines=[f"metrics = /run/{path}/one.prom"])
            process.send_signal(signal.SIGHUP)
            helpers.wait_until(lambda words=words: words in (tmp_path / "said").read_text(), what=words)
        enable(world, lines=["metrics = /run/link/one.prom"])
        process.send_signal(signal.SIGHUP)
        helpers.wait_until(world.path("/run/mine/one.prom").exists, what="metrics")
        enable(world, lines=["metrics = /run/theirs/one.prom"])
        process.send_signal(signal.SIGHUP)
        helpers.wait_until(lambda: world.path("/run/theirs/one.prom").exists() and not world.path("/run/mine/one.prom").exists(), what="metrics")
        assert os.listdir(world.path("/run/victim")) == []
    assert not world.path("/run/theirs/one.prom").exists()


@pytest.mark.parametrize(("when", "end"), [
    ("after", ["share", "remove", "/run/programs/new/late"]), ("before", ["share", "remove", "--all", "--force"]),
    ("before", ["service", "undo"]), ("after", ["reset"])], ids=lambda value: value if isinstance(value, str) else value[-1])
def test_original_does_not_answer(world, fast, tmp_path, when, end):
    """A file system that never answers lies over a file with an image: nothing waits for it, all else goes on, and the image
    stays."""
    app, late = APP, "/run/programs/new/late"
    put(world, late)
    world.add("--way=image", app, late)
    before = {image["path"]: image["key"] for image in world.list()}
    with contextlib.ExitStack() as stack, open(tmp_path / "said", "w") as log:
        if when == "before":
            stack.enter_context(hung(world, "/run/programs/new"))
        with service(world, fast, ["--keep-only"], stderr=log) as process:
            helpers.wait_until(lambda: held(process) > 0, what="an image to be held")
            if when == "after":
                stack.enter_context(hung(world, "/run/programs/new"))
            assert states(world) == {app: "fresh", late: "unknown"}
            for _ in range(2):
                replace(world, app)
                helpers.wait_until(lambda: states(world) == {app: "fresh", late: "unknown"} and before[app] not in world.left(), what="its image")
                before[app] = next(image["key"] for image in world.list() if image["path"] == app)
                process.send_signal(signal.SIGHUP)
            assert before[late] in world.left()
            checked = in_time(world, "share", "check")
            assert checked.returncode == 1 and f"{late}: its image {before[late]}: the file's path leads to a file system" in checked.stderr, checked
            assert "unmount that, or remove the file from the store" in checked.stderr
            assert in_time(world, "share", "refresh").returncode == 1 and before[late] in world.left()
            assert in_time(world, "service", "status").returncode == 0
        assert in_time(world, *end).returncode == 0 and before[late] not in world.left()
    said = (tmp_path / "said").read_text()
    assert said.count(f"{late}: the file's path leads to a file system that may not answer") == said.count("\n") <= 1, said


def test_unit_does_not_answer(world):
    """An enabled unit's program, or its interpreter, lies on such a file system: it is left out, and the rest is made."""
    script = world.path("/run/programs/script")
    script.write_text("#!/run/programs/hung/interpreter\n")
    script.chmod(0o755)
    enable(world, "demo.service", APP)
    with hung(world, "/run/programs/hung"):
        for start, said in ("/run/programs/hung/app", "may not answer"), ("/run/programs/script", "cannot be told"):
            systemctl = world.systemctl(f"ExecStart={{ path={start} ; argv[]={start} ; ignore_errors=no }}")
            refreshed = world.run(*systemctl, "timeout", "-s", "KILL", "30", "/run/bin/hugeld", "share", "refresh")
            assert refreshed.returncode == 1 and start in refreshed.stderr and said in refreshed.stderr, refreshed
            assert states(world) == {APP: "fresh"}


def test_original_answers_again(world, fast):
    """The image was held meanwhile, and is good for the file that is there again."""
    put(world, LATE)
    world.add("--way=image", LATE)
    world.path("/run/programs/new").mkdir()
    with service(world, fast, ["--keep-only"], stderr=subprocess.DEVNULL) as process:
        [image] = world.list()
        assert holds(process, image)
        with hung(world, "/run/programs"):
            helpers.wait_until(lambda: states(world) == {LATE: "unknown"}, what="its state")
            process.send_signal(signal.SIGHUP)
            time.sleep(20 * LOOK)
            assert holds(process, image)
        assert states(world) == {LATE: "fresh"} and holds(process, image)
        replace(world, LATE)
        after = wait_for(world, lambda found: is_fresh(found) and found["key"] != image["key"])
        assert holds(process, after)


def test_in_a_chroot(world):
    """The mount of its / is not listed for a process in there, but for process 1."""
    root = "/run/programs/root"
    put(world, f"{root}/app")
    script = """
        cd "$1" && mkdir -p proc run bin lib lib64 usr dev etc && mount -t proc none proc && mount --bind /dev dev && mount --bind /usr usr &&
        mount --bind /run/bin bin && mount --bind /lib lib && mount --bind /lib64 lib64 && mount --bind /run run || exit 77
        chroot . /bin/hugeld share add --any-disk --way=image --store=/run/own --size=256M /app && chroot . /bin/hugeld share list --json --store=/run/own
        umount -l proc dev usr bin lib lib64 run
    """
    result = world.run("unshare", "-m", "-p", "-f", "sh", "-c", script, "sh", root)
    assert '"state": "fresh"' in result.stdout, result


def test_passes_what_does_not_answer(world):
    """A pattern goes through a file system that never answers: its matches elsewhere are made, and a line tells of the rest."""
    put(world, "/run/programs/new/late")
    world.path("/run/programs/hung").mkdir()
    enable(world, "/run/programs/*/late")
    with hung(world, "/run/programs/hung"):
        result = world.share("refresh")
        assert result.returncode == 0 and result.stderr.count("\n") == 1 and "may not answer" in result.stderr, result
        assert [image["path"] for image in world.list()] == ["/run/programs/new/late"]


def make_names(folder):
    """Makes more names than the service looks at."""
    folder.mkdir()
    for i in range(67000):
        if i % 60000 == 0:  # a file of ext4 has 65000 names at most
            (folder / str(i)).touch()
        else:
            os.link(folder / str(i // 60000 * 60000), folder / str(i))


@pytest.mark.check_all
def test_after_one_with_many_names(world, fast):
    """One entry has more names than are looked at; the entries after it are found all the same, and before the hour is over."""
    make_names(world.path("/run/programs/many"))
    slower = [word.replace("x60", "x10") for word in fast]
    with looking(world, slower, "/run/programs/many/none-*", "/run/programs/new") as process:
        put(world, "/run/programs/new/late")
        assert holds(process, wait_for(world, is_fresh, helpers.PATIENCE))


@pytest.mark.check_all(ci=True)
def test_more_than_it_looks_at(world, tmp_path):
    """A line says so once, while the service goes on, and takes little memory."""
    make_names(world.path("/run/programs/many"))
    enable(world, "/run/programs/many/*")
    world.add("--way=image", APP)
    with open(tmp_path / "said", "w") as log, service(world, options=["--keep-only"], stderr=log) as process:
        helpers.wait_until((tmp_path / "said").read_text, what="a line")
        assert status(world)["process"] == process.pid
        [peak] = [int(line.split()[1]) for line in open(f"/proc/{process.pid}/status") if line.startswith("VmHWM:")]
        assert peak < 64 << 10
    said = (tmp_path / "said").read_text()
    assert "more than 65536 names" in said and said.count("\n") == 1, said


def test_files_of_a_user(world, fast, tmp_path):
    """A folder that the user can write is left out, with one line; his files in root's folder get twenty lines an hour."""
    home = world.path("/run/programs/home/user")
    home.mkdir(parents=True)
    os.chown(home, USER, USER)
    folder = world.path("/run/programs/new")
    with open(tmp_path / "said", "w") as log, looking(world, fast, APP, "/run/programs/home/*/*", "/run/programs/new/*", log=log) as process:
        shutil.copy(world.path(APP), home / "theirs")
        (folder / "x").mkdir(parents=True)
        for i in range(30):
            put_of_user(world, folder / "x" / str(i))
        helpers.wait_until(lambda: len(world.list()) == 1 + 30, what="all that are pending")
        theirs = [image for image in world.list() if image["path"] != APP]
        assert all(image["state"] == "pending" and image["path"].startswith("/run/programs/new/x/") for image in theirs)
        assert process.poll() is None and len(theirs) == 30
    said = (tmp_path / "said").read_text()
    left_out = "/run/programs/home/*/*: /run/programs/home/user is left out, since users other than root can change it"
    assert said.count("/run/programs/home/*/*") == said.count(left_out) == 1 and "chown" not in said, said
    assert said.count("hugeld: /run/programs/new/x/") == 20 and said.count("nothing more is said about enabled files") == 1, said
    assert said.count("\n") == 22, said


@pytest.mark.check_all
def test_said_when_the_hour_is_over(world, fast, tmp_path):
    """A line that was held back, since there were too many, comes later, if it is still true."""
    faster = [word.replace("x60", "x100") for word in fast]
    folder = world.path("/run/programs/new/x")
    with open(tmp_path / "said", "w") as log, looking(world, faster, "/run/programs/new/*", log=log):
        folder.mkdir(parents=True)
        for i in range(30):
            put_of_user(world, folder / str(i))
        helpers.wait_until(lambda: "nothing more is said" in (tmp_path / "said").read_text(), what="the limit")
        helpers.wait_until(lambda: (tmp_path / "said").read_text().count("hugeld: /run/programs/new/x/") == 30, helpers.PATIENCE, "the rest")
