# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guest whose process 1 is systemd: the files of guest_amd64.py, those that systemd needs to start a service and
nothing that it would start by itself, coredumpctl and gdb, and postgres with an empty cluster."""

import glob
import os
import pathlib
import pwd
import shutil
import tempfile

import guest_amd64
from archive import Archive, Unavailable, run

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECOND = "second.ext4"

# systemd-coredump would set kernel.core_pattern of this machine if it were installed, and wants systemd of its own version.
PACKAGES = ("systemd", "libsystemd-shared", "systemd-coredump")
PROGRAMS = ("systemd", "systemd-journald", "systemd-shutdown", "systemd-coredump", "systemd-sysctl")
UNITS = ("basic.target", "multi-user.target", "sysinit.target", "shutdown.target", "sockets.target", "umount.target", "final.target",
         "systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket",
         "systemd-coredump.socket", "systemd-coredump@.service")
FILES = ("usr/lib/*/systemd/libsystemd-*.so", *(f"lib/systemd/{name}" for name in PROGRAMS),
         *(f"lib/systemd/system/{name}" for name in UNITS), "bin/systemctl", "bin/journalctl", "usr/bin/coredumpctl",
         "usr/lib/sysctl.d/50-coredump.conf")
# Its package makes the user that looks at cores, with libdw.
USER = "systemd-coredump:x:64001:64001::/:/usr/sbin/nologin\n"


def add_systemd(root):
    with Archive("amd64", ["bookworm", "bookworm-security"]).packages(PACKAGES) as tree:
        for pattern in FILES:
            found = list(tree.glob(pattern))
            if not found:
                raise Unavailable(f"{' '.join(PACKAGES)} of bookworm have no {pattern}")
            for path in found:
                root.add(path, at=f"/{path.relative_to(tree)}")
    for path in glob.glob("/usr/lib/*/libdw.so.1"):
        root.add(path)
    root.write("/etc/passwd", pathlib.Path("/etc/passwd").read_text() + USER)
    root.write("/etc/systemd/system/hugeld-tests.service", (HERE / "systemd" / "hugeld-tests.service").read_text())
    root.write("/etc/hosts", "127.0.0.1 localhost\n")
    root.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    root.inside("/var/run").symlink_to("../run")
    root.inside("/init").symlink_to("lib/systemd/systemd")


def add_gdb(root):
    root.add_command("gdb")
    root.add_tree("/usr/share/gdb", leave=("auto-load",))
    root.inside("/var/tmp").mkdir()


def add_hugeld(root):
    """The files of `make install`, the unit included; the guest runs ldconfig."""
    with tempfile.TemporaryDirectory() as folder:
        run(["make", "-s", "-C", ROOT, "install", f"DESTDIR={folder}"])
        for path in sorted(pathlib.Path(folder).rglob("*")):
            at = f"/{path.relative_to(folder)}"
            if path.is_symlink():
                root.inside(at).parent.mkdir(parents=True, exist_ok=True)
                root.inside(at).symlink_to(os.readlink(path))
            elif path.is_file():
                root.add(path, at=at, libraries=path.name != "ld.so")
    link = root.inside("/usr/lib/x86_64-linux-gnu/hugeld/ld-hugeld.so")  # as the package hugeld-ldso has it
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("/usr/local/lib/hugeld/ld.so")
    root.add("/etc/ld.so.conf")
    root.add_tree("/etc/ld.so.conf.d")


def add_service(root):
    """The tool by which hugeld.service asks systemd."""
    for path in glob.glob("/usr/lib/*/libsystemd.so.0"):
        root.add(path)
    root.add_command("kill", "nsenter")


def add_postgres(root):
    """The server, and a cluster where Debian has it.  Its owner there is set by the test."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    if not found:
        raise Unavailable("postgres is not installed (postgresql)")
    binaries = os.path.dirname(found[-1])
    version = pathlib.Path(binaries).parent.name
    root.add(found[-1])
    root.inside(f"/usr/lib/postgresql/{version}/lib").mkdir()
    root.add(f"{binaries}/psql", at="/usr/bin/psql")
    root.add_tree(f"/usr/share/postgresql/{version}", leave=("man", "extension", "*.sql"))
    root.add_tree("/usr/share/zoneinfo/Etc")
    with tempfile.TemporaryDirectory() as folder:
        prefix = []
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        run([*prefix, f"{binaries}/initdb", "-A", "trust", "-N", "-U", "postgres", "--locale=C", "--wal-segsize=1", "-D",
             f"{folder}/main"], cwd=folder)
        shutil.copytree(f"{folder}/main", root.inside(f"/var/lib/postgresql/{version}/main"))


def make_image(folder):
    root = guest_amd64.make_root(folder)
    root.add_command("ldconfig", "rm", "stat")
    add_systemd(root)
    add_gdb(root)
    add_hugeld(root)
    add_service(root)
    add_postgres(root)
    for name in ("doc/services.md", "doc/databases.md", "glibc-patches/README.md"):
        root.add(ROOT / name, at=f"/hugeld/{name}")
    run(["/sbin/mke2fs", "-q", "-t", "ext4", folder / SECOND, "32M"])
    guest_amd64.make_xfs(folder)
    return root.make_image(folder / "root.ext4")


# The postgres of doc/databases.md leaves 537 pages alone.
GUESTS = [
    guest_amd64.guest("systemd", "bookworm", "bookworm-security", image=make_image, memory="1024M", tests="systemd",
                      disks=[SECOND, guest_amd64.XFS], modules=guest_amd64.MODULES,
                      words=["systemd.unit=hugeld-tests.service", "systemd.show_status=0"]),
]
