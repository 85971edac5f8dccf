# SPDX-License-Identifier: LGPL-2.1-or-later
"""pytest's side of a guest: writes the results as machine.py says, and fails every test during which
the kernel complained or any process died of a signal that a lost page causes."""

import collections
import os
import pathlib
import re

import pytest

import vmguest

# With kernel.print-fatal-signals the kernel tells of every process that died of SIGILL, SIGTRAP, SIGBUS or SIGSEGV.
BAD = re.compile(r"BUG:|WARNING:|Oops|unexpected fatal signal (?:4|5|7|11)\.|segfault at")

port = open(os.environ["T_RESULTS"], "w", buffering=1) if "T_RESULTS" in os.environ else None


def say(kind, *fields):
    words = (" ".join(str(f).split()) for f in fields)
    port.write("\t".join([f"vm: {kind}", *words]) + "\n")


class KernelLog:
    def __init__(self):
        pathlib.Path("/proc/sys/kernel/print-fatal-signals").write_text("1")
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        self.read()

    def read(self):
        """The messages since the last time."""
        found = []
        while True:
            try:
                found.append(os.read(self.fd, 8192).decode(errors="replace").partition(";")[2].partition("\n")[0])
            except BlockingIOError:
                return found
            except BrokenPipeError:
                continue  # some were overwritten


@pytest.fixture(scope="session")
def kernel_log():
    return KernelLog()


@pytest.fixture(autouse=True)
def kernel_is_quiet(kernel_log):
    kernel_log.read()
    yield
    bad = [line for line in kernel_log.read() if BAD.search(line)]
    assert not bad, bad


def pytest_configure():
    say("begin", os.uname().release)


def pytest_runtest_setup(item):
    if "[mdwe-" in item.nodeid and not vmguest.knows_mdwe():
        vmguest.absent("no PR_SET_MDWE")


reports = collections.defaultdict(list)


def pytest_runtest_logreport(report):
    reports[report.nodeid].append(report)
    if report.when == "teardown":
        tell(report.nodeid, reports.pop(report.nodeid))


def tell(nodeid, phases):
    seconds = f"{sum(r.duration for r in phases):.2f}"
    name = nodeid.replace("tests/", "", 1)
    failed = [r for r in phases if r.failed]
    skipped = [r for r in phases if r.skipped]
    if failed:
        lines = [line for r in failed for line in str(r.longrepr).splitlines()]
        reason = next((line[2:] for line in lines if line.startswith("E ")), "")
        say("FAILED", name, seconds, reason[:200])
        for line in lines[-60:]:
            port.write(f"vm: |\t{line}\n")
    elif skipped:
        reason = skipped[0].longrepr[2].replace("Skipped: ", "", 1)
        absent = reason.startswith("n/a: ")
        say("n/a" if absent else "skipped", name, seconds, reason[5:] if absent else reason)
    else:
        say("ok", name, seconds)


def pytest_sessionfinish(exitstatus):
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # and each said so
        say("FAILED", "guest", 0, f"pytest ended with {exitstatus}: console.log")
    say("end", 0)
