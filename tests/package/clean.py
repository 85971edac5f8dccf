# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Debian as debootstrap leaves it, for one test: its writes go into a folder over it, in a mount namespace.

The clean one lies in ${XDG_CACHE_HOME:-~/.cache}/hugeld/clean/SUITE and is made anew when it is older than a week; the
packages that tests install in it are kept beside it."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "vm"))

import archive  # noqa: E402  (its folder has just been added)
import helpers  # noqa: E402

Unavailable = archive.Unavailable

# $1: clean, $2: the folder for writes, $3: kept packages; then the command.  /usr/lib/disk is on no overlay, as an image wants
# it, and mounts are shared, as systemd makes them.  It becomes the root of the mount namespace: in a chroot no user namespace
# can be made, and a process that enters the namespace is outside of it.
ENTER = """
root=$2/root
mkdir -p "$root" "$2/upper" "$2/work"
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mkdir -p "$2/disk" "$root/usr/lib/disk"
mount --bind "$2/disk" "$root/usr/lib/disk"
mount --bind "$3" "$root/var/cache/apt/archives"
shift 3
cd "$root"
pivot_root . mnt
umount -l mnt
mount --make-rshared /
exec chroot . "$@"
"""


def base(suite):
    """The clean folder of SUITE."""
    folder = archive.cache_folder().parent / "clean" / suite
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{suite}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_fresh(folder / "etc/hugeld-clean"):
            return folder
        try:
            make(suite, folder)
        except Unavailable:
            if not (folder / "etc/hugeld-clean").exists():
                raise
            print(f"clean: {suite}: cannot be made anew; the old one serves", file=sys.stderr)
    return folder


def make(suite, folder):
    mirror, security = archive.find_mirrors()
    lines = [f"deb {mirror} {suite} main", f"deb {mirror} {suite}-updates main"]
    lines += [f"deb {security} {suite}-security main"] if security else []
    with archive.new_folder(folder) as new:
        archive.run(["debootstrap", "--variant=minbase", "--include=ca-certificates", f"--keyring={archive.KEYRING}",
                     suite, new, mirror])
        for name in ("resolv.conf", "hosts"):
            (new / "etc" / name).write_text(pathlib.Path("/etc", name).read_text())
        (new / "etc/apt/apt.conf.d/machine").write_text(
            archive.run(["apt-config", "dump", "Acquire"]) + 'APT::Keep-Downloaded-Packages "true";\n')
        (new / "etc/apt/sources.list").write_text("\n".join(lines) + "\n")
        (new / "etc/hugeld-clean").touch()
    packages = folder.with_name(f"{suite}.packages")
    shutil.rmtree(packages, ignore_errors=True)
    shutil.copytree(folder / "var/cache/apt/archives", packages)


class Clean:
    """SUITE, with FOLDER for writes."""

    def __init__(self, suite, folder):
        self.suite = suite
        self.folder = folder
        self.base = base(suite)
        self.packages = self.base.with_name(f"{suite}.packages")
        self.upper = folder / "upper"

    def run(self, script, timeout=1800, **variables):
        """Runs the shell SCRIPT in it: returncode, stdout with stderr."""
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                     "DEBIAN_FRONTEND": "noninteractive", helpers.MARK: helpers.MARK_VALUE, **variables}
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", ENTER, "sh", self.base, self.folder,
                self.packages, "sh", "-euc", script]
        with self.packages_locked():
            return subprocess.run([str(a) for a in argv], env=variables, timeout=timeout, stdin=subprocess.DEVNULL, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")

    @contextlib.contextmanager
    def packages_locked(self):
        """apt in there would not wait for another one that keeps its packages in the same folder."""
        folder = os.open(self.packages, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def do(self, script, **options):
        """The same, and it must succeed; its output."""
        result = self.run(script, **options)
        assert result.returncode == 0, f"{self.suite}: {script}\n{result.stdout[-4000:]}"
        return result.stdout

    def install(self, *packages):
        self.do("apt-get -q update && apt-get -q -y --no-install-recommends install " + " ".join(packages))

    def put(self, source, where):
        """Copies the file or folder SOURCE to WHERE inside."""
        target = self.upper / where.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if pathlib.Path(source).is_dir() else shutil.copy2(source, target)
