# SPDX-License-Identifier: LGPL-2.1-or-later
"""Services with ExecStart=hugeld run -- PROGRAM, as doc/services.md says: systemd sees the program and nothing else, and its text
is on its image; where system calls are filtered it runs as well, by the preloader or on small pages."""

import os
import pathlib
import re
import shutil

import pytest

import helpers

HUGELD = "/usr/local/bin/hugeld"
FILTER = ["SystemCallFilter=@system-service", "SystemCallArchitectures=native", "NoNewPrivileges=yes"]
# Settings for which systemd makes a filter.
FILTERED = {
    "root": FILTER,
    "user": [*FILTER, "User=nobody"],
    "dynamic-user": ["DynamicUser=yes"],
    "private-devices": ["PrivateDevices=yes"],
    "no-write-execute": ["MemoryDenyWriteExecute=yes"],
}

# Settings of a service that have nothing to do with filters.
SETTINGS = {
    "simple": [],
    "exec": ["Type=exec"],
    "notify": ["Type=notify", "Environment=T_SERVICE=notify"],
    "forking": ["Type=forking", "PIDFile=/run/large.pid", "Environment=T_SERVICE=forking"],
    "user": ["User=nobody", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes", "ProtectControlGroups=yes"],
    "no-new-privileges": ["User=nobody", "NoNewPrivileges=yes", "CapabilityBoundingSet="],
}


@pytest.fixture(params=["service", "pie_service"])
def program(request):
    """The service, where root alone can write to it, with an image in the system's store."""
    there = pathlib.Path("/usr/local/bin/large")
    shutil.copy(request.getfixturevalue(request.param), there)
    there.chmod(0o755)
    made = helpers.hugeld("enable", "--way=image", there)
    assert made.returncode == 0, made.stderr
    yield there
    helpers.hugeld("disable", there)
    there.unlink()


def is_on_image(pid):
    """Whether four huge pages of its text are mapped from the store, in a process with nothing of hugeld."""
    smaps = pathlib.Path(f"/proc/{pid}/smaps").read_text()
    mapped = re.findall(r" r-xp .* /run/hugeld/.*/large\n((?:[A-Z]\w+:.*\n)+)", smaps)
    kib = sum(int(re.search(r"ShmemPmdMapped: *(\d+)", paragraph)[1]) for paragraph in mapped)
    return kib >= 4 * helpers.HUGE // 1024 and "libhugeld" not in smaps


def use(one, program):
    """Starts it, asks, stops it; its output, and its state by systemd and /proc."""
    started = one.start()
    assert started.returncode == 0, started.stderr + one.journal()
    [line] = one.said(1)
    assert line.endswith(f" of {program}")
    pid = one.pid()
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    found = {
        "command": pathlib.Path(f"/proc/{pid}/comm").read_text(),
        "tasks": sorted(pathlib.Path(f"/proc/{i}/comm").read_text() for i in
                        pathlib.Path(f"/sys/fs/cgroup/system.slice/{one.name}/cgroup.procs").read_text().split()),
        "status": re.findall(r"^((?:Uid|Gid|Groups|Cap\w+|NoNewPrivs|Seccomp|TracerPid|Sig\w+):.*)", status, re.M),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }
    found["status"] = [re.sub(r"^(SigQ|Uid|Gid|Groups):.*", r"\1", text) for text in found["status"]]
    on_image = is_on_image(pid)
    one.signal("HUP")
    one.said(2)
    assert one.show("ActiveState") == "active"
    one.stop()
    said = one.said(3)
    assert said[2:] == ["stopped"]
    return on_image, (said, found)


@pytest.mark.parametrize("name", SETTINGS)
def test_as_plainly(unit, program, name):
    plain = use(unit([f"ExecStart={program}", *SETTINGS[name]]), program)
    on_image = use(unit([f"ExecStart={HUGELD} run -- {program}", *SETTINGS[name]]), program)
    assert not plain[0] and on_image[0], "it is not on its image"
    assert on_image[1] == plain[1]


@pytest.mark.parametrize("name", FILTERED)
def test_filtered(unit, program, name):
    """An inherited filter may kill for calls that it does not know, and ptrace is not in @system-service."""
    one = unit([f"ExecStart={HUGELD} run -o verbose=1 -- {program}", *FILTERED[name]])
    assert one.start().returncode == 0, one.journal()
    [line] = one.said(1)
    assert line.endswith(f" of {program}")
    assert not is_on_image(one.pid())  # by the preloader, or not at all
    one.signal("HUP")
    one.said(2)
    one.stop()
    assert one.said(3)[2:] == ["stopped"]
    assert "not at the exec stop: its system calls are filtered" in one.journal()
