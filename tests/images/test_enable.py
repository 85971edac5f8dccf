# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld enable`, `disable` and `reset`: the configuration, the store and the mounts afterwards."""

import os
import pathlib
import platform
import shutil
import signal
import subprocess
import time

import pytest

import helpers
from smaps import read_smaps
from worlds import APP, SYSTEM, USER, disk


CONFIGURATION = "/etc/hugeld/hugeld.conf"
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


def test_enable_and_disable(world):
    """The configuration gets one line, and keeps its other lines."""
    world.path(CONFIGURATION).parent.mkdir()
    world.path(CONFIGURATION).write_text("# mine\nenabled = /run/none/*")
    assert done(world.run(HUGELD, "enable", APP)) == f"{APP}: enabled\n"
    assert [image["path"] for image in world.list()] == [APP]
    assert done(world.run(HUGELD, "enable", APP)) == f"{APP}: enabled already\n"
    assert world.path(CONFIGURATION).read_text() == f"# mine\nenabled = /run/none/*\nenabled = {APP}\n"
    assert world.path(CONFIGURATION).stat().st_mode & 0o777 == 0o644
    assert done(world.run(HUGELD, "disable", APP)).endswith(f"{APP}: disabled\n")
    assert world.path(CONFIGURATION).read_text() == "# mine\nenabled = /run/none/*\n" and world.left() == []
    refused(world.run(HUGELD, "disable", APP), "was not enabled")


def test_folder_that_others_can_write_to(world):
    """One line, not one for each file."""
    world.path("/run/programs").chmod(0o1777)
    shutil.copy(world.path(APP), world.path("/run/programs/second"))
    refused(world.run(HUGELD, "enable", "/run/programs"), "/run/programs: users other than root can write in this folder")
    assert not world.path(CONFIGURATION).exists() and world.left() == []


def test_refresh_counts_an_image_once(world):
    done(world.run(HUGELD, "enable", APP))
    said = done(world.hugeld("apply"))
    assert said.startswith(f"{APP}: there already") and said.count("\n") == 1


START = f"ExecStart={{ path={APP} ; argv[]={APP} --serve ; ignore_errors=no }}"


def test_names(world):
    """A file is named by PATH, by a link, by a unit; a path may look like a glob, or be gone."""
    done(world.run("env", "PATH=/run/programs:/usr/bin:/bin", HUGELD, "enable", "app"))
    world.path("/run/link").symlink_to(APP)
    done(world.run(HUGELD, "enable", "/run/link"))
    done(world.run(*world.systemctl(START), HUGELD, "enable", "large.service"))
    assert world.path(CONFIGURATION).read_text() == f"enabled = {APP}\n"
    odd = "/run/programs/a[b]*"
    shutil.copy(world.path(APP), world.path(odd))
    done(world.run(HUGELD, "enable", odd))
    done(world.hugeld("apply"))
    assert len(world.list()) == 2
    world.path(odd).unlink()
    done(world.run(HUGELD, "disable", odd))
    assert world.path(CONFIGURATION).read_text() == f"enabled = {APP}\n"


@pytest.mark.parametrize("setting", ["RootDirectory=/srv/other", "RootImage=/srv/other.raw", "ExtensionImages=/srv/more.raw"])
def test_unit_with_other_files(world, setting):
    """The file at the path on this system is not the one that the unit executes."""
    run = world.systemctl(f"{START}\n{setting}")
    name = setting.partition("=")[0]
    for command in ["enable", "other.service"], ["share", "unit", "other"], ["share", "unit", "other", APP]:
        refused(world.run(*run, HUGELD, *command), "other.service", f"({name}=)")
    assert not world.path(CONFIGURATION).exists()
    same = world.run(*world.systemctl(f"{START}\nRootDirectory=/\nRootImage="), HUGELD, "share", "unit", "other")
    assert same.returncode == 0 and f":{APP}\n" in same.stdout


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", " ", "%", ";", "\u202e"])
def test_unit_that_cannot_be_named(world, character):
    """A drop-in is root's: a link of the service's user names the program, and a line in its name would be a line of root's."""
    path = f"/run/programs/app{character}ExecStartPre=+evil"
    shutil.copy(world.path(APP), world.path(path))
    world.path("/run/programs/current").symlink_to(path.rpartition("/")[2])
    for named in path, "/run/programs/current":
        result = world.share("unit", "demo", named)
        assert (result.returncode, result.stdout) == (1, "") and "cannot name this path" in result.stderr, result
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("what", ["small", "user's", "nothing", "unit"])
def test_what_cannot_be_enabled(world, what):
    """One line says why, and the configuration does not change."""
    name = {"small": "/bin/true", "user's": APP, "nothing": "/run/none", "unit": "none.service"}[what]
    if what == "user's":
        world.path(APP).chmod(0o777)
    words = {"small": "", "user's": "users other than root", "nothing": "No such file", "unit": "ExecStart="}[what]
    refused(world.run(HUGELD, "enable", name), name, words)
    assert not world.path(CONFIGURATION).exists()


def test_disable_without_a_configuration(world):
    """disable works although nothing was enabled yet."""
    refused(world.run(HUGELD, "disable", APP), f"{APP}: it was not enabled")
    assert not world.path(CONFIGURATION).exists()


def test_root_alone(world):
    refused(world.run(HUGELD, "enable", APP, user=USER), "run it as root")
    assert world.run(HUGELD, "enable").returncode == 2


# --- files that others have written, and interruptions ---

def write(world, text, mode=0o644):
    path = world.path(CONFIGURATION)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


HOSTILE = ["user's", "group's", "fifo", "folder", "link", "mistake", "read-only"]


@pytest.mark.parametrize("what", HOSTILE)
def test_configuration_that_is_not_believed(world, what):
    """A file that another user wrote does not become root's; one line says what is wrong, and no image is made or lost."""
    path = write(world, "enabeld = x\n" if what == "mistake" else f"enabled = {APP}\nenabled = /run/theirs\n")
    if what == "user's":
        shutil.chown(path, USER, USER)
    elif what == "group's":
        path.chmod(0o664)
    elif what == "link":
        path.rename(world.path("/etc/elsewhere"))
        path.symlink_to("../elsewhere")
    elif what in ("fifo", "folder"):
        path.unlink()
        (os.mkfifo if what == "fifo" else os.mkdir)(path)
    elif what == "read-only":
        assert world.run("mount", "-o", "remount,ro", "/etc").returncode == 0
    before = path.lstat(), sorted(os.listdir(path.parent)), path.read_text() if what not in ("fifo", "folder") else ""
    for action in "enable", "disable":
        refused(world.run(HUGELD, action, APP), CONFIGURATION)
        assert world.left() == []
        after = path.lstat(), sorted(os.listdir(path.parent)), path.read_text() if what not in ("fifo", "folder") else ""
        assert (after[0].st_ino, after[0].st_uid, after[0].st_mode, *after[1:]) == \
            (before[0].st_ino, before[0].st_uid, before[0].st_mode, *before[1:])


@pytest.mark.parametrize("name", ["/run/programs/a\nenabled = x", "/run/programs/a ", "/run/programs/\x1b[2Ja\tb"])
def test_names_that_the_configuration_cannot_hold(world, name):
    """They are refused before anything is made."""
    shutil.copy(world.path(APP), world.path(name))
    refused(world.run(HUGELD, "enable", name), "rename the file")
    assert not world.path(CONFIGURATION).exists() and world.left() == []


@pytest.mark.parametrize("name", ["", "-", "--", "..", ".service", "a/../../.service", "\x1b[31m", "-rf.service", "$(id).service"])
def test_names_of_nothing(world, name):
    result = world.run(HUGELD, "enable", "--", name)
    assert result.returncode == 1 and result.stderr.startswith("hugeld: ") and "\x1b" not in result.stderr, result
    assert result.stderr.count("\n") == 1 and not world.path("/etc/hugeld").exists(), result


def test_many_at_once(world):
    """Each change is there, in any order."""
    names = [f"/run/programs/app{i}" for i in range(6)]
    for name in names:
        shutil.copy(world.path(APP), world.path(name))
    write(world, f"# mine\nenabled = {APP}\n", 0o640)
    for action, left in ("enable", names), ("disable", []):
        processes = [helpers.start(world.command(HUGELD, action, name)) for name in names]
        for process in processes:
            _, errors = process.communicate(timeout=helpers.PATIENCE)
            assert (process.returncode, errors) == (0, "")
        lines = world.path(CONFIGURATION).read_text().splitlines()
        assert lines[:2] == ["# mine", f"enabled = {APP}"] and sorted(lines[2:]) == [f"enabled = {name}" for name in left]
    assert world.path(CONFIGURATION).stat().st_mode & 0o777 == 0o640
    assert os.listdir(world.path("/etc/hugeld")) == ["hugeld.conf"]


def test_the_last_line(world):
    """The file that enable has made goes with its last line."""
    done(world.run(HUGELD, "enable", APP))
    done(world.run(HUGELD, "disable", APP))
    assert not world.path("/etc/hugeld").exists()


@pytest.mark.parametrize("call", ["fsync", "rename", "flock"])
def test_enable_is_killed(world, strace, call):
    """The configuration is the old or the new one, and the next time nothing is in the way."""
    write(world, "# mine\n")
    kill = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when=1"]
    assert world.run(HUGELD, "enable", APP, strace=kill).returncode != 0
    assert world.path(CONFIGURATION).read_text() in ("# mine\n", f"# mine\nenabled = {APP}\n")
    done(world.run(HUGELD, "enable", APP))
    assert world.path(CONFIGURATION).read_text() == f"# mine\nenabled = {APP}\n"
    assert os.listdir(world.path("/etc/hugeld")) == ["hugeld.conf"]


def test_image_that_stays(world, strace):
    """No line says that a program is disabled whose image could not be removed."""
    done(world.run(HUGELD, "enable", APP))
    fail = ["-e", "trace=renameat", "-e", "inject=renameat:error=EIO"]
    result = world.run(HUGELD, "disable", APP, strace=fail)
    assert result.returncode == 1 and "cannot be removed" in result.stderr and "disabled" not in result.stdout, result


def test_what_is_on_another_disk(world, tmp_path):
    """A file on another disk is enabled if the configuration accepts that."""
    def make(file, tree):
        return ["mke2fs", "-q", "-t", "ext4", "-d", tree, file, "64M"]

    with disk(world, tmp_path, make) as app:
        time.sleep(0.1)
        refused(world.run(HUGELD, "enable", app), "any_disk = yes")
        assert not world.path(CONFIGURATION).exists()
        write(world, "any_disk = yes\n")
        assert f"{app}: nothing would be done" not in world.run(HUGELD, "service", "--dry-run").stdout
        done(world.run(HUGELD, "enable", app))
        done(world.hugeld("disable", APP))
        done(world.hugeld("apply"))
        assert [(i["path"], i["state"]) for i in world.list()] == [(app, "fresh")]
        write(world, f"enabled = {app}\n")
        done(world.hugeld("disable", APP))
        assert world.hugeld("apply").returncode == 1
        assert [(i["path"], i["state"]) for i in world.list()] == [(app, "pending")]
        done(world.run(HUGELD, "reset"))


# --- reset ---

def mounts(world):
    return open(f"/proc/{world.pid}/mounts", encoding="utf-8").read()


def test_reset(world):
    """All is as it was before the first image."""
    before = sorted(os.listdir(world.path("/run"))), mounts(world)
    done(world.run(HUGELD, "enable", APP))
    done(world.run(HUGELD, "service", "--once"))
    done(world.share("unit", "--begin", "demo.service", APP))
    done(world.run("env", "XDG_CACHE_HOME=/run/cache", HUGELD, "reset"))
    assert (sorted(os.listdir(world.path("/run"))), mounts(world)) == before
    done(world.run(HUGELD, "reset"))
    done(world.hugeld("apply"))
    assert len(world.list()) == 1  # enabled files stay enabled


def test_reset_where_the_store_is_not_seen(world):
    """reset runs in a mount namespace in which the store is not mounted, but its folder is there."""
    world.enable(APP)
    [image] = world.list()
    script = f"umount {SYSTEM} && {HUGELD} reset && ls -d {SYSTEM}"
    assert done(world.run("unshare", "-m", "sh", "-c", script)) == f"{SYSTEM}\n"
    assert world.list() == [image] and world.hugeld("list", "--check").returncode == 0
    done(world.run(HUGELD, "reset"))


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
    world.run(HUGELD, "reset", strace=kill)
    done(world.run(HUGELD, "reset"))
    left = sorted(set(os.listdir(world.path("/run"))) - {"hugeld"}), mounts(world)
    assert left == before
    assert not world.path(SYSTEM).exists() or os.listdir(world.path(SYSTEM)) == []


def test_reset_detaches(world):
    """A process that was attached is on its own file again, and runs on."""
    if platform.machine() != "x86_64":
        pytest.skip("attach is for x86-64")
    python = str(pathlib.Path("/usr/bin/python3").resolve())
    script = "import sys; print('ready', flush=True); print(sys.stdin.read())"
    process = helpers.start(world.command(python, "-c", script), stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        world.enable("--way=image", python)
        done(world.run(HUGELD, "attach", process.pid))
        assert f"{SYSTEM}/" in maps(process.pid)
        assert f"{process.pid} {pathlib.Path(python).name}: {python}: back on its own file\n" in done(world.run(HUGELD, "reset"))
        assert f"{SYSTEM}/" not in maps(process.pid) and not world.path(SYSTEM).exists()
        assert process.communicate("bye", timeout=helpers.PATIENCE)[0] == "bye\n"
    finally:
        helpers.end_process(process)


def test_reset_beside_a_process_that_does_not_answer(world):
    """The process is named, and all else is reset."""
    world.enable(APP)
    process = helpers.start(["sleep", "1000"])
    try:
        assert world.run("sh", "-c", f"mkfifo /run/fifo && mount --bind /run/fifo /proc/{process.pid}/maps").returncode == 0
        result = helpers.run(world.command("timeout", "-s", "KILL", "100", HUGELD, "reset"))
        said = [line for line in result.stderr.splitlines() if f" {process.pid} " in line]
        assert result.returncode == 0 and len(said) == 1 and "end it" in said[0], result
        assert not world.path(SYSTEM).exists()
    finally:
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


def test_reset_while_the_service_runs(world):
    world.enable(APP)
    process = helpers.start(world.command(HUGELD, "service"))
    try:
        helpers.wait_until(lambda: any(m.name.startswith(f"{SYSTEM}/") for m in read_smaps(process.pid)))
        refused(world.run(HUGELD, "reset"), "stop it first")
        assert len(world.list()) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(helpers.PATIENCE) == 0
    finally:
        helpers.end_process(process)
    done(world.run(HUGELD, "reset"))


def test_service_without_its_type():
    """A name without a type is a service, as for systemctl."""
    for name in "none", "none.service":
        helpers.one_line(helpers.hugeld("share", "unit", name), 1, "hugeld: none.service: systemd names no ExecStart= of it")
