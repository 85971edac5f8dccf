# SPDX-License-Identifier: LGPL-2.1-or-later
import collections
import shutil

import pytest

import helpers
from hugepages import put_memory_together
from worlds import World


@pytest.fixture(autouse=True)
def huge_memory():
    put_memory_together()


@pytest.fixture(scope="module")
def folders(builder, tmp_path_factory):
    """Folders with the program, made some tests before they are used: an image is made of a file that is a second old."""
    ready = collections.deque()

    def take():
        while len(ready) < 4:
            ready.append(tmp_path_factory.mktemp("programs"))
            ready[-1].chmod(0o755)
            shutil.copy(builder.executable("pie"), ready[-1] / "app")
            (ready[-1] / "app").chmod(0o755)
        return ready.popleft()

    yield take
    for folder in ready:
        shutil.rmtree(folder)


@pytest.fixture
def world(root, folders):
    """A world with a program at /run/programs/app, which only root can change."""
    script = """
        while umount -l /run/hugeld; do :; done 2>/dev/null  # the machine's, which would be listed below the new /run
        mount -t tmpfs -o mode=0755 none /run && mount -t tmpfs -o mode=1777,size=256M none /dev/shm &&
        mount -t tmpfs -o mode=0755 none /etc && mkdir /run/bin /run/programs /run/user && mount --bind "$0" /run/programs &&
        for user in 12345 12346; do
            mkdir -m 700 /run/user/$user && chown $user:$user /run/user/$user || exit
        done && echo ready && exec sleep 1000
    """
    programs = folders()
    holder = helpers.start(["unshare", "-m", "sh", "-c", script, programs])
    try:
        assert holder.stdout.readline() == "ready\n", holder.stderr.read()
        world = World(holder)
        for file in (helpers.HUGELD, helpers.COMMAND):
            shutil.copy(file, world.path("/run/bin") / file.name)
            (world.path("/run/bin") / file.name).chmod(0o755)
        yield world
    finally:
        helpers.end_process(holder)
        shutil.rmtree(programs)


@pytest.fixture
def own_store(images):
    """The test's store is for root alone, so it takes files from folders that others can write to (/tmp)."""
    images.folder.chmod(0o700)
    yield images.folder
    images.folder.chmod(0o755)
