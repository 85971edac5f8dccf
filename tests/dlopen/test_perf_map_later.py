# SPDX-License-Identifier: LGPL-2.1-or-later
"""perf_map=on: the functions of objects that come by dlopen are added to the map."""

import os
import pathlib
import re
import signal

import helpers
from objects import find_bias, object_at
from smaps import read_smaps

# Opens DSO in the parent or in a child, and stops itself.
SCRIPT = """
import ctypes, os, signal, sys
in_child, *paths = sys.argv[1:]
pid = os.fork() if in_child == "child" else 0
if in_child == "child" and pid == 0:
    open(f"/tmp/perf-{os.getpid()}.map", "w").write("1000 10 jitted\\n")
if pid == 0:
    handles = [ctypes.CDLL(path) for path in paths]
if pid:
    os.waitpid(pid, 0)
    print(pid)
else:
    sys.stderr.flush()
    if in_child != "child":
        os.kill(os.getpid(), signal.SIGSTOP)
"""
LINE = re.compile(r"([0-9a-f]+) ([0-9a-f]+) (\S.*)\n")


def read_map(path):
    lines = path.read_text().splitlines(True)
    assert all(LINE.fullmatch(line) for line in lines)
    return [(int(m[1], 16), int(m[1], 16) + int(m[2], 16), m[3]) for m in map(LINE.fullmatch, lines)]


def test_added(builder, later, pool):
    """Each function of the moved text of two objects has its name at the object's address."""
    pool(64)
    _, libraries = builder.with_library("dso", 2)
    process = later(["/usr/bin/python3", "-c", SCRIPT, "here", *libraries], "main:libbig*", "backend=hugetlb,perf_map=on,verbose=2")
    path = pathlib.Path(f"/tmp/perf-{process.pid}.map")
    try:
        helpers.wait_until(lambda: helpers.state_of(process.pid) in ("T", "Z"), what="python3 stopping")
        mappings = read_smaps(process.pid)
        found = read_map(path)
        for library in libraries:
            here = [m for m in mappings if m.name == str(library)]
            object_ = object_at(library, find_bias(library, here))
            huge = [m for m in mappings if m.is_hugetlb and "x" in m.permissions and object_.start <= m.start < object_.end]
            assert huge
            symbols = helpers.run(["nm", "-S", library]).stdout
            start, size = next(map(lambda n: int(n, 16), line.split()[:2]) for line in symbols.splitlines()
                               if line.endswith(" text_c"))
            start += object_.bias
            inside = [(max(start, m.start), min(start + size, m.end)) for m in huge]
            assert [f[:2] for f in found if f[2] == "text_c" and object_.start <= f[0] < object_.end] == \
                [i for i in inside if i[0] < i[1]]
        assert any("PyEval" in name for *_, name in found)
        os.kill(process.pid, signal.SIGCONT)
        _, stderr = process.communicate(timeout=helpers.PATIENCE)
        assert process.returncode == 0
        assert len(re.findall(rf"hugeld: /tmp/perf-{process.pid}.map: \d+ functions", stderr)) == 3
    finally:
        helpers.end_process(process)
        path.unlink(missing_ok=True)


def test_not_in_a_child(builder, later, pool):
    """A forked child's map may be its JIT's, and would lack its parent's moved functions."""
    pool(64)
    _, [library] = builder.with_library("dso")
    process = later(["/usr/bin/python3", "-c", SCRIPT, "child", library], "libbig*", "perf_map=on,verbose=2")
    stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    path = pathlib.Path(f"/tmp/perf-{stdout.strip()}.map")
    assert process.returncode == 0 and re.search(r"text \d+ pages", stderr)
    assert path.read_text() == "1000 10 jitted\n"
    path.unlink()
