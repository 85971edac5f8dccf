# SPDX-License-Identifier: LGPL-2.1-or-later
"""perf top attaches to running processes, so it needs the map."""

import re
import subprocess

import pytest

import helpers
import profiles

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LINE = re.compile(r"\s*([\d.]+)%\s+(.*?)\s+\[[.k]\]\s+(\S+)")


def top(pid, folder):
    """(share, object, name) of the first screen of `perf top --stdio` that has such lines.  Standard input stays open:
    perf reads keys from it, and at its end spins."""
    process = helpers.start(["stdbuf", "-oL", "perf", "top", "--stdio", "-e", profiles.EVENT, "-F", "999", "-d", "1",
                             "-p", pid], dict(helpers.environment(), HOME=str(folder)), stdin=subprocess.PIPE)
    found = []
    try:
        for line in process.stdout:
            line = ESCAPE.sub("", line)
            if "PerfTop:" in line and found:
                break
            if match := LINE.match(line):
                found.append((float(match[1]), match[2], match[3]))
        process.stdin.write("q")
        process.stdin.flush()
        process.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(process)
    return found


@pytest.mark.check_all
def test_top(deep, start_stopped, folder, pool):
    pool(16)
    with start_stopped(deep(20000), "backend=hugetlb") as process:
        profiles.write_map(process.pid)
        process.resume()
        lines = top(process.pid, folder)
        share, dso, name = lines[0]
        assert (dso, name) == (f"[JIT] tid {process.pid}", "deep_leaf") and share > 90, lines

        process.map.unlink()
        lines = top(process.pid, folder)
        assert lines and all(name != "deep_leaf" for _, _, name in lines), lines
