# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld enable`, `disable` and `reset`: the lists, the store and the mounts afterwards."""

import contextlib
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import time

import pytest

import helpers
from worlds import APP, SYSTEM, USER


LIST = "/etc/hugeld/enabled.d/local.list"
HUGELD = "/run/bin/hugeld"


def maps(pid):
    return pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def done(result):
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def refused(result, *words):
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result
    for word in words:
        assert word in result.stderr, result


def listed(world):
    """The lines of local.list."""
    path = world.path(LIST)
    return path.read_text().splitlines() if path.exists() else []


def test_enable_and_disable(world):
    """The list gets one line, and keeps its other lines; twice is as once."""
    write(world, "# mine\n/run/none/*")
    for changed in True, False:
        answer = json.loads(world.run(HUGELD, "enable", "--json", APP).stdout)
        assert (answer["changed"], answer["entries"][0]["entry"], answer["entries"][0]["changed"]) == (changed, APP, changed)
        assert listed(world) == ["# mine", "/run/none/*", APP]
    assert [image["path"] for image in world.list()] == [APP]
    assert done(world.run(HUGELD, "enable", APP)) == f"{APP}: unchanged, it is enabled already\n"
    assert world.path(LIST).stat().st_mode & 0o777 == 0o644
    for changed in True, False:
        assert json.loads(done(world.run(HUGELD, "disable", "--json", APP)))["changed"] == changed
        assert listed(world) == ["# mine", "/run/none/*"] and world.left() == []


def test_what_others_list(world):
    """A list of a package stays as it is: disable masks its entry and names the list, and enable takes the mask away."""
    world.lists("package", APP)
    assert world.hugeld("apply").returncode == 0
    assert done(world.run(HUGELD, "disable", APP)).endswith("masks it, since it is listed in /etc/hugeld/enabled.d/package.list\n")
    assert listed(world) == [f"!{APP}"] and world.left() == [] and world.list() == []
    assert world.hugeld("apply").returncode == 0 and world.left() == []
    done(world.run(HUGELD, "enable", APP))
    assert listed(world) == [] and len(world.left()) == 1
    world.lists("mask", f"!{APP}")
    shutil.copy(world.path(APP), world.path("/run/programs/my app"))
    for mask, name in (APP, APP), ("/run/programs", APP), (APP, "/run/programs/ap*"), ("/run/programs/my\\ app", "/run/programs/my app"):
        world.lists("mask", f"!{mask}")
        refused(world.run(HUGELD, "enable", name), f"a list in /etc/hugeld/enabled.d has the line !{mask}, which takes it out")
    assert listed(world) == []


def test_way(world):
    """way=image makes an image of a file that would be put in place, also where other lists have it without a way, and another way takes
    its place."""
    for name in "a", "z":
        world.lists(name, APP)
    done(world.run(HUGELD, "enable", "--way=image", APP))
    assert not json.loads(done(world.run(HUGELD, "apply", "--json")))["changed"]
    assert listed(world) == [f"{APP} way=image"]
    result = world.run(HUGELD, "enable", "--way=in-place", APP)  # which this file cannot be
    assert result.returncode == 1 and listed(world) == [f"{APP} way=image"], result
    assert f"enable --way=image {APP}" in result.stderr and [(i["way"], i["state"]) for i in world.list()] == [("image", "fresh")]


def test_way_of_another_list(world):
    """What was enabled by the administrator counts more."""
    world.lists("a", f"{APP} way=in-place")  # which this file cannot be
    done(world.run(HUGELD, "enable", "--way=image", APP))
    assert [(i["way"], i["state"]) for i in world.list()] == [("image", "fresh")]
    assert listed(world) == [f"{APP} way=image"] and world.hugeld("apply").returncode == 0


def test_what_a_failure_leaves(world):
    """What others list stays, also where it cannot be seen just now: a list that others can write, a disk that is unmounted, a file that
    is being replaced; and the line of local.list that was there before."""
    world.lists("mine", APP)
    done(world.hugeld("apply"))
    [image] = world.left()
    mine, away = world.path("/etc/hugeld/enabled.d/mine.list"), world.path("/run/programs/away")
    mine.chmod(0o666)
    assert world.run(*world.systemctl(START), HUGELD, "enable", "named.service", APP, "/run/none").returncode == 1
    mine.chmod(0o644)
    assert world.left() == [image]
    world.path(APP).rename(away)
    assert world.run(HUGELD, "enable", "/run/programs/ap*").returncode == 1
    write(world, "/run/programs")
    world.run(HUGELD, "disable", "/run/programs")
    away.rename(world.path(APP))
    assert world.left() == [image] and listed(world) == []
    write(world, APP)
    mine.write_text(f"{APP} way=image\n")
    assert world.run(HUGELD, "enable", "--way=in-place", APP).returncode == 1
    assert listed(world) == [APP] and len(world.left()) == 1


START = f"ExecStart={{ path={APP} ; argv[]={APP} --serve ; ignore_errors=no }}"


def test_names(world):
    """A file is named by PATH, by a link; a path may look like a glob, have blanks, also at its end, or be gone."""
    done(world.run("env", "PATH=/run/programs:/usr/bin:/bin", HUGELD, "enable", "app"))
    world.path("/run/link").symlink_to(APP)
    done(world.run(HUGELD, "enable", "/run/link"))
    assert listed(world) == [APP]
    world.path("/run/programs/more").mkdir()
    shutil.copy(os.path.realpath("/usr/bin/python3"), world.path("/run/programs/more/gone"))  # in a folder, only what has much text counts
    odd = "/run/programs/a[b]* c\\d "
    shutil.copy(world.path(APP), world.path(odd))
    done(world.run(HUGELD, "enable", odd))
    assert world.hugeld("apply").returncode == 0
    assert sorted(image["path"] for image in world.list()) == sorted([APP, odd])
    world.path(odd).unlink()
    done(world.run(HUGELD, "disable", odd))
    assert listed(world) == [APP] and [image["path"] for image in world.list()] == [APP]
    done(world.run(HUGELD, "enable", "/run/programs/more"))
    assert len(world.list()) == 2
    world.path("/run/programs/more/gone").unlink()
    done(world.run(HUGELD, "disable", "/run/programs/more"))
    assert [image["path"] for image in world.list()] == [APP]


def test_units(world):
    """A unit is listed with the file that it executes, or the named ones; of a script, that of its main process."""
    run = world.systemctl(START)
    done(world.run(*run, HUGELD, "enable", "large.service"))
    assert listed(world) == [f"large.service {APP}"] and len(world.left()) == 1
    done(world.run(*run, HUGELD, "disable", "large.service"))
    assert listed(world) == [] and world.left() == []
    assert world.run(*run, HUGELD, "enable", "named.service", APP, "/run/none").returncode == 1
    assert listed(world) == [] and world.left() == []  # what was made for its other file is gone, too
    done(world.run(*run, HUGELD, "enable", "named.service", APP))
    assert listed(world) == [f"named.service {APP}"]
    world.path("/run/programs/script").write_text("#!/usr/bin/perl\nexec 'something';\n")
    world.path("/run/programs/script").chmod(0o755)
    script = START.replace(APP, "/run/programs/script")
    refused(world.run(*world.systemctl(script), HUGELD, "enable", "script.service"), "hugeld enable script.service FILE")
    server = "/run/programs/server"
    shutil.copy(os.path.realpath("/usr/bin/python3"), world.path(server))
    process = helpers.start(world.command(server, "-c", "print(input())"), stdin=subprocess.PIPE)
    try:
        helpers.wait_until(lambda: os.readlink(f"/proc/{process.pid}/exe").endswith("/server"), what="the program")
        run = world.systemctl(f"{script}\nMainPID={process.pid}")
        done(world.run(*run, HUGELD, "enable", "--way=image", "script.service"))
    finally:
        helpers.end_process(process)
    assert listed(world) == [f"named.service {APP}", f"script.service {server} way=image"]


def test_instances(world):
    """disable of the unit by whose name instances were enabled disables these, in whichever list they are, and no others."""
    other = "postgresqlx@1.service"
    for base, name in ("postgresql", "postgresql.service"), ("postgresql", "postgresql@.service"), ("php8.2", "php8.2@.service"):
        world.lists("package", f"{base}@2.service {APP}")
        for unit in f"{base}@1.service", other:
            done(world.run(HUGELD, "enable", unit, APP))
        done(world.run(HUGELD, "disable", name))
        assert listed(world) == [f"{other} {APP}", f"!{base}@2.service"]
        done(world.run(HUGELD, "disable", other))
        done(world.run(HUGELD, "enable", f"{base}@2.service", APP))
        assert listed(world) == []
    run = world.systemctl(f"Type=oneshot\n{START}\nEND\n[ $1 = show ] || echo job@1.service\ncat <<END")  # an instance stands for itself alone
    done(world.run("timeout", "20", *run, HUGELD, "enable", "job@.service"))
    assert listed(world) == [f"job@1.service {APP}"]


def test_generator(world):
    """The drop-ins are what stands in the lists, and nothing hostile."""
    world.lists("some", f"large.service {APP} /run/programs/second", "odd.service /run/programs/a%n",
                "glob.service /run/programs/*", "../../evil.service /bin/true", f"a@b.service {APP}")
    unit = world.path("/etc/systemd/system/large.service")
    unit.parent.mkdir(parents=True)
    unit.write_text(f"[Service]\nExecStart={APP}\n")
    world.path("/run/out").mkdir()
    assert world.hugeld("unit-generate", "/run/out").returncode == 0
    assert sorted(os.listdir(world.path("/run/out"))) == ["a@b.service.d", "large.service.d"]
    text = world.path("/run/out/large.service.d/hugeld.conf").read_text()
    assert f"ExecStartPre=-+/run/bin/hugeld-command unit-begin %n {APP} /run/programs/second\n" in text
    assert f"BindReadOnlyPaths=-/run/hugeld-units/%n/0:{APP}\n" in text and "After=hugeld-boot.service\n" in text
    assert text.count("Exec") == 4


EARLY = {
    "not found": {}, "unit": {"large@.service": "DefaultDependencies=no"}, "instance": {"large@.service": "", "large@1.service": "DefaultDependencies = false"},
    "drop-in": {"large@.service": "", "large@.service.d/x.conf": "DefaultDependencies=0"}, "yes": {"large@.service": "DefaultDependencies=on"},
}


@pytest.mark.parametrize("what", EARLY)
def test_units_that_start_early(world, what):
    """The local file systems may need such a unit, so it does not wait for the unit that waits for them."""
    world.lists("some", f"large@1.service {APP}")
    for name, line in EARLY[what].items():
        path = world.path(f"/etc/systemd/system/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[Unit]\n{line}\n")
    world.path("/run/out").mkdir()
    done(world.hugeld("unit-generate", "/run/out"))
    assert ("After=" in world.path("/run/out/large@1.service.d/hugeld.conf").read_text()) == (what == "yes")


def test_unit_links(world):
    """unit-begin links the image of the file's present version, or nothing, and unit-end removes it."""
    link = world.path("/run/hugeld-units/large.service/0")
    assert world.hugeld("unit-begin", "large.service", APP).returncode == 1 and not os.path.lexists(link)
    world.enable(APP)
    done(world.hugeld("unit-begin", "large.service", APP))
    assert os.readlink(link) == world.list()[0]["image"]
    done(world.hugeld("unit-end", "large.service", APP))
    assert not world.path("/run/hugeld-units/large.service").exists()


@pytest.mark.parametrize("setting", ["RootDirectory=/srv/other", "RootImage=/srv/other.raw", "ExtensionImages=/srv/more.raw"])
def test_unit_with_other_files(world, setting):
    """The file at the path on this system is not the one that the unit executes."""
    run = world.systemctl(f"{START}\n{setting}")
    name = setting.partition("=")[0]
    for command in ["other.service"], ["other.service", APP]:
        refused(world.run(*run, HUGELD, "enable", *command), "other.service", f"({name}=)")
    assert listed(world) == []
    done(world.run(*world.systemctl(f"{START}\nRootDirectory=/\nRootImage="), HUGELD, "enable", "other.service"))


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", " ", "%", ";", "\u202e"])
def test_unit_that_cannot_be_named(world, character):
    """A drop-in is root's: a link of the service's user names the program, and a line in its name would be a line of root's."""
    path = f"/run/programs/app{character}ExecStartPre=+evil"
    shutil.copy(world.path(APP), world.path(path))
    world.path("/run/programs/current").symlink_to(path.rpartition("/")[2])
    for named in path, "/run/programs/current":
        refused(world.run(*world.systemctl(START), HUGELD, "enable", "demo.service", named), "cannot name the path")
    assert listed(world) == []


@pytest.mark.parametrize("what", ["small", "user's", "nothing", "unit"])
def test_what_cannot_be_enabled(world, what):
    """One line says why, and nothing is listed."""
    name = {"small": "/bin/true", "user's": APP, "nothing": "/run/none", "unit": "none.service"}[what]
    if what == "user's":
        world.path(APP).chmod(0o777)
    words = {"small": "", "user's": "users other than root", "nothing": "No such file", "unit": "systemd does not run here; enable the service's program"}[what]
    refused(world.run(HUGELD, "enable", name), name, words)
    assert listed(world) == [] and world.left() == []


def test_what_one_user_enables(world):
    """It is in that user's list and store alone."""
    os.chown(world.path(APP), USER, USER)
    time.sleep(0.05)
    done(world.run(HUGELD, "enable", APP, user=USER))
    assert world.path(f"/run/user/{USER}/config/hugeld/enabled.d/local.list").read_text() == f"{APP}\n"
    assert [image["image"].startswith(f"/run/user/{USER}/hugeld/") for image in world.list(user=USER)] == [True]
    assert not world.path(LIST).exists() and world.left() == []
    refused(world.run(HUGELD, "enable", "some.service", user=USER), "run it as root")
    refused(world.run("env", "-u", "XDG_RUNTIME_DIR", HUGELD, "enable", APP, user=USER), "XDG_RUNTIME_DIR is not set")
    refused(world.run("env", "-u", "XDG_RUNTIME_DIR", HUGELD, "apply", "--dry-run", user=USER), "XDG_RUNTIME_DIR is not set")
    refused(world.run("env", "-u", "XDG_RUNTIME_DIR", HUGELD, "list", "--list=/tmp/list", user=USER), "XDG_RUNTIME_DIR or HOME is not set")
    done(world.run(HUGELD, "disable", APP, user=USER))
    assert "not in your own lists" in done(world.run(HUGELD, "disable", APP, user=USER))
    assert world.left(f"/run/user/{USER}/hugeld") == []


def test_timer_of_one_user(world):
    """It runs while something is listed, also if a list cannot be read just now; reset stops it, since it would make the images again."""
    world.systemctl("")
    world.path("/run/own/systemctl").write_text("#!/bin/sh\necho $* >> $XDG_RUNTIME_DIR/asked\n")
    folder = world.path(f"/run/user/{USER}")
    wanted, lists, asked = folder / "config/systemd/user/timers.target.wants", folder / "config/hugeld/enabled.d", folder / "asked"
    for path in wanted, lists, folder / "systemd/private":
        path.mkdir(parents=True)
    (wanted / "hugeld.timer").touch()
    (lists / "other.list").write_text("/run/none\n")
    (lists / "other.list").chmod(0o666)
    assert world.run("chown", "-R", f"{USER}:{USER}", f"/run/user/{USER}").returncode == 0
    for command, status, words in ("disable", 1, None), ("reset", 0, "--user stop hugeld.timer hugeld.service\n"):
        result = world.run("env", "PATH=/run/own:/usr/bin:/bin", HUGELD, command, *([APP] if command == "disable" else []), user=USER)
        assert (result.returncode, result.stderr.count("\n")) == (status, status), result
        assert (asked.read_text() if asked.exists() else None) == words


# --- files that others have written, and interruptions ---

def write(world, text, mode=0o644):
    path = world.path(LIST)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


HOSTILE = ["user's", "group's", "fifo", "folder", "link", "read-only"]


@pytest.mark.parametrize("what", HOSTILE)
def test_configuration_that_is_not_believed(world, what):
    """A file that another user wrote does not become root's; one line says what is wrong, and no image is made or lost."""
    path = write(world, f"{APP}\n/run/theirs\n")
    if what == "user's":
        shutil.chown(path, USER, USER)
    elif what == "group's":
        path.chmod(0o664)
    elif what == "link":
        path.rename(world.path("/etc/elsewhere"))
        path.symlink_to("../../elsewhere")
    elif what in ("fifo", "folder"):
        path.unlink()
        (os.mkfifo if what == "fifo" else os.mkdir)(path)
    elif what == "read-only":
        assert world.run("mount", "-o", "remount,ro", "/etc").returncode == 0
    before = path.lstat(), sorted(os.listdir(path.parent)), path.read_text() if what not in ("fifo", "folder") else ""
    for action in "enable", "disable":
        result = world.run(HUGELD, action, APP)
        assert result.returncode == 1 and str(pathlib.Path(LIST).parent) in result.stderr, result
        assert world.left() == []
        after = path.lstat(), sorted(os.listdir(path.parent)), path.read_text() if what not in ("fifo", "folder") else ""
        assert (after[0].st_ino, after[0].st_uid, after[0].st_mode, *after[1:]) == \
            (before[0].st_ino, before[0].st_uid, before[0].st_mode, *before[1:])


@pytest.mark.parametrize("action", ["enable", "disable"])
def test_full_disk(world, action):
    """The list stays as it is, and so does the store; with room it goes on."""
    second = "/run/programs/second"
    shutil.copy(world.path(APP), world.path(second))
    assert world.run("mount", "-t", "tmpfs", "-o", "size=16k", "none", "/etc").returncode == 0
    for name in [second] if action == "enable" else [second, APP]:
        assert world.run(HUGELD, "enable", name).returncode in (0, 3)  # or pending
    before = listed(world), world.left(), sorted(os.listdir(world.path(LIST).parent))
    with open(world.path("/etc/full"), "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    refused(world.run(HUGELD, action, APP), f"{LIST}: it cannot be changed: No space left on device")
    assert (listed(world), world.left(), sorted(os.listdir(world.path(LIST).parent))) == before
    world.path("/etc/full").unlink()
    assert world.run(HUGELD, action, APP).returncode in (0, 3)
    assert listed(world) == [second, *([APP] if action == "enable" else [])]


@pytest.mark.parametrize("name", ["/run/programs/a\nb", "/run/programs/\x1b[2Ja\tb"])
def test_names_that_the_configuration_cannot_hold(world, name):
    """They are refused before anything is made."""
    shutil.copy(world.path(APP), world.path(name))
    refused(world.run(HUGELD, "enable", name), "rename the file")
    assert listed(world) == [] and world.left() == []


@pytest.mark.parametrize("name", ["", "-", "--", "..", ".service", "a/../../.service", "\x1b[31m", "-rf.service", "$(id).service"])
def test_names_of_nothing(world, name):
    result = world.run(HUGELD, "enable", "--", name)
    assert result.returncode == 1 and result.stderr.startswith("hugeld: ") and "\x1b" not in result.stderr, result
    assert not world.path(LIST).parent.parent.exists(), "a failed enable leaves nothing"


def test_many_at_once(world):
    """Each change is there, in any order."""
    names = [f"/run/programs/app{i}" for i in range(6)]
    for name in names:
        shutil.copy(world.path(APP), world.path(name))
    write(world, f"# mine\n{APP}\n", 0o640)
    for action, left in ("enable", names), ("disable", []):
        processes = [helpers.start(world.command(HUGELD, action, name)) for name in names]
        for process in processes:
            _, errors = process.communicate(timeout=helpers.PATIENCE)
            assert process.returncode == 0 and (errors == "" or "waiting for " in errors), errors
        lines = listed(world)
        assert lines[:2] == ["# mine", APP] and sorted(lines[2:]) == left
    assert world.path(LIST).stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(world.path(LIST).parent)) == ["local.list"]


@pytest.mark.parametrize("call", ["fsync", "renameat", "flock"])
def test_enable_is_killed(world, strace, call):
    """The configuration is the old or the new one, and the next time nothing is in the way."""
    write(world, "# mine\n")
    kill = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when=1"]
    assert world.run(HUGELD, "enable", APP, strace=kill).returncode != 0
    assert listed(world) in (["# mine"], ["# mine", APP])
    done(world.run(HUGELD, "enable", APP))
    assert listed(world) == ["# mine", APP]
    assert sorted(os.listdir(world.path(LIST).parent)) == ["local.list"]


# --- reset ---

def mounts(world):
    return open(f"/proc/{world.pid}/mounts", encoding="utf-8").read()


def test_reset(world):
    """All is as it was before the first image."""
    before = sorted(os.listdir(world.path("/run"))), mounts(world)
    done(world.run(HUGELD, "enable", APP))
    done(world.hugeld("unit-begin", "demo.service", APP))
    done(world.run(HUGELD, "reset"))
    assert (sorted(os.listdir(world.path("/run"))), mounts(world)) == before
    assert done(world.run(HUGELD, "reset")) == f"{SYSTEM}: there is no store\n"
    done(world.hugeld("apply"))
    assert len(world.list()) == 1  # enabled files stay enabled


def test_reset_where_the_store_is_not_seen(world):
    """reset runs in a mount namespace in which the store is not mounted, but its folder is there."""
    world.enable(APP)
    [image] = world.list()
    script = f"umount {SYSTEM} && {HUGELD} reset && ls -d {SYSTEM}"
    assert done(world.run("unshare", "-m", "sh", "-c", script)) == f"{SYSTEM}: there is no store\n{SYSTEM}\n"
    assert world.list() == [image] and world.hugeld("list", "--check").returncode == 0
    done(world.run(HUGELD, "reset"))


def test_reset_beside_enable(world):
    """reset has unmounted the store when another process makes a new one: that one keeps its lock and its images."""
    world.enable(APP)
    stopped = ["strace", "-D", "-o", "/dev/null", "-e", "trace=umount2", "-e", "inject=umount2:signal=STOP"]
    reset = helpers.start(world.command(*stopped, HUGELD, "reset"))
    try:
        helpers.wait_until(lambda: f" {SYSTEM} " not in mounts(world), what="reset")
        world.hugeld("apply")  # which says that the store had been unmounted
        [image], lock = world.list(), world.path(f"{SYSTEM}/.lock").stat()
        assert image["state"] == "fresh" and reset.poll() is None
        helpers.wait_until(lambda: helpers.state_of(reset.pid) in "Tt", what="reset stopping")
        os.kill(reset.pid, signal.SIGCONT)
        assert "another store is mounted there" in reset.communicate(timeout=helpers.PATIENCE)[1] and reset.returncode == 1
        assert world.list() == [image] and world.path(f"{SYSTEM}/.lock").stat().st_ino == lock.st_ino
    finally:
        helpers.end_process(reset)


def test_reset_follows_no_link(world):
    """Only the link goes."""
    world.path("/run/theirs").mkdir()
    world.path("/run/theirs/file").touch()
    world.path("/run/hugeld-units").symlink_to("/run/theirs")
    done(world.run(HUGELD, "reset"))
    assert world.path("/run/theirs/file").exists() and not os.path.lexists(world.path("/run/hugeld-units"))


@pytest.mark.parametrize("call", ["umount2", "rmdir", "renameat"])
def test_reset_is_killed(world, strace, call):
    """The next reset does the rest."""
    before = sorted(os.listdir(world.path("/run"))), mounts(world)
    world.enable(APP)
    kill = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when=1"]
    assert world.run(HUGELD, "reset", strace=kill).returncode not in (0, 1)
    world.path("/etc/hugeld/enabled.d/local.list").unlink()
    done(world.run(HUGELD, "reset"))
    left = sorted(set(os.listdir(world.path("/run"))) - {"hugeld"}), mounts(world)
    assert left == before
    assert not world.path(SYSTEM).exists() or os.listdir(world.path(SYSTEM)) in ([], [".mounted"])


def insist(world, *command):
    """What COMMAND has printed.  It is given again where a thread was not in its wait yet, or too late for hugeld on a busy machine."""
    said = []

    def is_done():
        result = world.run(HUGELD, *command)
        said.append(result.stdout)
        assert result.returncode == 0 or re.search("did not stop within|did not run for|sleep in (a )?system call", result.stderr), result
        return result.returncode == 0
    helpers.wait_until(is_done, what=" ".join(map(str, command)))
    return "".join(said)


def test_reset_detaches(world):
    """A process that runs from an image, and one that was attached, are on their own file again, and run on."""
    if platform.machine() != "x86_64":
        pytest.skip("attach is for x86-64")
    python = str(pathlib.Path("/usr/bin/python3").resolve())
    world.enable("--way=image", python)
    command = [python, "-c", "import sys; print('ready', flush=True); print(sys.stdin.read())"]
    processes = [helpers.start(world.command(*start, *command), stdin=subprocess.PIPE) for start in ((HUGELD, "run"), ())]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
        insist(world, "attach", processes[1].pid)
        assert [f"{SYSTEM}/" in maps(process.pid) for process in processes] == [True, False] and "/hugeld:" in maps(processes[1].pid)
        said = done(world.run(HUGELD, "reset"))
        assert all(f"process {process.pid} still maps huge pages" in said for process in processes), said
        assert "/.old/" in maps(processes[0].pid)
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        said = world.run(HUGELD, "reset", "--detach").stderr
        for process in processes:
            assert re.search(rf"hugeld: {process.pid} .*text stays: it is stopped", said), said
            os.kill(process.pid, signal.SIGCONT)
        said = insist(world, "reset", "--detach")
        for process in processes:
            assert f"{process.pid} {pathlib.Path(python).name}: {python}: back on its own file\n" in said
            assert f"{SYSTEM}/" not in maps(process.pid) and "/hugeld:" not in maps(process.pid)
        assert not world.path(SYSTEM).exists()
        assert [process.communicate("bye", timeout=helpers.PATIENCE)[0] for process in processes] == ["bye\n"] * 2
    finally:
        for process in processes:
            helpers.end_process(process)


def test_reset_of_what_is_used(world):
    """The process keeps its pages until it ends, and nothing is left to do then."""
    world.enable(APP)
    [image] = world.list()
    with world.mapped(image["image"]) as huge:
        assert huge > 0
        assert "keep these until they end" in done(world.run(HUGELD, "reset"))
        assert not world.path(SYSTEM).exists() and f" {SYSTEM} " not in mounts(world)
        world.enable(APP)
        assert [i["state"] for i in world.list()] == ["fresh"]
    done(world.run(HUGELD, "reset"))
    assert not world.path(SYSTEM).exists()
