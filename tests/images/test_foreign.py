# SPDX-License-Identifier: LGPL-2.1-or-later
"""A container and the host's store: `hugeld doctor` finds containers that could write to it."""

import json
import pathlib
import re

import pytest

import helpers
from worlds import APP, SYSTEM


# A root file system with the machine's programs and its store.
OTHER_ROOT = """mkdir /run/rootfs && mount -t tmpfs none /run/rootfs
for folder in usr bin lib lib64 run/hugeld; do
    [ ! -d /$folder ] || { mkdir -p /run/rootfs/$folder; mount --bind /$folder /run/rootfs/$folder; }
done
"""
READ_ONLY = f"mount -o remount,bind,ro {SYSTEM}\n"
WAIT = "exec /bin/sh -c 'echo $$; exec sleep 1000'\n"
CONTAINERS = {
    "container": (["-p", "-f"], WAIT, True),
    "with the host's processes": ([], OTHER_ROOT + "exec chroot /run/rootfs " + WAIT.removeprefix("exec "), True),
    "read-only": (["-p", "-f"], READ_ONLY + WAIT, False),
    "without it": (["-p", "-f"], f"umount {SYSTEM}\n" + WAIT, False),
    "rootless": (["-U", "-r", "-p", "-f"], WAIT, False),
    "service": ([], WAIT, False),
}


def store_finding(world):
    result = world.run("/run/bin/hugeld", "doctor", "--json")
    [found] = [f for f in json.loads(result.stdout)["findings"] if f["name"] == "store"]
    return found


@pytest.mark.parametrize("how", CONTAINERS)
def test_doctor_finds_who_can_write(world, how):
    """The root of a container is not the host's, whose processes execute the images in the store.  A service that has mounts of
    its own is the host's."""
    flags, script, is_found = CONTAINERS[how]
    world.enable("--way=image", APP)
    assert store_finding(world)["state"] == "ok"
    prefix = helpers.become(12345) if how == "rootless" else []
    process = helpers.start(world.command(*prefix, "unshare", "-m", *flags, "sh", "-euc", script))
    try:
        assert process.stdout.readline(), process.stderr.read()
        found = store_finding(world)
        told = re.search(r"; the container of process (\d+) can write to it", found["sentence"])
        assert bool(told) == is_found, found
        assert found["state"] == ("warn" if is_found else "ok")
        if is_found:
            assert found["remedy"] == f"start that container with {SYSTEM}:{SYSTEM}:ro"
            group = pathlib.Path(f"/proc/{told[1]}/stat").read_text().rpartition(")")[2].split()[2]
            assert int(group) == process.pid
    finally:
        helpers.end_process(process)
    assert store_finding(world)["state"] == "ok"
