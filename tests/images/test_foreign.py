# SPDX-License-Identifier: LGPL-2.1-or-later
"""A container and the host's store: `hugeld doctor` finds containers that could write to it; and a user namespace that does not
map the host's root, where no process uses it and every way gives the reason."""

import json
import pathlib
import re
import shutil

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


# --- user namespaces ---


# User 0 inside is another number outside, and none is the host's 0.
MAPPINGS = {"rootless": (helpers.become(12345), "0 12345 1"), "private users": ([], "0 100000 65536")}
FOREIGN = "the store belongs to a user that this user namespace does not map (the host's root)"
REMEDY = "make a store inside the container"


@pytest.fixture(params=MAPPINGS)
def inside(request, world):
    """inside(argv, ...): ARGV as root of a user namespace in the world, where the host's root is 65534."""
    become, mapping = MAPPINGS[request.param]
    holder = helpers.start(world.command(*become, "unshare", "-U", "sh", "-c", "echo $$; exec sleep 1000"))
    try:
        if not holder.stdout.readline():
            pytest.skip(f"no user namespaces here: {holder.stderr.read()}")
        if mapping.split()[2] == "1":
            pathlib.Path(f"/proc/{holder.pid}/setgroups").write_text("deny")
        for name in ("uid_map", "gid_map"):
            pathlib.Path(f"/proc/{holder.pid}/{name}").write_text(mapping)
        keep = ["--preserve-credentials"] if mapping.split()[2] == "1" else []

        def run(*argv, env=None, how=helpers.run, **options):
            return how(world.command(*become, "nsenter", "-t", holder.pid, "-U", *keep, *argv), env, **options)

        assert run("id", "-u").stdout == "0\n" and run("stat", "-c", "%u", "/run").stdout == "65534\n"
        yield run
    finally:
        helpers.end_process(holder)


@pytest.fixture
def fixed(world, builder):
    """A program at a fixed address, whose image libhugeld.so could use."""
    shutil.copy(builder.executable("nopie"), world.path("/run/programs/fixed"))
    shutil.copy(helpers.LIBRARY, world.path("/run/bin/libhugeld.so"))
    for name in ("programs/fixed", "bin/libhugeld.so"):
        world.path(f"/run/{name}").chmod(0o755)
    world.enable("--way=image", "/run/programs/fixed", APP)
    return "/run/programs/fixed"


def test_what_is_measured_by(world, fixed):
    """The standard for the other tests: where root is mapped, both images are used."""
    for app in (fixed, APP):
        said = world.run("/run/bin/hugeld", "run", "-o", "verbose=2", "--", app).stderr
        assert " image, at the exec stop from /run/hugeld/" in said, said


def test_run(inside, fixed):
    for app in (fixed, APP):
        plain = inside(app)
        result = inside("/run/bin/hugeld", "run", "-o", "verbose=1", "--", app)
        assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
        assert f"hugeld: {app}: not at the exec stop: {FOREIGN}; {REMEDY}\n" in result.stderr
        assert inside("/run/bin/hugeld", "run", "--", app).stderr == ""


def test_preloader(inside, fixed):
    env = helpers.preload("/run/bin/libhugeld.so", options="backend=image,verbose=1")
    result = inside(fixed, env=env)
    assert result.stdout == inside(fixed).stdout
    assert f"hugeld: fixed: text stays: {FOREIGN}; {REMEDY}\n" in result.stderr


def test_inspect(inside, fixed):
    [file] = json.loads(inside("/run/bin/hugeld", "inspect", "--json", fixed).stdout)["files"]
    assert (file["image"]["reason"], file["image"]["sentence"], file["image"]["remedy"]) == ("store-foreign", FOREIGN, REMEDY)


def test_share_and_doctor(inside, fixed):
    assert "belongs to a user that this user namespace does not map" in inside("/run/bin/hugeld", "list").stderr
    assert "it belongs to a user that this user namespace does not map" in inside("/run/bin/hugeld", "doctor").stdout
