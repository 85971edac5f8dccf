# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld enable`, `disable` and `reset`: what is in the configuration, in the store, and mounted afterwards."""

import pathlib
import platform
import shutil
import signal
import subprocess

import pytest

import helpers
from worlds import APP, SYSTEM, USER

pytestmark = pytest.mark.beside

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
    """The configuration gets one line, and keeps what else is in it."""
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


def test_names(world):
    """By PATH, by a link, by a unit; a path that a glob would take for something else; one that is gone."""
    done(world.run("env", "PATH=/run/programs:/usr/bin:/bin", HUGELD, "enable", "app"))
    world.path("/run/link").symlink_to(APP)
    done(world.run(HUGELD, "enable", "/run/link"))
    world.path("/etc/systemd/system").mkdir(parents=True)
    world.path("/etc/systemd/system/large.service").write_text(f"[Service]\nExecStart={APP} --serve\n")
    done(world.run(HUGELD, "enable", "large.service"))
    assert world.path(CONFIGURATION).read_text() == f"enabled = {APP}\n"
    odd = "/run/programs/a[b]*"
    shutil.copy(world.path(APP), world.path(odd))
    done(world.run(HUGELD, "enable", odd))
    done(world.share("refresh"))
    assert len(world.list()) == 2
    world.path(odd).unlink()
    done(world.run(HUGELD, "disable", odd))
    assert world.path(CONFIGURATION).read_text() == f"enabled = {APP}\n"


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
    """Nothing was enabled yet."""
    refused(world.run(HUGELD, "disable", APP), f"{APP}: it was not enabled")
    assert not world.path(CONFIGURATION).exists()


def test_root_alone(world):
    refused(world.run(HUGELD, "enable", APP, user=USER), "run it as root")
    assert world.run(HUGELD, "enable").returncode == 2


def test_reset(world):
    """All is as it was before the first image."""
    done(world.run(HUGELD, "enable", APP))
    done(world.run("env", "XDG_CACHE_HOME=/run/cache", HUGELD, "reset"))
    assert not world.path(SYSTEM).exists()
    assert f" {SYSTEM} " not in open(f"/proc/{world.pid}/mounts", encoding="utf-8").read()
    done(world.run(HUGELD, "reset"))
    done(world.share("refresh"))
    assert len(world.list()) == 1  # what is enabled stays enabled


def test_reset_detaches(world):
    """A process that was attached is on its own file again, and runs on."""
    if platform.machine() != "x86_64":
        pytest.skip("attach is for x86-64")
    python = str(pathlib.Path("/usr/bin/python3").resolve())
    script = "import sys; print('ready', flush=True); print(sys.stdin.read())"
    process = helpers.start(world.command(python, "-c", script), stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        world.add("--way=image", python)
        done(world.run(HUGELD, "attach", process.pid))
        assert f"{SYSTEM}/" in maps(process.pid)
        assert f"{process.pid} {pathlib.Path(python).name}: {python}: back on its own file\n" in done(world.run(HUGELD, "reset"))
        assert f"{SYSTEM}/" not in maps(process.pid) and not world.path(SYSTEM).exists()
        assert process.communicate("bye", timeout=30)[0] == "bye\n"
    finally:
        helpers.end_process(process)


def test_reset_of_what_is_used(world):
    """The process keeps its pages; the rest goes when it has ended."""
    world.add(APP)
    [image] = world.list()
    with world.mapped(image["image"]) as huge:
        assert huge > 0
        result = world.run(HUGELD, "reset")
        assert result.returncode == 1 and "stays mounted" in result.stderr and world.left() == []
    done(world.run(HUGELD, "reset"))
    assert not world.path(SYSTEM).exists()


def test_reset_while_the_service_runs(world):
    world.add(APP)
    process = helpers.start(world.command(HUGELD, "service"))
    try:
        helpers.wait_until(lambda: any(m.name.startswith(SYSTEM) for m in helpers.read_smaps(process.pid)))
        refused(world.run(HUGELD, "reset"), "stop it first")
        assert len(world.list()) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        helpers.end_process(process)
    done(world.run(HUGELD, "reset"))


def test_service_without_its_type():
    """As systemctl reads a name."""
    for name in "none", "none.service":
        helpers.one_line(helpers.hugeld("share", "unit", name), 1, "hugeld: none.service: its ExecStart= cannot be found")
