# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld apply` and `list`: the store is what the lists say, whoever wrote them; what is pending says why; nothing is tried again and
again; a dry run does what the run does; and whoever interrupts it finds the store whole."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest

import helpers
from worlds import APP, SYSTEM, USER


def done(result, status=0):
    assert result.returncode == status, result
    return result.stdout


def answer(world, *arguments, status=0, **options):
    return json.loads(done(world.hugeld("apply", "--json", *arguments, **options), status))


def states(world):
    return {file["path"]: file["state"] for file in world.list()}


def second(world, name="second"):
    path = f"/run/programs/{name}"
    shutil.copy(world.path(APP), world.path(path))
    return path


def test_verbose(world):
    """list names the list of each file and its image, apply also what stays as it is."""
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    assert f"{APP}: image, as before\n" in done(world.hugeld("apply", "-v")) and APP not in done(world.hugeld("apply"))
    assert ".list" not in done(world.hugeld("list"))
    more = done(world.hugeld("list", "-v"))
    assert f"    {APP} in /etc/hugeld/enabled.d/mine.list\n" in more and re.search(rf"^    {SYSTEM}/0x.*/app$", more, re.M), more


# --- desired state ---

def test_entry_that_is_taken_out(world):
    """By hand, by another tool or with its package: the image goes at the second apply, and is not made anew meanwhile."""
    other = second(world)
    world.lists("package", APP)
    world.lists("mine", other)
    assert answer(world)["changed"] and len(world.left()) == 2
    world.path("/etc/hugeld/enabled.d/package.list").unlink()
    world.path(APP).write_bytes(world.path(APP).read_bytes())  # changed, and not made anew
    assert not answer(world)["changed"] and len(world.left()) == 2
    assert states(world) == {APP: "unnamed", other: "fresh"}
    [removed] = [file for file in answer(world)["files"] if file["result"] == "removed"]
    assert removed["path"] == APP and states(world) == {other: "fresh"} and len(world.left()) == 1
    assert not answer(world)["changed"]


def test_named_again(world):
    """An entry that comes back before the second apply keeps its image."""
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    [before] = world.list()
    world.lists("mine")
    done(world.hugeld("apply"))
    world.lists("mine", APP)
    for _ in range(2):
        done(world.hugeld("apply"))
    world.lists("mine")
    done(world.hugeld("apply"))
    assert world.left() == [before["key"]]


@pytest.mark.parametrize("what", ["list", "folder", "line", "settings"])
def test_what_cannot_be_read_removes_nothing(world, what):
    """Who knows what it would have named: a list, a folder of files, a wrong line, wrong settings."""
    other = second(world)
    world.path("/run/programs/inner").mkdir()
    world.lists("mine", APP, "/run/programs/inner")
    world.lists("yours", other)
    shutil.copy(world.path(APP), world.path("/run/programs/inner/third"))
    done(world.hugeld("apply"))
    assert len(world.left()) == 3
    if what == "list":
        os.chown(world.path("/etc/hugeld/enabled.d/yours.list"), USER, USER)
    elif what == "folder":
        world.path("/run/programs/inner").chmod(0o777)
        world.lists("yours")
    elif what == "line":
        world.lists("yours", "second")
    else:
        world.settings(any_disc="yes")
        world.lists("yours")
    for _ in range(3):
        told = answer(world, status=1)
        assert len(told["problems"]) == 1 and told["problems"][0] in told["error"]["message"], told
        assert len(world.left()) == 3
    assert world.hugeld("list").returncode == 1


def test_list_that_is_not_read_to_its_end(world, strace):
    """An I/O error in the middle: what later lines name or mask is not known."""
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    world.lists("mine", *["# nothing"] * 1000, APP)
    error = ["-P", "/etc/hugeld/enabled.d/mine.list", "-e", "inject=read:error=EIO:when=2"]
    for _ in range(3):
        result = world.hugeld("apply", strace=error)
        assert result.returncode == 1 and "mine.list: it cannot be read: Input/output error" in result.stderr, result
    assert len(world.left()) == 1


def test_glob_over_a_folder_that_cannot_be_read(world, strace):
    """glob(3) takes it for an empty one."""
    inner = world.path("/run/programs/inner")
    inner.mkdir()
    shutil.copy(world.path(APP), inner)
    world.lists("mine", "/run/programs/inn*/a*")
    done(world.hugeld("apply"))
    for call in "openat", "getdents64", "getdents64":
        result = world.hugeld("apply", strace=["-P", "/run/programs/inner", "-e", f"inject={call}:error=EIO"])
        assert result.returncode == 1 and "inn*/a*: it cannot be read" in result.stderr, result
    assert len(world.left()) == 1


def test_folder_of_others_inside(world):
    """Files in it are not looked for, and none is reported, however many they are."""
    shared = world.path("/run/programs/shared")
    shared.mkdir()
    shared.chmod(0o777)
    shutil.copy(world.path(APP), shared / "theirs")
    world.lists("mine", "/run/programs")
    said = done(world.hugeld("apply"))
    assert "refused" not in said and "without any gain" not in said and states(world) == {APP: "fresh"}


def test_link_of_others(world):
    """The target of another user's link is not looked at."""
    link = world.path("/run/programs/link")
    link.symlink_to("app")
    os.lchown(link, USER, USER)
    world.lists("mine", "/run/programs/link")
    result = world.hugeld("apply")
    assert result.returncode == 1 and "/run/programs/link is left out" in result.stderr and world.left() == [], result


def test_more_names_than_are_looked_at(world):
    """It is said, and the entries behind count."""
    many = world.path("/run/programs/many")
    many.mkdir()
    for number in range((1 << 16) + 1):
        os.mknod(many / str(number))
    world.lists("mine", "/run/programs/many/none-*", APP)
    result = world.hugeld("apply")
    assert result.returncode == 1 and "more than 65536 names" in result.stderr and states(world) == {APP: "fresh"}, result


def test_unmounted_disk_removes_nothing(world, tmp_path):
    """A glob over a disk that is not mounted just now finds nothing, and what it found before stays."""
    file = tmp_path / "disk"
    assert helpers.run(["mke2fs", "-q", "-t", "ext4", file, "64M"]).returncode == 0
    world.path("/run/disk").mkdir()
    if world.run("mount", "-o", "loop", file, "/run/disk").returncode != 0:
        pytest.skip("no loop device here")
    try:
        assert world.run("sh", "-c", f"mkdir /run/disk/bin && cp {APP} /run/disk/bin/app").returncode == 0
        time.sleep(0.1)
        world.settings(any_disk="yes")
        world.lists("mine", "/run/disk/bin/*")
        done(world.hugeld("apply"))
        [image] = world.list()
        assert world.run("umount", "/run/disk").returncode == 0
        for _ in range(3):
            assert "there is no such file" in world.hugeld("apply").stderr
        assert world.left() == [image["key"]]
        assert world.run("mount", "-o", "loop", file, "/run/disk").returncode == 0
        assert [world.hugeld("apply").returncode for _ in range(2)] == [0, 0] and states(world) == {"/run/disk/bin/app": "fresh"}
        world.path("/run/disk/bin/app").unlink()
        for _ in range(2):
            world.hugeld("apply")
        assert world.left() == []
    finally:
        world.run("umount", "/run/disk")


def test_masks(world):
    """A mask takes an entry, a file of a glob or all of a folder out, whichever list has it."""
    other = second(world)
    world.path("/run/programs/inner").mkdir()
    shutil.copy(world.path(APP), world.path("/run/programs/inner/third"))
    world.lists("a", f"!{other}", "!/run/programs/inner")
    world.lists("b", "/run/programs")
    done(world.hugeld("apply"))
    assert states(world) == {APP: "fresh"}
    world.lists("a", "!/run/programs")
    for _ in range(2):
        done(world.hugeld("apply"))
    assert states(world) == {} and world.left() == []


# --- pending ---

def test_pending_says_why_everywhere(world):
    """In words, JSON and metrics; and it is not tried again every five minutes."""
    world.settings(store_size="4M", metrics="/run/metrics/hugeld.prom")
    world.path("/run/metrics").mkdir()
    world.lists("mine", APP)
    said = world.hugeld("apply")
    assert said.returncode == 3 and "the store has only" in said.stderr
    trace = ["-e", "trace=madvise,mkdirat", "-o", "/run/trace"]
    again = world.run("strace", "-f", *trace, "/run/bin/hugeld", "apply")
    assert again.returncode == 3 and again.stderr == "" and "madvise" not in world.path("/run/trace").read_text()
    [file] = world.list()
    assert (file["state"], file["reason"], file["way"]) == ("pending", "store-full", None) and "store_size" in file["sentence"]
    listed = world.hugeld("list")
    assert listed.returncode == 3 and "pending" in listed.stdout and "the store has only" in listed.stdout
    metrics = world.path("/run/metrics/hugeld.prom").read_text()
    assert 'hugeld_pending{reason="store-full"} 1\n' in metrics and "hugeld_enabled 1\n" in metrics
    world.settings(store_size="64M", metrics="/run/metrics/hugeld.prom")
    assert done(world.hugeld("apply")) and states(world) == {APP: "fresh"}  # its delay ends, since the store has more room
    metrics = world.path("/run/metrics/hugeld.prom").read_text()
    assert 'hugeld_pending{reason="none"} 0\n' in metrics and "hugeld_effective 0\n" in metrics


@pytest.mark.parametrize("spare, status", [(8, 3), (64, 0)])
def test_memory_margin(world, spare, status):
    """15 % of the memory without the pool, and the image's 16 MiB, are available afterwards, or there is no image."""
    world.lists("mine", f"{APP} way=image")
    path = world.path("/proc/meminfo")
    lines = path.read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    kept = (kib["MemTotal"] - kib["Hugetlb"]) * 15 // 100 + spare * 1024
    world.path("/run/meminfo").write_text("".join(f"MemAvailable: {kept} kB\n" if line.startswith("MemAvailable:") else f"{line}\n"
                                                  for line in lines))
    assert world.run("mount", "--bind", "/run/meminfo", "/proc/meminfo").returncode == 0
    told = answer(world, status=status)
    assert [(file["result"], file["reason"]) for file in told["files"]] == [("made", None) if status == 0 else ("pending", "memory")]
    assert status == 0 or "less than 15 % of the memory" in told["files"][0]["sentence"]


@pytest.mark.parametrize("days", [-10, 10])
def test_jumping_clock(world, days):
    """A clock that is set makes no attempt due or overdue, and no image old; of a file from the future no image is made yet."""
    library = world.path("/run/own/jumps.so")
    library.parent.mkdir()
    assert helpers.run(["gcc", "-shared", "-fPIC", "-o", library, pathlib.Path(__file__).with_name("jumps.c")]).returncode == 0
    prefix = ["env", f"JUMP={86400 * days}", "LD_PRELOAD=/run/own/jumps.so"]

    def jumped(*arguments):
        return world.run(*prefix, "/run/bin/hugeld", *arguments)

    world.settings(store_size="20M")  # one image, and the records
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    images, waits = world.left(), second(world, "waits")
    world.lists("mine", APP, waits)
    assert world.hugeld("apply").returncode == 3 and states(world) == {APP: "fresh", waits: "pending"}
    before = world.path(f"{SYSTEM}/.records").read_bytes()
    for _ in range(3):
        assert jumped("apply").returncode == 3 and world.path(f"{SYSTEM}/.records").read_bytes() == before
    assert world.left() == images and states(world) == {APP: "fresh", waits: "pending"}
    world.lists("mine", waits)
    world.settings(store_size="64M")
    result = jumped("enable", waits)
    assert result.returncode == (3 if days < 0 else 0), result
    assert days > 0 or "its ctime is in the future" in result.stderr
    world.enable(waits)
    assert states(world)[waits] == "fresh"


@pytest.mark.parametrize("what", ["nothing", "refused"])
def test_useless_attempts_are_not_repeated(world, what):
    """A file that gains nothing is not looked at again before it changes, and one that is refused not before its delay."""
    path = "/run/programs/small" if what == "nothing" else APP
    if what == "nothing":
        shutil.copy("/bin/true", world.path(path))
    else:
        world.path(APP).chmod(0o4755)
    world.lists("mine", path)
    status = 0 if what == "nothing" else 1  # a list for many machines may name what gains nothing on this one
    first = world.hugeld("apply")
    assert first.returncode == status and "not on huge pages" in first.stderr, first
    assert world.hugeld("apply").stdout.endswith("hugeld list says why\n") == (what == "refused")
    again = world.run("strace", "-f", "-o", "/run/trace", "/run/bin/hugeld", "apply", "--json")
    told = json.loads(again.stdout)
    assert again.returncode == status and again.stderr == "" and [file["result"] for file in told["files"]] == [what]
    assert told.get("error") == (None if what == "nothing" else {"message": "see the answer"})
    assert world.hugeld("list").returncode == status
    name = os.path.basename(path)
    assert not re.search(rf'open(at)?\(.*{name}", .*O_RDONLY', world.path("/run/trace").read_text().replace("O_RDONLY|O_NOFOLLOW|O_CLOEXEC|O_PATH", ""))
    world.path(path).chmod(0o700)
    assert [(file["state"], file["reason"], file["sentence"]) for file in world.list()] == [("changed", None, None)]


# --- dry runs ---


def sums(told):
    return sorted((f["path"], f["result"], f["way"], f["huge_pages"], f["reason"]) for f in told["files"] if f["reason"] != "pressure")


def test_dry_run(world):
    """It says what the run then does, renewing and removing too, and what the store has no room for, and writes nothing."""
    other, new, last = [second(world, name) for name in ("second", "third", "waits")]
    world.settings(store_size="36M")
    world.lists("mine", APP, other)
    done(world.hugeld("apply"))
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    world.lists("mine", APP, new, last)
    world.path(APP).write_bytes(world.path(APP).read_bytes())
    time.sleep(0.1)
    before = world.left()
    expected = answer(world, "--dry-run", status=3)
    assert world.left() == before
    assert sums(expected) == sums(answer(world, status=3)) == [
        (APP, "made", "image", 8, None), (other, "removed", "image", 8, None), (new, "made", "image", 8, None),
        (last, "pending", None, 0, "store-full")]


# --- what can be wrong ---

HOSTILE_LINES = ["programs/app", f"{APP} nonsense", f"{APP} way=both", "a.service", "a.service app", f"!{APP} {APP}", "!", "app\\", f"{APP}\0/etc"]


def test_wrong_lines(world):
    """One line says for each where it is, in apply and list; the others count."""
    world.lists("mine", "# first", *HOSTILE_LINES, APP)
    for command in "apply", "list":
        result = world.hugeld(command)
        where = re.findall(r"^hugeld: /etc/hugeld/enabled.d/mine.list:(\d+): ", result.stderr, re.M)
        assert result.returncode == 1 and where == [str(2 + i) for i in range(len(HOSTILE_LINES))], result
    assert result.stderr.count("\n") == len(HOSTILE_LINES) and states(world) == {APP: "fresh"}
    result = world.hugeld("disable", APP)  # says them once, too
    assert result.returncode == 1 and result.stderr.count("\n") == len(HOSTILE_LINES), result


@pytest.mark.parametrize("what", ["user's", "group's", "fifo", "folder", "large", "folder of lists"])
def test_list_that_is_not_believed(world, what):
    world.lists("mine", APP)
    path = world.path("/etc/hugeld/enabled.d/mine.list")
    if what == "user's":
        os.chown(path, USER, USER)
    elif what == "group's":
        path.chmod(0o664)
    elif what == "folder of lists":
        path.parent.chmod(0o777)
    elif what == "large":
        path.write_text("#" * (1 << 20) + f"\n{APP}\n")
    else:
        path.unlink()
        (os.mkfifo if what == "fifo" else os.mkdir)(path)
    result = world.hugeld("apply")
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and world.left() == [], result


def test_lost_store(world):
    """A store that something unmounted is an error, in list and at the next apply, which makes it anew."""
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    assert world.run("umount", SYSTEM).returncode == 0
    listed = world.hugeld("list")
    assert listed.returncode == 1 and "the store was unmounted, and its images are lost" in listed.stderr, listed
    again = world.hugeld("apply")
    assert again.returncode == 1 and "the store had been unmounted" in again.stderr, again
    done(world.hugeld("apply"))
    assert states(world) == {APP: "fresh"} and world.hugeld("list").returncode == 0


@pytest.mark.parametrize("way", ["", " way=image"])
def test_no_store_in_a_container(world, way):
    """What needs an image waits for a store, also on the overlay of a container, whose files could have none anyway."""
    world.path("/run/layer").mkdir()
    shutil.copy(world.path(APP), world.path("/run/layer/app"))
    world.lists("mine", f"{APP}{way}", f"/run/layer/app{way}")
    told = answer(world, status=3, strace=["-e", "inject=mount:error=EPERM"])
    assert told["pending"] == 2 and told["problems"] == []
    assert {(file["result"], file["reason"], file["sentence"]) for file in told["files"]} == {
        ("pending", "no-store", "there is no store in this container")}


def test_nothing_is_enabled(world):
    """A missing store is no error."""
    for user in None, USER:
        done(world.hugeld("list", user=user))
        assert world.list(user=user) == [] and done(world.hugeld("apply", user=user)) and world.left() == []
    world.path("/run/mine").write_text(APP)
    named = "--store=/dev/shm/mine", "--list=/run/mine"
    assert f"; hugeld apply {' '.join(named)}\n" in world.hugeld("list", *named).stderr


# --- interruptions ---

CALLS = [("mkdirat", 1), ("mount", 1), ("flock", 1), ("fallocate", 1), ("linkat", 1), ("symlinkat", 1), ("symlinkat", 3), ("renameat", 1),
         ("renameat", 2), ("fchmod", 3)]


@pytest.mark.parametrize("call, when", CALLS)
def test_killed_at_each_step(world, call, when):
    """The next apply does the rest, and what is there meanwhile is whole."""
    world.lists("mine", APP, second(world))
    assert world.hugeld("apply", strace=["-e", f"inject={call}:signal=KILL:when={when}"]).returncode not in (0, 1, 3)
    assert set(states(world).values()) <= {"fresh", "new"}
    assert world.hugeld("apply").returncode in (0, 1)  # a store that was about to be mounted counts as lost
    done(world.hugeld("apply"))
    assert set(states(world).values()) == {"fresh"} and len(world.left()) == 2 and world.hugeld("list", "--check").returncode == 0


@pytest.mark.parametrize("call, when", [("renameat", 1), ("renameat", 2), ("unlinkat", 2), ("fallocate", 1)])
def test_killed_while_it_renews(world, call, when):
    """The old image may be gone and the new one not there yet: the file has changed, which is no damage."""
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    world.path(APP).write_bytes(world.path(APP).read_bytes())
    time.sleep(0.1)
    assert world.hugeld("apply", strace=["-e", f"inject={call}:signal=KILL:when={when}"]).returncode not in (0, 1, 3)
    assert set(states(world).values()) <= {"fresh", "changed"}
    done(world.hugeld("apply"))
    assert states(world) == {APP: "fresh"} and len(world.left()) == 1 and world.hugeld("list", "--check").returncode == 0


@pytest.mark.parametrize("call, when", [("renameat", 1), ("renameat", 2), ("unlinkat", 1), ("unlinkat", 3), ("unlinkat", 5)])
def test_killed_while_it_prunes(world, call, when):
    """In the run that removes what was taken out: two more, and the store is what the list says, with nothing else in it."""
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    kept = sorted(os.listdir(world.path(SYSTEM)))
    world.lists("mine", APP, second(world))
    done(world.hugeld("apply"))
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    assert world.hugeld("apply", strace=["-e", f"inject={call}:signal=KILL:when={when}"]).returncode not in (0, 1, 3)
    assert states(world)[APP] == "fresh"
    for _ in range(2):
        done(world.hugeld("apply"))
    assert states(world) == {APP: "fresh"} and sorted(os.listdir(world.path(SYSTEM))) == kept and world.hugeld("list", "--check").returncode == 0


@pytest.mark.parametrize("records", [None, "nonsense\n"])
def test_records_that_were_damaged(world, records):
    """Or lost: what the store has stays, also where a list asks for that way."""
    world.lists("mine", f"{APP} way=image")
    done(world.hugeld("apply"))
    world.path(f"{SYSTEM}/.records").unlink()
    [image] = world.left()
    inode = world.path(f"{SYSTEM}/{image}").stat().st_ino
    if records is not None:
        world.path(f"{SYSTEM}/.records").write_text(records)
    for _ in range(2):
        assert not answer(world)["changed"]
    assert states(world) == {APP: "fresh"} and world.left() == [image]
    assert world.path(f"{SYSTEM}/{image}").stat().st_ino == inode


def test_room_for_the_records(world):
    """They can be written in a store that is full, and take no huge page."""
    for number in range(6):
        second(world, f"app{number}")
    world.settings(store_size="32M")  # as large as two of them
    world.lists("mine", "/run/programs/*")
    assert {file["result"] for file in answer(world, status=3)["files"]} == {"made", "pending"}
    used = os.statvfs(world.path(SYSTEM))
    records = os.stat(world.path(f"{SYSTEM}/.records")).st_blocks * 512
    assert 0 < records < 2 << 20 <= used.f_bavail * used.f_frsize + records


@pytest.mark.parametrize("prefix, whom", [([], r"process \d+"), (["unshare", "-pf", "--mount-proc"], "another process")])
def test_waiting_names_the_other(world, prefix, whom):
    """Whoever waits says for which process, if it is in its PID namespace, and goes on as soon as that has ended, or after ten seconds
    changes nothing."""
    world.enable(APP)
    world.path("/etc/hugeld/enabled.d/local.list").unlink()
    records = world.path(f"{SYSTEM}/.records")
    before = records.stat()
    holder = helpers.start(world.command("flock", f"{SYSTEM}/.lock", "sh", "-c", "echo ready; exec cat"), stdin=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == "ready\n"
        for late in [helpers.start(world.command("/run/bin/hugeld", command)) for command in ("apply", "reset")]:
            assert "for ten seconds" in late.communicate(timeout=helpers.PATIENCE)[1] and late.returncode == 1
        assert records.stat() == before
        waiting = helpers.start(world.command(*prefix, "/run/bin/hugeld", "apply"))
        assert re.search(f"waiting for {whom}, which has the lock", waiting.stderr.readline())
    finally:
        helpers.end_process(holder)
    assert waiting.wait(helpers.PATIENCE) == 0
    helpers.end_process(waiting)


# --- who has it ---

def test_effective(world):
    """How many processes run a file, how many of them by huge pages, and what the others need."""
    world.enable(APP)
    [image] = world.list()
    assert (image["processes"], image["effective"], image["advice"]) == (0, 0, None)
    with world.mapped(image["image"]) as huge:
        assert huge > 0
        [file] = world.list()
        assert (file["processes"], file["effective"], file["advice"]) == (1, 1, None)
        with world.mapped(APP):
            [file] = world.list()
            assert (file["processes"], file["effective"], file["advice"]) == (2, 1, "start it by hugeld run")
            assert "start it by hugeld run" in world.hugeld("list").stdout
        done(world.hugeld("disable", APP))
        assert f"\n{image['bytes'] // 1024} KiB of it are of removed images" in done(world.hugeld("list"))
    assert "removed" not in done(world.hugeld("list"))


def test_records_are_no_images(world):
    """What was tried of many files takes megabytes, which are not said to be of removed images."""
    folder = world.path("/run/programs") / ("a" * 250) / ("b" * 250) / ("c" * 250)
    folder.mkdir(parents=True)
    for number in range(2500):
        (folder / f"{number:0250}").touch()
    world.lists("mine", APP, f"/run/programs/{'a' * 250}")
    done(world.hugeld("apply"))
    assert world.path(f"{SYSTEM}/.records").stat().st_blocks * 512 > helpers.HUGE
    assert "removed" not in done(world.hugeld("list"))


@pytest.mark.xdist_group("locked")  # each counts who is left out
def test_a_process_that_does_not_answer(world):
    """Nothing waits for it; its user's other processes are left out, which is said, and all others are counted."""
    world.enable(APP)
    [image] = world.list()
    blocked = helpers.start(["sleep", "1000"], preexec_fn=lambda: os.setuid(USER))
    try:
        with world.mapped(image["image"]), world.mapped(image["image"], USER):
            mount = f"mkfifo /run/fifo && mount --bind /run/fifo /proc/{blocked.pid}/maps"
            assert world.run("sh", "-c", mount).returncode == 0
            result = world.hugeld("list", "--json")
            told = json.loads(result.stdout)["stores"][0]
            assert told["users_left_out"] == 1 and told["files"][0]["processes"] == 1, result
            raw = helpers.run(world.command("/run/bin/hugeld", "list"))  # with the line that `run` leaves out
            assert "1 users' processes were not read" in raw.stdout and f"process {blocked.pid} keeps its mappings locked" in raw.stderr, raw
    finally:
        helpers.end_process(blocked)


# --- metrics ---

@pytest.mark.parametrize("what", ["user's folder", "link", "user's link", "full", "almost full", "gone"])
def test_metrics_that_cannot_be_written(world, what):
    """Root writes nothing where another user could have put a link."""
    world.lists("mine", APP)
    folder = world.path("/run/metrics")
    if what != "gone":
        folder.mkdir()
    if what in ("user's folder", "link"):
        os.chown(folder, USER, USER)
    if what in ("link", "user's link"):
        folder.rename(world.path("/run/theirs"))
        folder.symlink_to("theirs")
    if what == "user's link":
        os.lchown(folder, USER, USER)
    if what == "full":
        assert world.run("sh", "-c", "mount -t tmpfs -o mode=755,size=4k none /run/metrics && ! cat /dev/zero > /run/metrics/zeros").returncode == 0
    limit = []
    if what == "almost full":  # the kernel writes the first kilobyte
        done(world.hugeld("apply"))
        limit = ["prlimit", "--fsize=1024"]
    result = world.run(*limit, "/run/bin/hugeld", "apply", "--metrics=/run/metrics/hugeld.prom")
    assert result.returncode == 1 and "the metrics cannot be written" in result.stderr and states(world) == {APP: "fresh"}, result
    assert what == "gone" or not [name for name in os.listdir(world.path("/run/metrics")) if name != "zeros"]
    assert "full" not in what or "No space left" in result.stderr
