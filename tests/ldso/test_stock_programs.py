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
from linkers import BY_ROOT, over_interpreter
from objects import PT_INTERP, read_headers

LIMIT = 5  # seconds, of which a program that waits for something takes all
OPTIONS = ("--version", "--help")
# The parts that may differ between two plain runs, and are looked at only if they do: addresses, PIDs, times, random names.
VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+([.:]\d+)*")


def is_candidate(path, installed):
    """A dynamically linked program for this machine's ld.so, without set-user-ID or set-group-ID."""
    try:
        if not path.is_file() or path.stat().st_mode & 0o6000 or not os.access(path, os.X_OK):
            return False
        with open(path, "rb") as file:
            if file.read(5) != b"\x7fELF\x02":
                return False
            header = next((h for h in read_headers(path) if h.type == PT_INTERP), None)
            if header is None:
                return False
            file.seek(header.offset)
            name = file.read(header.file_bytes).rstrip(b"\0").decode()
    except OSError:
        return False
    return os.path.realpath(name) == str(installed)


def run(command, folder, limit=LIMIT, **changes):
    """(exit status, stdout, stderr), or None when it took too long."""
    env = helpers.environment(HOME=folder, TMPDIR=folder, DISPLAY=None, **changes)
    try:
        done = helpers.run(command, env, timeout=limit, cwd=folder)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode, done.stdout, done.stderr


def sort_lines(result):
    return result and (result[0], *(sorted(text.splitlines()) for text in result[1:]))


def normalise(result):
    return sort_lines(result and (result[0], *(VARIABLE.sub("N", text) for text in result[1:])))


def several_write(command, folder):
    """Whether more than one process prints something, as when groff asks those that it starts: whose lines come first is
    up to the scheduler."""
    trace = pathlib.Path(folder) / "trace"
    run(["strace", "-f", "-qq", "-e", "trace=write,writev", "-e", "signal=none", "-o", trace, *command], folder, 60)
    return trace.exists() and len(set(re.findall(r"^(\d+) +writev?\([12],", trace.read_text(errors="replace"), re.M))) > 1


class Outcome:
    """One program's results."""

    def __init__(self, path, prefix, folder):
        self.path = path
        for option in OPTIONS:
            self.command = [path, option]
            self.plain = run(self.command, folder)
            if self.plain and self.plain[0] == 0:
                break
        self.moved = run([*prefix, *self.command], folder, 60 if self.plain else LIMIT, LD_HUGEPAGES="*")
        self.same = self.plain == self.moved
        if not self.same:
            again = run(self.command, folder, 60 if self.plain else LIMIT)
            if again != self.plain:  # a program that takes too long says nothing
                self.same = self.plain is None or normalise(self.moved) in (normalise(self.plain), normalise(again))
            elif several_write(self.command, folder):
                self.same = sort_lines(self.plain) == sort_lines(self.moved)

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


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("say, same", [("sh -c 'echo $0'", True), ("echo", False)], ids=["several", "one"])
def test_order_counts_where_one_writes(tmp_path, say, same):
    """A program whose first words depend on the variable alone."""
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nif [ "$LD_HUGEPAGES" ]; then set -- b a; else set -- a b; fi\n'
                       f'for word; do {say} $word; done\n')
    program.chmod(0o755)
    outcome = Outcome(program, [], tmp_path)
    assert outcome.plain == (0, "a\nb\n", "") and outcome.moved == (0, "b\na\n", "")
    assert outcome.same == same


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
    _, _, report = run(gdb, tmp_path, 60, LD_HUGEPAGES="*", LD_HUGEPAGES_OPTIONS="verbose=2")
    assert re.search(r"^hugeld: gdb: text \d+ pages? hugetlb", report, re.M), report
