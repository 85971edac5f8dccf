# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process executes root's images, and its own user's if it has no other user's rights.

Each image here has other code than its file, so that it is seen whether it ran."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

import helpers
from stores import Store
from worlds import APP


USER = 12345
# f is in text of several huge pages, so that an image covers it.
LIBRARY = r"""
.text
.globl f
.type f, @function
.rept 3 << 20
nop
.endr
f: mov $11, %eax
ret
.skip 5 << 20, 0x90
.section .note.GNU-stack, "", @progbits
"""
PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
static char **arguments;
static int load(void) {
    void *handle = dlopen(arguments[1], RTLD_NOW);
    if (handle == NULL)
        return puts(dlerror()), 1;
    printf("%d\n", ((int (*)(void))dlsym(handle, "f"))());
    return 0;
}
static void *become_and_load(void *user) {
    long number = (long)user;
    if (syscall(SYS_setresgid, number, number, number) != 0 || syscall(SYS_setresuid, number, number, number) != 0)
        return perror("setresuid"), (void *)1;
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    return (void *)(long)load();
}
int main(int argc, char **argv) {
    int user = atoi(argv[2]);
    const char *how = argc > 3 ? argv[3] : "effective";
    pthread_t thread;
    void *result = NULL;
    arguments = argv;
    if (strcmp(how, "thread") == 0) /* this thread stays root */
        return pthread_create(&thread, NULL, become_and_load, (void *)(long)user) != 0 ||
               pthread_join(thread, &result) != 0 || result != NULL;
    if (strcmp(how, "for good") == 0) { /* not dumpable: it knows what root knew */
        if (setgroups(0, NULL) != 0 || setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0)
            return perror("setresuid"), 1;
        return load();
    }
    if (strcmp(how, "real") == 0 && (setresgid(user, user, user) != 0 || setresuid(user + 1, user, user + 1) != 0))
        return perror("setresuid"), 1;
    if (user != 0 && seteuid(user) != 0)
        return perror("seteuid"), 1;
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    return load();
}
"""
THEIRS = b"\xb8\x42\0\0\0"  # mov $66, %eax
OURS = b"\xb8\x0b\0\0\0"


@pytest.fixture(scope="module")
def folder(shared_folder):
    if os.uname().machine != "x86_64":
        pytest.skip("the test's library is for x86-64")
    folder = shared_folder / "trust"
    folder.mkdir()
    # On a disk's file system it may be huge already, and then no store is looked at.
    mounted = helpers.run(["mount", "-t", "tmpfs", "-o", "huge=never,mode=0755", "none", folder])
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs here: {mounted.stderr}")
    with helpers.at_end('umount -l "$1"', folder):
        (folder / "f.S").write_text(LIBRARY)
        (folder / "main.c").write_text(PROGRAM)
        flags = ["-shared", "-Wl,-z,max-page-size=0x200000", "-Wl,-soname,libf.so"]
        subprocess.run(["gcc", *flags, "-o", folder / "libf.so", folder / "f.S"], check=True)
        subprocess.run(["gcc", "-O1", "-o", folder / "main", folder / "main.c"], check=True)
        yield folder


class Place:
    """A namespace with an empty /run and /dev/shm, both tmpfs with huge pages, and stores in them."""

    def __init__(self, holder, folder, library):
        self.pid, self.folder, self.library = holder.pid, folder, library

    def run(self, argv, env=None, prefix=()):
        return helpers.run(["nsenter", "-t", self.pid, "-m", "--wd=/", *prefix, *argv], env)

    def path(self, path):
        return pathlib.Path(f"/proc/{self.pid}/root{path}")

    def make_store(self, path, owner):
        """A store with an image of libf.so that has THEIRS in it."""
        store = Store(self.path(path))
        store.folder.mkdir(mode=0o755, parents=True)
        image = store.add(self.folder / "libf.so")
        data = image.read_bytes()
        assert data.count(OURS) == 1
        image.write_bytes(data.replace(OURS, THEIRS))
        image.chmod(0o555)
        for name in (store.folder, image.parent, image):
            shutil.chown(name, owner, owner)

    def outcome(self, store=None, prefix=(), effective=0, how="effective"):
        """(the result of f, the output of hugeld)"""
        options = "backend=image,verbose=1" + (f",store={store}" if store else "")
        env = helpers.preload(self.library, patterns="libf.so", options=options)
        result = self.run([self.folder / "main", self.folder / "libf.so", effective, how], env, prefix)
        assert result.returncode == 0, result
        return int(result.stdout), result.stderr


@pytest.fixture
def place(root, folder, library):
    script = """mount -t tmpfs -o mode=0755,huge=always,size=256m none /run &&
                mount -t tmpfs -o mode=1777,huge=always,size=256m none /dev/shm && echo ready && exec sleep 1000"""
    holder = helpers.start(["unshare", "-m", "sh", "-c", script])
    try:
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"no namespace with a tmpfs: {holder.stderr.read()}")
        yield Place(holder, folder, library)
    finally:
        helpers.end_process(holder)


AS_USER = helpers.become(USER)
PLAIN, FROM_IMAGE = 11, 66
UNSAFE = "another user could have written to the store"
FOREIGN = "belongs to a user that this user namespace does not map"


def test_roots_store(place):
    """The standard for the other tests: every user takes images from root's store."""
    place.make_store("/run/hugeld", 0)
    assert place.outcome()[0] == place.outcome(prefix=AS_USER)[0] == FROM_IMAGE
    assert place.outcome(effective=USER)[0] == FROM_IMAGE


def test_named_store(place):
    """A user takes root's store and his own, and no other user's."""
    place.make_store("/dev/shm/his", USER)
    assert place.outcome("/dev/shm/his", AS_USER)[0] == FROM_IMAGE
    for prefix in ((), helpers.become(USER + 1)):
        got, said = place.outcome("/dev/shm/his", prefix)
        assert got == PLAIN and UNSAFE in said, said
    place.make_store("/dev/shm/roots", 0)
    assert place.outcome("/dev/shm/roots", AS_USER)[0] == FROM_IMAGE


@pytest.mark.parametrize("owner", [USER, *[pytest.param(owner, marks=pytest.mark.check_all(ci=True)) for owner in (65534, 0)]])
def test_store_that_no_one_named(place, owner):
    """Any user could have made a store that no one named: a process looks into root's alone."""
    for name in ("hugeld-0", f"hugeld-{USER}", "hugeld-65534", "hugeld"):
        place.make_store(f"/dev/shm/{name}", owner)
    for prefix in ((), AS_USER, helpers.become(65534), ["unshare", "-U"]):
        assert place.outcome(prefix=prefix)[0] == PLAIN


@pytest.mark.parametrize("store", [None, "/dev/shm/his"])
def test_in_a_user_namespace_that_maps_no_one(place, store):
    """In such a user namespace every foreign file is 65534's, and so is the process."""
    place.make_store("/run/hugeld" if store is None else store, USER)
    if place.run(["true"], prefix=["unshare", "-U"]).returncode != 0:
        pytest.skip("no user namespaces here")
    for prefix in (["unshare", "-U"], ["unshare", "-r"]):
        got, said = place.outcome(store, prefix)
        assert got == PLAIN and (FOREIGN in said or UNSAFE in said), said


def test_roots_store_in_a_rootless_container(place):
    """User IDs in the container say nothing about root's store, and the reason is one of its own."""
    place.make_store("/run/hugeld", 0)
    if place.run(["true"], prefix=[*AS_USER, "unshare", "-r"]).returncode != 0:
        pytest.skip("no user namespaces here")
    got, said = place.outcome(prefix=[*AS_USER, "unshare", "-r"])
    assert got == PLAIN and FOREIGN in said, said


def test_capabilities(place):
    """A service with ambient capabilities is more than its user's other processes, which could write the store."""
    place.make_store("/dev/shm/his", USER)
    capable = [*AS_USER, "--inh-caps=+net_bind_service", "--ambient-caps=+net_bind_service"]
    if place.run(["grep", "CapPrm:.*0400$", "/proc/self/status"], prefix=capable).returncode != 0:
        pytest.skip("no ambient capabilities here")
    got, said = place.outcome("/dev/shm/his", capable)
    assert got == PLAIN and UNSAFE in said, said
    place.make_store("/run/hugeld", 0)
    assert place.outcome(prefix=capable)[0] == FROM_IMAGE


@pytest.mark.parametrize("how", ["effective", "real"])
def test_daemon_that_is_a_user_for_the_moment(place, how):
    """seteuid(2) and dlopen(3): loaded libraries stay when the daemon is root again, or another user."""
    place.make_store("/dev/shm/his", USER)
    got, said = place.outcome("/dev/shm/his", effective=USER, how=how)
    assert got == PLAIN and UNSAFE in said, said


@pytest.mark.parametrize("how", ["thread", "for good"])
def test_process_that_is_more_than_its_user(place, how):
    """One thread is the user and the others are root; or the process was root, and its user's other processes may not look into
    it.  The preloader can't read /proc/self/pagemap there (tests/unit/test-status.c has the question itself)."""
    place.make_store("/dev/shm/his", USER)
    assert place.outcome("/dev/shm/his", effective=USER, how=how)[0] == PLAIN


def test_another_group(place):
    """newgrp(1), or a child of a set-group-ID program: its user's other processes can't trace it."""
    place.make_store("/dev/shm/his", USER)
    other = ["setpriv", f"--reuid={USER}", "--regid=42", "--clear-groups"]
    got, said = place.outcome("/dev/shm/his", other)
    assert got == PLAIN and UNSAFE in said, said


def test_overflow_user(place):
    """The overflow ID stands for many users."""
    place.make_store("/dev/shm/nobodys", 65534)
    got, said = place.outcome("/dev/shm/nobodys", helpers.become(65534))
    assert got == PLAIN and FOREIGN in said, said


@pytest.mark.parametrize("kind", ["disk", "fuse"])
def test_other_file_systems(place, kind, tmp_path):
    """A FUSE file system can claim anything about its files; so all that is not tmpfs is refused."""
    place.make_store("/run/real", 0)
    store = "/run/named"
    if kind == "disk":
        store = tmp_path / "store"
        shutil.copytree(place.path("/run/real"), store, symlinks=True)
        store.chmod(0o755)
    else:
        if not shutil.which("bindfs"):
            pytest.skip("bindfs is not installed")
        place.path(store).mkdir()
        mounted = place.run(["bindfs", "--force-user=0", "--force-group=0", "/run/real", store])
        if mounted.returncode != 0:
            pytest.skip(f"no FUSE here: {mounted.stderr}")
    try:
        got, said = place.outcome(store)
        assert got == PLAIN and "the store does not lie on tmpfs" in said, said
    finally:
        if kind == "fuse":
            place.run(["umount", store])


def test_run_names_the_users_own(place):
    """No process looks into the user's own store by itself; `hugeld run` names it in the environment."""
    place.path("/run/user").mkdir()
    place.path(f"/run/user/{USER}").mkdir(mode=0o700)
    shutil.chown(place.path(f"/run/user/{USER}"), USER, USER)
    place.make_store(f"/run/user/{USER}/hugeld", USER)
    hugeld = place.library.parent / "hugeld"
    prefix = [*AS_USER, "env", f"XDG_RUNTIME_DIR=/run/user/{USER}"]
    argv = [hugeld, "run", "-p", "libf.so", "--", place.folder / "main", place.folder / "libf.so", 0]
    result = place.run(argv, prefix=prefix)
    assert (result.returncode, result.stdout) == (0, f"{FROM_IMAGE}\n"), result
    printed = place.run([hugeld, "run", "--copy", "--", "env"], prefix=prefix).stdout
    assert re.search(rf"^LD_HUGEPAGES_OPTIONS=(.*,)?store=/run/user/{USER}/hugeld$", printed, re.M)
    other = place.run(argv, prefix=[*helpers.become(USER + 1), "env", f"XDG_RUNTIME_DIR=/run/user/{USER}"])
    assert (other.returncode, other.stdout) == (0, f"{PLAIN}\n"), other
    assert "store=" not in place.run([hugeld, "run", "--copy", "--", "env"]).stdout


FLIP = """
import ctypes, sys
while True:
    ctypes.CDLL(None).renameat2(-100, b"/run/e/store", -100, b"/run/e/other", 2)  # RENAME_EXCHANGE
"""


@pytest.mark.check_all
def test_folder_above_the_store(world):
    """The folder's owner exchanges the store while programs start, for one in which a FIFO has the image's name: none waits for
    it."""
    assert world.run("sh", "-c", "mkdir /run/e && mount -t tmpfs -o huge=always,mode=0755 none /run/e && mkdir /run/e/store").returncode == 0
    made = world.apply_list("/run/e/store", f"{APP} way=image", options=["--any-disk"])
    assert made.returncode == 0, made
    [image] = world.path("/run/e/store").glob("*/app")
    fifo = world.path("/run/e/other") / image.parent.name / "app"
    fifo.parent.mkdir(parents=True)
    os.mkfifo(fifo, 0o755)
    shutil.chown(world.path("/run/e"), USER, USER)
    plain = world.run(APP).stdout
    run = ["/run/bin/hugeld", "run", "-o", "store=/run/e/store,verbose=2", "--", APP]
    assert "at the exec stop from /run/e/store/" in world.run(*run).stderr
    flipper = helpers.start(world.command("/usr/bin/python3", "-c", FLIP, user=USER))
    try:
        for _ in range(100):
            result = world.run(*run)
            assert result.stdout == plain, result
        assert flipper.poll() is None, flipper.stderr.read()
    finally:
        helpers.end_process(flipper)
