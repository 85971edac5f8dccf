# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every dynamically linked program of /usr/bin starts with our ld.so over the interpreter and every object wanted on
huge pages, and says and returns the same as without hugeld."""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import tempfile

import pytest

import helpers
from linkers import BY_ROOT, interpreter, over_interpreter

LIMIT = 5  # seconds, of which a program that waits for something takes all
OPTIONS = ("--version", "--help")
# The parts that may differ between two plain runs, and are looked at only if they do: addresses, PIDs, times, random names.
VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+([.:]\d+)*")


def is_candidate(path, installed):
    """A dynamically linked program for this machine's ld.so, without set-user-ID or set-group-ID."""
    if not path.is_file() or path.stat().st_mode & 0o6000 or not os.access(path, os.X_OK) or path.open("rb").read(5) != b"\x7fELF\x02":
        return False
    named = interpreter(path)
    return named is not None and named.resolve() == installed


def run(command, folder, limit=LIMIT, **changes):
    """(exit status, stdout, stderr), or None when it took too long."""
    env = helpers.environment(HOME=folder, TMPDIR=folder, DISPLAY=None, **changes)
    try:
        done = helpers.run(command, env, timeout=limit, cwd=folder)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode, done.stdout, done.stderr


def normalise(result):
    """RESULT without what varies, and with its lines sorted: groff's come from several processes."""
    return result and (result[0], *(sorted(VARIABLE.sub("N", text).splitlines()) for text in result[1:]))


class Outcome:
    """One program's results."""

    def __init__(self, path, prefix, folder):
        for option in OPTIONS:
            self.command = [path, option]
            self.plain = run(self.command, folder)
            if self.plain and self.plain[0] == 0:
                break
        self.moved = run([*prefix, *self.command], folder, 60 if self.plain else LIMIT, LD_HUGEPAGES="*")
        self.same = self.plain == self.moved
        if not self.same:  # a program that takes too long says nothing
            self.same = self.plain is None or normalise(self.moved) in (normalise(self.plain), normalise(run(self.command, folder, 60)))

    def __str__(self):
        return f"{' '.join(map(str, self.command))}:\n  plain {self.plain}\n  moved {self.moved}"


@pytest.fixture(scope="module")
def programs(installed):
    """One path for each file; a program that looks at its name is run by the shortest."""
    files = {}
    for path in sorted(pathlib.Path("/usr/bin").iterdir(), key=lambda p: (len(p.name), p.name)):
        if is_candidate(path, installed):
            files.setdefault((path.stat().st_dev, path.stat().st_ino), path)
    return list(files.values())


@pytest.mark.check_all
def test_every_program(programs, ldso, installed, pool, root, tmp_path):
    pool(128)
    prefix = over_interpreter(BY_ROOT, ldso, installed)
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        outcomes = list(executor.map(lambda path: Outcome(path, prefix, tempfile.mkdtemp(dir=tmp_path)), programs))
    well = sum(o.plain is not None and o.plain[0] == 0 for o in outcomes)
    print(f"{len(outcomes)} programs, {well} end with 0 plainly")
    assert len(outcomes) > 200
    different = [str(o) for o in outcomes if not o.same]
    assert not different, "\n".join(different)
    # Those with text of some MiB did move.
    gdb = [*prefix, "/usr/bin/gdb", "--version"]
    _, _, report = run(gdb, tmp_path, 60, LD_HUGEPAGES="*", LD_HUGEPAGES_OPTIONS="backend=hugetlb,verbose=2")
    assert re.search(r"^hugeld: gdb: text \d+ pages? hugetlb", report, re.M), report
