# SPDX-License-Identifier: LGPL-2.1-or-later
"""Services that run from images, by the drop-in of the generator: also after their program was upgraded, without hugeld,
and without a store."""

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import tempfile

import pytest

import helpers

LINKS = pathlib.Path("/run/hugeld-units")


@pytest.fixture
def program(service):
    """The service, where root alone can write to it, with an image in the system's store."""
    there = pathlib.Path("/usr/local/bin/imaged")
    shutil.copy(service, there)
    there.chmod(0o755)
    made = helpers.hugeld("enable", "--way=image", there)
    assert made.returncode == 0, made.stderr
    yield there
    helpers.hugeld("disable", there)
    there.unlink()
    assert not list(LINKS.glob("*")), "a link is left"


def drop_in(name, program):
    """What the generator writes for a list with the unit."""
    listed = pathlib.Path("/etc/hugeld/enabled.d/unit.list")
    listed.write_text(f"{name} {program}\n")
    with tempfile.TemporaryDirectory() as folder:
        result = helpers.hugeld("unit-generate", folder)
        listed.unlink()
        assert result.returncode == 0, result.stderr
        return pathlib.Path(folder, f"{name}.d/hugeld.conf").read_text().splitlines()


def runs_from(pid):
    """The file that the process executes, and the one that it finds at its own path."""
    exe = os.stat(f"/proc/{pid}/exe")
    return exe.st_dev, exe.st_ino


def image_of(program):
    stores = helpers.hugeld_json("list")["stores"]
    [image] = [i for s in stores for i in s["files"] if i["path"] == str(program) and i["state"] == "fresh"]
    status = os.stat(image["image"])
    return status.st_dev, status.st_ino


def original(program):
    status = os.stat(program)
    return status.st_dev, status.st_ino


def replace(program):
    """Replaces the file as dpkg does."""
    new = program.with_name("new")
    shutil.copy(program, new)
    os.replace(new, program)


TYPES = {"simple": [], "exec": ["Type=exec"], "user": ["User=nobody", "NoNewPrivileges=yes", "RestrictNamespaces=yes",
                                                        "ProtectSystem=strict", "PrivateTmp=yes"],
         "filtered": ["DynamicUser=yes", "SystemCallFilter=@system-service", "ProtectSystem=strict", "MemoryDenyWriteExecute=yes"]}


@pytest.mark.parametrize("kind", TYPES)
def test_image(unit, program, kind):
    one = unit([f"ExecStart={program}", *TYPES[kind]], drop_in("x.service", program))
    assert one.start().returncode == 0, one.journal()
    [line] = one.said(1)
    assert runs_from(one.pid()) == image_of(program), one.journal()
    assert line.endswith(f" of {program}")
    smaps = pathlib.Path(f"/proc/{one.pid()}/smaps").read_text()
    [text] = re.findall(rf" r-xp .* {program}\n((?:[A-Z]\w+:.*\n)+)", smaps)
    assert int(re.search(r"ShmemPmdMapped: *(\d+)", text)[1]) >= 3 * helpers.HUGE // 1024
    assert "libhugeld" not in smaps
    one.stop()


def test_upgrade(unit, program):
    """The package's file is another one, and nothing has been refreshed: the new file runs; after refresh its image."""
    reload = f"ExecReload=/bin/sh -c 'stat -c %%d:%%i {program}'"
    one = unit([f"ExecStart={program}", reload, "StandardError=journal"], drop_in("x.service", program))
    assert one.start().returncode == 0, one.journal()
    old = image_of(program)
    assert runs_from(one.pid()) == old
    replace(program)
    assert helpers.run(["systemctl", "reload", one.name]).returncode == 0, one.journal()
    device, inode = original(program)
    helpers.wait_until(lambda: f"{device}:{inode}" in "\n".join(one.said(1)), what="what ExecReload= sees")
    one.stop()
    assert one.start().returncode == 0, one.journal()
    one.said(1)
    assert runs_from(one.pid()) == original(program)
    assert "not from an image" in one.journal()
    one.stop()
    assert helpers.hugeld("apply").returncode == 0
    assert one.start().returncode == 0
    one.said(1)
    assert runs_from(one.pid()) == image_of(program) != old
    one.stop()


@pytest.mark.parametrize("lacks", ["store", "hugeld"])
def test_without(unit, program, lacks, tmp_path):
    """The service runs without its image, also where a link was left over."""
    lines = drop_in("x.service", program)
    if lacks == "store":
        helpers.hugeld("reset")
    else:
        lines = [line.replace(str(helpers.HUGELD), "/nowhere/hugeld") for line in lines]
        assert any("/nowhere" in line for line in lines)
    one = unit([f"ExecStart={program}"], lines)
    (LINKS / one.name).mkdir(parents=True)
    (LINKS / one.name / "0").symlink_to("/bin/true")
    assert one.start().returncode == 0, one.journal()
    one.said(1)
    assert runs_from(one.pid()) == original(program)
    one.stop()


def test_found_by_name(unit, program):
    """enable without FILE finds the program by systemd's description of the unit, and the next start has its text huge."""
    one = unit([f"ExecStart=-{program} --something"])
    assert helpers.hugeld("enable", "--way=image", one.name).returncode == 0
    assert f"{one.name} {program} way=image" in pathlib.Path("/etc/hugeld/enabled.d/local.list").read_text().splitlines()
    assert one.start().returncode == 0, one.journal()
    one.said(1)
    assert runs_from(one.pid()) == image_of(program)
    one.stop()
    assert helpers.hugeld("disable", one.name).returncode == 0


def test_other_root(unit, program):
    """A service that gets another root after its drop-in, and even after a start that failed, runs the program in that root."""
    lines, root = drop_in("x.service", program), pathlib.Path("/srv/other")
    other = root / str(program).lstrip("/")
    other.parent.mkdir(parents=True)
    shutil.copy(program, other)
    failed = unit(["ExecStart=/nowhere/program", "Type=exec"], lines)
    try:
        assert failed.start().returncode != 0
        assert not (LINKS / failed.name / "0").is_symlink()
        one = unit([f"ExecStart={program}", f"RootDirectory={root}", "BindReadOnlyPaths=/usr/lib /lib /lib64"], lines)
        refused = helpers.hugeld("enable", one.name)
        helpers.one_line(refused, 1, f"hugeld: {one.name}: ", "(RootDirectory=)")
        assert one.start().returncode == 0, one.journal()
        one.said(1)
        assert runs_from(one.pid()) == original(other) != original(program)
        one.stop()
    finally:
        shutil.rmtree(root)


def shown(unit, name):
    return helpers.run(["systemctl", "show", "--value", "-p", name, unit]).stdout.strip()


def test_units(service):
    """A list that a playbook wrote: `hugeld apply` switches the timer on, and off with the last entry; the units make the image where all
    see it and count its memory; the boot unit makes a lost store anew; and the generator gives the listed service its image."""
    program, listed = pathlib.Path("/usr/local/bin/playbook"), pathlib.Path("/etc/hugeld/enabled.d/playbook.list")
    shutil.copy(service, program)
    program.chmod(0o755)
    listed.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path("/run/systemd/system/playbook.service").write_text(f"[Service]\nExecStart={program}\nStandardOutput=null\n")
    listed.write_text(f"playbook.service {program} way=image\n/bin/true\n")
    try:
        assert helpers.run(["systemctl", "daemon-reload"]).returncode == 0
        assert str(LINKS / "%n/0").replace("%n", "playbook.service") in shown("playbook.service", "BindReadOnlyPaths")
        assert "hugeld-boot.service" in shown("playbook.service", "After")
        assert helpers.hugeld("apply").returncode == 0  # /bin/true gains nothing, which is no failure
        for unit in "hugeld.timer", "hugeld-boot.service":
            assert helpers.run(["systemctl", "is-enabled", unit]).stdout == "enabled\n"
        assert shown("hugeld.timer", "ActiveState") == "active"
        for unit in "hugeld.service", "hugeld-boot.service":
            assert helpers.hugeld("reset").returncode == 0 and not pathlib.Path("/run/hugeld").exists()
            for _ in range(3):
                started = helpers.run(["systemctl", "start", unit], timeout=helpers.PATIENCE)
                assert started.returncode == 0, helpers.run(["journalctl", "-u", unit]).stdout
            image_of(program)
            [pages] = [f["huge_pages"] for s in helpers.hugeld_json("list")["stores"] for f in s["files"] if f["path"] == str(program)]
            current = int(pathlib.Path("/sys/fs/cgroup/hugeld.slice/memory.current").read_text())
            assert current >= pages * helpers.HUGE > 0
        assert helpers.run(["systemctl", "start", "playbook.service"]).returncode == 0
        helpers.wait_until(lambda: runs_from(int(shown("playbook.service", "MainPID"))) == image_of(program), what="the image")
        listed.unlink()
        assert helpers.hugeld("apply").returncode == 0
        assert helpers.run(["systemctl", "is-enabled", "hugeld.timer"]).stdout == "disabled\n"
        assert shown("hugeld.timer", "ActiveState") == "inactive"
    finally:
        listed.unlink(missing_ok=True)
        helpers.run(["systemctl", "stop", "playbook.service", "hugeld.timer"])
        pathlib.Path("/run/systemd/system/playbook.service").unlink()
        helpers.run(["systemctl", "daemon-reload"])
        helpers.hugeld("reset")
        program.unlink()


@contextlib.contextmanager
def locked_store():
    with open("/run/hugeld/.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_trigger(program):
    """dpkg's trigger starts the service, and does not wait for it: here the store is locked."""
    with locked_store():
        result = helpers.run(["sh", "/hugeld/debian/hugeld.postinst", "triggered", "/usr/bin"])
        assert result.returncode == 0, result
        helpers.wait_until(lambda: shown("hugeld.service", "ActiveState") == "activating", what="the service, which still waits")
    helpers.wait_until(lambda: shown("hugeld.service", "ActiveState") == "inactive", what="its end")
    assert shown("hugeld.service", "Result") == "success"


def test_boot_where_the_store_is_locked(program):
    """The unit that others come after gives up by itself, before its timeout."""
    with locked_store():
        assert helpers.run(["systemctl", "start", "hugeld-boot.service"], timeout=helpers.PATIENCE).returncode != 0
    assert (shown("hugeld-boot.service", "Result"), shown("hugeld-boot.service", "TimeoutStartUSec")) == ("exit-code", "20s")
    helpers.run(["systemctl", "reset-failed", "hugeld-boot.service"])


def test_package_removal(program):
    """The package's scripts: once it is removed nothing of it runs or is mounted; what is enabled stays until it is purged, and what other
    packages have listed stays."""
    lists = pathlib.Path("/etc/hugeld/enabled.d")
    for name in ".lock", ".local.list.new":
        (lists / name).touch()
    (lists / "other.list").write_text(f"{program}\n")
    assert shown("hugeld.timer", "ActiveState") == "active"
    for script in "prerm", "postrm":
        result = helpers.run(["sh", f"/hugeld/debian/hugeld.{script}", "remove"])
        assert result.returncode == 0, result
    assert not os.path.exists("/run/hugeld") and not LINKS.exists() and shown("hugeld.timer", "ActiveState") == "inactive"
    wanted = [path for path in pathlib.Path("/etc/systemd/system").glob("*.wants/*") if path.name in ("hugeld.timer", "hugeld-boot.service")]
    assert wanted == [] and str(program) in (lists / "local.list").read_text()
    assert helpers.run(["sh", "/hugeld/debian/hugeld.postrm", "purge"]).returncode == 0
    assert os.listdir("/etc/hugeld") == ["enabled.d"] and os.listdir(lists) == ["other.list"]
    (lists / "other.list").unlink()
