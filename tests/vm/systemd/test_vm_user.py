# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld enable` of a user without root, under a systemd of that user's: a list, a store and a timer of the user's own; before
Linux 6.12 a refusal that leaves nothing."""

import os
import pathlib
import shutil

import pytest

import helpers
from smaps import read_smaps

USER = 12345
HOME, RUNTIME = pathlib.Path("/home/somebody"), pathlib.Path(f"/run/user/{USER}")


@pytest.fixture
def user(unit):
    """user(command...): runs it as a user whose systemd runs."""
    RUNTIME.mkdir(parents=True)
    assert helpers.run(["mount", "-t", "tmpfs", "-o", f"mode=700,uid={USER},gid={USER}", "none", RUNTIME]).returncode == 0
    HOME.mkdir(parents=True)
    os.chown(HOME, USER, USER)
    environment = [f"XDG_RUNTIME_DIR={RUNTIME}", f"HOME={HOME}"]
    manager = unit([f"User={USER}", "Delegate=yes", "Type=notify", *(f"Environment={one}" for one in environment),
                    "ExecStart=/lib/systemd/systemd --user"])
    assert manager.start().returncode == 0, manager.journal()
    yield lambda *command: helpers.run([*helpers.become(USER), "env", *environment, *command])
    helpers.run(["umount", "-l", RUNTIME])
    shutil.rmtree(HOME)


def has_own_images():
    version, patch_level = os.uname().release.split(".")[:2]
    return (int(version), int(patch_level)) >= (6, 12)


def test_user(user, service):
    program = HOME / "program"
    shutil.copy(service, program)
    os.chown(program, USER, USER)
    listed = HOME / ".config/hugeld/enabled.d/local.list"
    enabled = user("/usr/local/bin/hugeld", "enable", "--way=image", program)
    if not has_own_images():
        helpers.one_line(enabled, 1, "hugeld: enable: before Linux 6.12 only root's store has huge pages; run it as root")
        assert not listed.parent.parent.exists() and not (RUNTIME / "hugeld").exists()
        return
    assert enabled.returncode == 0, enabled
    assert listed.read_text() == f"{program} way=image\n"
    assert user("systemctl", "--user", "is-enabled", "hugeld.timer").stdout == "enabled\n"
    assert user("systemctl", "--user", "is-active", "hugeld.timer").stdout == "active\n"
    shutil.copy(service, HOME / "new")
    os.chown(HOME / "new", USER, USER)
    os.rename(HOME / "new", program)
    assert user("systemctl", "--user", "start", "hugeld.service").returncode == 0
    process = helpers.start([*helpers.become(USER), "env", f"XDG_RUNTIME_DIR={RUNTIME}", "/usr/local/bin/hugeld", "run", "--", program])
    try:
        assert process.stdout.readline().startswith("sum ")
        assert sum(m.kb["ShmemPmdMapped"] for m in read_smaps(process.pid)) >= 3 * helpers.HUGE // 1024
    finally:
        helpers.end_process(process)
    disabled = user("/usr/local/bin/hugeld", "disable", program)
    assert disabled.returncode == 0 and not listed.exists(), disabled
    assert user("systemctl", "--user", "is-active", "hugeld.timer").stdout == "inactive\n"
