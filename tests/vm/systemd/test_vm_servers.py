# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debian's PostgreSQL with its own unit, unmodified: after `hugeld enable NAME.service` the next restart has the server's text on huge
pages, also under filters and after an upgrade."""

import os
import pathlib
import re
import shutil

import pytest

import helpers
from smaps import read_smaps

UNITS = pathlib.Path("/run/systemd/system")
FILTERS = ["[Service]", "SystemCallFilter=@system-service", "ProtectSystem=strict", "ReadWritePaths=/run /var", "PrivateTmp=yes"]
# What is enabled, the unit of the server, the server, its user, and the folder that its package makes at boot.
SERVER = "postgresql.service", "postgresql@15-main.service", "/usr/lib/postgresql/15/bin/postgres", "postgres", "/run/postgresql"
OWNED = "/var/lib/postgresql", "/etc/postgresql"


def systemctl(*arguments):
    return helpers.run(["systemctl", *arguments], timeout=helpers.PATIENCE)


def shown(unit, name):
    return systemctl("show", "--value", "-p", name, unit).stdout.strip()


class Server:
    def __init__(self):
        self.name, self.unit, self.program, self.user, self.run = SERVER

    def call(self, verb):
        """Starts or reloads it as an administrator does, by the name that is enabled."""
        result = systemctl(verb, self.name)
        assert result.returncode == 0 and shown(self.unit, "ActiveState") == "active", \
            result.stderr + helpers.run(["journalctl", "-q", "-o", "cat", "-n", "50", "-u", self.unit]).stdout
        return int(shown(self.unit, "MainPID"))

    def text(self, pid):
        """(bytes of the server's text that it has mapped, those by huge entries)."""
        found = [m for m in read_smaps(pid) if m.name == self.program and "x" in m.permissions]
        assert found, pathlib.Path(f"/proc/{pid}/maps").read_text()
        return sum(m.kb["Rss"] for m in found) * 1024, sum(m.kb["ShmemPmdMapped"] for m in found) * 1024

    def restart(self, is_huge):
        pid = self.call("restart")
        resident, huge = self.text(pid)
        assert huge >= max(2 * helpers.HUGE, resident - 2 * helpers.HUGE) if is_huge else huge == 0, \
            (resident, huge, helpers.run(["journalctl", "-q", "-o", "cat", "-n", "20", "-u", self.unit]).stdout)
        mapped = {m.name for m in read_smaps(pid)}
        assert not any("hugeld" in name for name in mapped), mapped
        return pid

    def upgrade(self):
        """Replaces the program by another build of it: the same but for its build ID, which is returned."""
        path = pathlib.Path(f"{self.program}.dpkg-new")
        shutil.copy(self.program, path)
        data = path.read_bytes()
        [old] = re.findall(rb"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0(.{20})", data, re.S)
        new = bytes(byte ^ 255 for byte in old)
        path.write_bytes(data.replace(old, new))
        os.rename(path, self.program)
        return new


@pytest.fixture
def server():
    one = Server()
    assert helpers.run(["chown", "-R", f"{one.user}:", *OWNED]).returncode == 0
    os.chmod("/tmp", 0o1777)
    pathlib.Path(one.run).mkdir(exist_ok=True)
    shutil.chown(one.run, one.user, one.user)
    kept = shutil.copy(one.program, f"{one.program}.kept")
    yield one
    systemctl("stop", one.name, one.unit)
    shutil.rmtree(UNITS / f"{one.unit}.d", ignore_errors=True)
    os.rename(kept, one.program)
    helpers.hugeld("disable", one.name)
    helpers.hugeld("reset")
    systemctl("daemon-reload")


def enabled():
    lists = pathlib.Path("/etc/hugeld/enabled.d/local.list")
    return lists.read_text().splitlines() if lists.exists() else []


def test_server(server):
    """Found by the name of the service, restarted, filtered, upgraded, reloaded, disabled."""
    server.call("start")
    done = helpers.hugeld("enable", server.name)
    assert done.returncode == 0, done
    assert enabled() == [f"{server.unit} {server.program}"]
    server.restart(True)
    folder = UNITS / f"{server.unit}.d"
    folder.mkdir(parents=True)
    (folder / "filters.conf").write_text("\n".join(FILTERS) + "\n")
    assert systemctl("daemon-reload").returncode == 0
    server.restart(True)
    version = server.upgrade()
    if shown(server.unit, "ExecReload"):
        server.call("reload")
    server.restart(False)  # its image is of the old one
    assert helpers.hugeld("apply").returncode == 0
    pid = server.restart(True)
    assert version in pathlib.Path(f"/proc/{pid}/exe").read_bytes()
    done = helpers.hugeld("disable", server.name)
    assert done.returncode == 0 and enabled() == [], done
    assert "hugeld" not in shown(server.unit, "BindReadOnlyPaths")
    server.restart(False)
