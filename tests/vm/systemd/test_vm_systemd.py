# SPDX-License-Identifier: LGPL-2.1-or-later
"""Services under systemd as doc/services.md and glibc-patches/README.md set them up: their text is on huge
pages, or stays with the reason in the journal; they answer, and stop when they are told to."""

import os
import pathlib
import pwd
import re
import shutil
import signal

import pytest

import helpers
from documents import read_unit
from hugepages import free_pages
from smaps import read_smaps

DROP_IN = read_unit("verbose=1", "doc/services.md")
LINKER = read_unit("BindReadOnlyPaths=", "glibc-patches/README.md")
ANONYMOUS, MEMFD = "/anon_hugepage", "/memfd:hugeld"

# The settings that `systemd-analyze security` asks for, as far as they matter here, with the list of system calls that it
# likes best.
HARDENED = """
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallArchitectures=native
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
ProcSubset=pid
PrivateTmp=yes
PrivateDevices=yes
PrivateNetwork=yes
PrivateUsers=yes
DynamicUser=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=none
LockPersonality=yes
""".split("\n")[1:-1]
NO_EXEC = "MemoryDenyWriteExecute=yes"

# As doc/services.md says: a filter, which Debian's systemd makes of it, may kill for a memfd.
BY_MEMFD = ["Environment=LD_HUGEPAGES_OPTIONS=verbose=1,backend=hugetlb"]

# settings -> the route that text takes
SETTINGS = {
    "nothing": ([], ANONYMOUS),
    "MemoryDenyWriteExecute": ([NO_EXEC], MEMFD),
    "hardened": (HARDENED, ANONYMOUS),
    "both": ([*HARDENED, NO_EXEC], MEMFD),
}


@pytest.fixture(scope="session")
def program(service):
    """The service where every unit sees it."""
    return shutil.copy(service, "/usr/local/bin/large")


@pytest.fixture(scope="session")
def plain(program):
    """The first two lines of the service."""
    process = helpers.start([program])
    try:
        first = process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        return [line.rstrip("\n") for line in (first, process.stdout.readline())]
    finally:
        helpers.end_process(process)


def use(one, plain, prove):
    """Starts ONE, looks, asks, stops; the result of PROVE for its process."""
    started = one.start()
    assert started.returncode == 0, started.stderr + one.journal()
    assert one.said(1) == plain[:1]
    found = prove(one.pid())
    one.signal("HUP")
    assert one.said(2) == plain
    assert one.show("ActiveState") == "active"
    one.stop()
    assert one.said(3) == [*plain, "stopped"]
    return found


def use_way(unit, program, plain, huge, settings, drop_in, route):
    """A service with these lines in its unit is on huge pages by ROUTE, and every page is back afterwards."""
    free = free_pages()
    one = unit([f"ExecStart={program}", *settings], drop_in)

    def prove(pid):
        pages, names = huge(pid)
        assert pages == free - free_pages() >= 4
        assert all(name.startswith(route) for name in names), names
        return {m.inode for m in read_smaps(pid) if m.name.endswith("/ld-linux-x86-64.so.2")}

    linker = use(one, plain, prove)
    assert free_pages() == free
    assert "hugeld" not in one.journal()
    return linker


@pytest.mark.parametrize("name", SETTINGS)
def test_drop_in(unit, program, plain, huge, pool, name):
    pool(64)
    settings, route = SETTINGS[name]
    use_way(unit, program, plain, huge, settings, [*DROP_IN, *(BY_MEMFD if route == MEMFD else [])], route)


@pytest.mark.parametrize("name", ["nothing", "both"])
def test_patched_linker(unit, program, plain, huge, pool, name):
    """The service is the patched linker's, and only the service; /proc/self/exe is the program."""
    pool(64)
    settings, route = SETTINGS[name]
    [linker] = use_way(unit, program, plain, huge, settings, [*LINKER, *(BY_MEMFD if route == MEMFD else [])], route)
    ours, _, installed = next(line for line in LINKER if "BindReadOnlyPaths=" in line).partition("=")[2].partition(":")
    assert linker == os.stat(ours).st_ino != os.stat(installed).st_ino
    assert plain[0].endswith(f" of {program}")


@pytest.mark.parametrize("drop_in", [DROP_IN, [*LINKER, "Environment=LD_HUGEPAGES_OPTIONS=verbose=1"]],
                         ids=["preload", "linker"])
def test_stays(unit, program, plain, huge, pool, thp, drop_in):
    """As doc/services.md says: thp cannot stand in under MemoryDenyWriteExecute=.  Nothing is lost but huge pages, and the
    journal says why."""
    pool(0)
    one = unit([f"ExecStart={program}", NO_EXEC], drop_in)
    use(one, plain, lambda pid: huge(pid, ()))
    assert re.search("hugeld: large: text stays: .*", one.journal()), one.journal()


def test_postgres(unit, huge, pool):
    """The example of doc/services.md, word for word but for the version: the pool holds what `inspect` says and what the server
    takes itself."""
    [version] = os.listdir("/var/lib/postgresql")
    example = [line.replace("/15/", f"/{version}/") for line in read_unit("reserve_pages=", "doc/services.md")]
    own(f"/var/lib/postgresql/{version}", pwd.getpwnam("postgres"))
    one = unit(["User=postgres", "Type=notify", "RuntimeDirectory=postgresql", "KillSignal=SIGINT",
                "StandardOutput=journal"], example)
    server = f"/usr/lib/postgresql/{version}/bin/postgres"
    [found] = helpers.hugeld_json("inspect", server)["files"]
    pages = found["pool_pages"] + int(re.search(r"reserve_pages=(\d+)", "".join(example))[1])
    pool(pages)
    assert one.start().returncode == 0, one.journal()
    assert huge(one.pid())[0] > 0
    assert any(m.is_hugetlb and m.permissions == "rw-s" for m in read_smaps(one.pid())), "its own"
    answer = helpers.run(["/usr/bin/psql", "-U", "postgres", "-At", "-c", "select 6 * 7, pg_size_pretty(2 ^ 20::numeric)"])
    assert answer.stdout == "42|1024 kB\n", answer
    one.stop()
    assert free_pages() == pages


def own(folder, user):
    os.chown(folder, user.pw_uid, user.pw_gid)
    for path in pathlib.Path(folder).rglob("*"):
        os.chown(path, user.pw_uid, user.pw_gid)
