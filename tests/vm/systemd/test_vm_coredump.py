# SPDX-License-Identifier: LGPL-2.1-or-later
"""systemd-coredump, set up as its package does it: coredumpctl gives the same for a service that aborts in the middle of
moved text as without hugeld, but for the limits in doc/limits.md."""

import os
import re
import shutil

import pytest

import helpers
from test_vm_systemd import DROP_IN

CORES = "/var/lib/systemd/coredump"


@pytest.fixture
def coredumps():
    """Cores go to systemd-coredump, and from there to a file system with room."""
    os.makedirs(CORES, exist_ok=True)
    for command in (["/lib/systemd/systemd-sysctl", "/usr/lib/sysctl.d/50-coredump.conf"],
                    ["systemctl", "start", "systemd-coredump.socket"],
                    ["mount", "-t", "tmpfs", "cores", CORES]):
        result = helpers.run(command)
        assert result.returncode == 0, result.stderr
    yield
    helpers.run(["umount", CORES])


def coredumpctl(*arguments):
    """Its output; its temporary files go where there is room."""
    return helpers.run(["coredumpctl", "--no-pager", *arguments], helpers.environment(TMPDIR="/run")).stdout


def crash(one, prove):
    """Starts the service ONE and lets it abort: its stack as the journal has it and as `coredumpctl gdb` has it, the file
    that gdb takes for its code; and the size of its core."""
    assert one.start().returncode == 0, one.journal()
    one.said(1)
    pid = one.pid()
    prove(pid)
    one.signal("USR1")
    helpers.wait_until(lambda: " present " in coredumpctl("list", pid), what="the core")
    journal = re.findall(r"^ +#\d+ +0x[0-9a-f]+ (.*)", coredumpctl("info", pid), re.M)
    gdb = coredumpctl("gdb", "-A", "-nx -batch -ex backtrace -ex 'x/3i trampoline'", pid)
    coredumpctl("dump", "-o", f"/run/{pid}.core", pid)
    size = os.stat(f"/run/{pid}.core").st_size
    os.unlink(f"/run/{pid}.core")
    return (journal, re.findall(r"^#\d+ .* in (\S+) \(", gdb, re.M), re.findall(r"<trampoline\S*>:\s+(.*)", gdb)), size


# settings, backend
WAYS = {
    "hugetlb": ([], "hugetlb"),
    "hugetlb left out": (["CoredumpFilter=0x13"], "hugetlb"),
    "thp": ([], "thp"),
}


def test_coredumpctl(unit, service, huge, pool, thp, coredumps):
    """eu-stack would want to be told the executable (../../perf/test_tools.py); systemd-coredump tells elfutils."""
    pool(16)
    start = f"ExecStart={shutil.copy(service, '/usr/local/bin/crashes')}"
    plain, small = crash(unit([start]), lambda pid: None)
    journal, gdb, code = plain
    assert [line.split()[0] for line in journal[3:6]] == gdb[-3:] == ["trampoline", "big_call", "main"] and len(code) == 3
    for way, (settings, backend) in WAYS.items():
        one = unit([start, *settings], [*DROP_IN, f"Environment=LD_HUGEPAGES_OPTIONS=verbose=1,backend={backend}"])
        said, size = crash(one, lambda pid: huge(pid, backend=backend))
        assert said == plain, way
        assert (size < small + helpers.HUGE) == bool(settings), (way, size, small)
