# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guest whose process 1 is systemd: the files of guest_amd64.py, those that systemd needs to start a service and
nothing that it would start by itself but two units for test_vm_boot.py, and Debian's PostgreSQL with an empty data folder."""

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

PACKAGES = ("systemd", "libsystemd-shared")
PROGRAMS = ("systemd", "systemd-journald", "systemd-shutdown")
UNITS = ("basic.target", "multi-user.target", "sysinit.target", "shutdown.target", "sockets.target", "umount.target", "final.target",
         "local-fs.target", "local-fs-pre.target", "timers.target", "slices.target", "paths.target",
         "systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket")
FILES = ("usr/lib/*/systemd/libsystemd-*.so", *(f"lib/systemd/{name}" for name in PROGRAMS),
         *(f"lib/systemd/system/{name}" for name in UNITS), "bin/systemctl", "bin/journalctl", "usr/bin/systemd-run",
         "usr/lib/systemd/user/*.target", "usr/lib/systemd/user/systemd-exit.service")
USERS = "somebody:x:12345:12345::/home/somebody:/bin/sh\n"  # of test_vm_user.py


def add_systemd(root):
    with Archive("amd64", ["bookworm", "bookworm-security"]).packages(PACKAGES) as tree:
        for pattern in FILES:
            found = list(tree.glob(pattern))
            if not found:
                raise Unavailable(f"{' '.join(PACKAGES)} of bookworm have no {pattern}")
            for path in found:
                root.add(path, at=f"/{path.relative_to(tree)}")
    root.write("/etc/passwd", pathlib.Path("/etc/passwd").read_text() + USERS)
    root.write("/etc/systemd/system/hugeld-tests.service", (HERE / "systemd" / "hugeld-tests.service").read_text())
    root.write("/etc/hosts", "127.0.0.1 localhost\n")
    root.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    root.inside("/var/run").symlink_to("../run")
    root.inside("/init").symlink_to("lib/systemd/systemd")


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
    root.add_command("kill", "nsenter", "setpriv")


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


def add_debians_postgres(root):
    """The cluster above is Debian's: its unit, which starts a script of Perl, and its settings."""
    if not os.path.exists("/etc/postgresql/15/main/postgresql.conf"):
        raise Unavailable("there is no cluster 15/main of Debian's PostgreSQL (postgresql-15)")
    for name in ("system/postgresql.service", "system/postgresql@.service", "system-generators/postgresql-generator"):
        root.add(f"/lib/systemd/{name}")
    root.add_command("chown", "perl", "pg_ctlcluster", "install", "mkdir", "ln")
    root.add("/usr/lib/postgresql/15/bin/pg_ctl")
    root.add("/usr/share/perl5/PgCommon.pm")
    root.add_tree(glob.glob("/usr/lib/*/perl-base")[0])
    root.add_tree("/usr/lib/locale/C.utf8")
    root.add_tree("/etc/postgresql/15/main")
    root.write("/etc/postgresql/15/main/conf.d/guest.conf", "ssl = off\n")


def add_boot(root):
    """What test_vm_boot.py finds: two listed services that start at boot, one of them before the local file systems are there."""
    python = os.path.realpath(guest_amd64.PYTHON)
    units = {
        "boot-late.service": ("multi-user.target", f"[Service]\nExecStart={python} -c 'import signal; signal.pause()'\n"),
        "boot-early.service": ("local-fs.target", "[Unit]\nDefaultDependencies=no\nBefore=local-fs.target\n[Service]\nType=oneshot\n"
                               f"RemainAfterExit=yes\nExecStart={python} -c pass\n"),
        "hugeld-boot.service": ("multi-user.target", None),
    }
    for name, (target, text) in units.items():
        if text is not None:
            root.write(f"/etc/systemd/system/{name}", text)
        link = root.inside(f"/etc/systemd/system/{target}.wants/{name}")
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"/usr/local/lib/systemd/system/{name}" if text is None else f"../{name}")
    root.write("/etc/hugeld/enabled.d/boot.list", "".join(f"{name} {python} way=image\n" for name in ("boot-late.service", "boot-early.service")))


def make_image(folder):
    root = guest_amd64.make_root(folder)
    root.add_command("ldconfig", "rm", "stat")
    add_systemd(root)
    add_hugeld(root)
    add_service(root)
    add_postgres(root)
    add_debians_postgres(root)
    add_boot(root)
    root.add_tree(ROOT / "debian", at="/hugeld/debian")
    for name in ("doc/services.md", "glibc-patches/README.md"):
        root.add(ROOT / name, at=f"/hugeld/{name}")
    return root.make_image(folder / "root.ext4", free_mib=256)


def guest(name, *suites, tests):
    """The postgres of doc/services.md leaves 537 pages alone."""
    return guest_amd64.guest(name, *suites, image=make_image, memory="1024M", tests=tests,
                             words=["systemd.unit=hugeld-tests.service", "systemd.show_status=0"])


GUESTS = [
    guest("systemd", "bookworm", "bookworm-security", tests="systemd"),
    guest("6.12-systemd", "trixie", "trixie-security", tests="systemd-user"),
]
