# SPDX-License-Identifier: LGPL-2.1-or-later
"""A machine of its own for each test process: a pool of huge pages that is a limit of a cgroup (version 2), counters in /sys that
say the same (counters.c), and a /run, /tmp and /dev/shm without another's store or perf maps.  Tests beside it, and other programs of
this machine, take none of its pages and change none of its numbers and files.

It needs root and the controller hugetlb.  The pages come from the real pool, which tools/with-pool fills before."""

import contextlib
import ctypes
import errno
import os
import pathlib
import signal
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
COUNTERS = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
PAGES = 128  # of a test that does not say how many
PREFIX = "hugeld-test-"
CLONE_NEWNS = 0x20000


def find_controller():
    """Where cgroup version 2 is mounted, with the controller hugetlb, or None."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if kind == "cgroup2" and "hugetlb" in pathlib.Path(mount, "cgroup.controllers").read_text().split():
            return pathlib.Path(mount)
    return None


def remove_group(group):
    """Removes GROUP and all below it; what still runs there is killed."""
    end = time.monotonic() + 30
    while pids := [int(pid) for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]:
        for pid in pids:  # in a group of ours
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < end, f"{group}: {pids} do not end"
        time.sleep(0.01)
    for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        folder.rmdir()
    group.rmdir()


def remove_old_groups(root):
    """Removes the groups of test processes that were killed: those that are empty, and not just made."""
    for group in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - group.stat().st_mtime > 600:
                (group / "main").rmdir()
                group.rmdir()


def make_group(root):
    """A new group below ROOT whose limits hold for all groups below it, and the group below it for this process."""
    (root / "cgroup.subtree_control").write_text("+hugetlb")
    remove_old_groups(root)
    group = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))  # another PID namespace has the same PIDs
    (group / "cgroup.subtree_control").write_text("+hugetlb")
    (group / "main").mkdir()
    return group


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def leave_mounts():
    """This process has a mount namespace of its own from here on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {errno.errorcode[number]}")
    mount("--make-rprivate", "/")


def start_counters(group, folder):
    """Mounts the counters of GROUP over those of the machine.  The process that serves them."""
    program, files = folder / "counters", folder / "files"
    files.mkdir()
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True).stdout.split()
    subprocess.run(["gcc", "-O1", "-D_FILE_OFFSET_BITS=64", "-o", program, HERE / "counters.c", *flags], check=True)
    server = subprocess.Popen([program, files, group], stdin=subprocess.DEVNULL)
    while not (files / "nr_hugepages").exists():
        assert server.poll() is None, "the counters end at once"
        time.sleep(0.005)
    (files / "nr_hugepages").write_text(str(PAGES))
    for counters in COUNTERS, *pathlib.Path("/sys/devices/system/node").glob("node[0-9]*/hugepages/hugepages-2048kB"):
        for file in counters.iterdir():
            if (files / file.name).exists():
                mount("--bind", files / file.name, file)
    return server


def replace_run(folder):
    """/run has no store of hugeld's, and all else that is there."""
    for store in pathlib.Path("/run").glob("hugeld*"):
        subprocess.run(["umount", "--quiet", "--lazy", store], check=False)  # else it stays in the list of mounts
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "mode=755", "none", folder)
    for entry in pathlib.Path("/run").iterdir():
        there = folder / entry.name
        if entry.is_symlink():
            there.symlink_to(os.readlink(entry))
        elif not entry.name.startswith("hugeld"):
            there.mkdir() if entry.is_dir() else there.touch()
            mount("--rbind", entry, there)
    mount("--move", folder, "/run")


def replace_tmp(folder, keep):
    """/tmp is FOLDER, with those of the folders KEEP that lie in /tmp."""
    folder.mkdir()
    folder.chmod(0o1777)
    for path in keep:
        if path.is_relative_to("/tmp") and path.exists():
            there = folder / path.relative_to("/tmp")
            there.mkdir(parents=True, exist_ok=True)
            mount("--rbind", path, there)
    mount("--rbind", folder, "/tmp")


class Machine:
    def __init__(self, root, folder, keep):
        self.root, self.group = root, make_group(root)
        self.outside = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        leave_mounts()
        self.server = start_counters(self.group, folder)
        replace_run(folder / "run")
        mount("-t", "tmpfs", "-o", "mode=1777,nosuid,nodev", "none", "/dev/shm")
        replace_tmp(folder / "tmp", keep)
        (self.group / "main" / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self):
        """Whether this process is back in the mount namespace that it had before."""
        (self.root / "cgroup.procs").write_text(str(os.getpid()))
        self.server.kill()
        self.server.wait()
        with contextlib.suppress(FileNotFoundError):  # another run that begins removes empty groups, too
            remove_group(self.group)
        folder = os.getcwd()
        is_outside = ctypes.CDLL(None).setns(self.outside, CLONE_NEWNS) == 0  # not with threads that share the current folder
        os.chdir(folder)
        return is_outside


def enter(folder, keep):
    """The Machine that this process has from here on, or None where it cannot have one.  FOLDER is empty, and for it; of the folders
    KEEP those in /tmp are still there."""
    if os.geteuid() != 0 or not COUNTERS.exists():
        return None
    root = find_controller()
    return Machine(root, folder, keep) if root else None
