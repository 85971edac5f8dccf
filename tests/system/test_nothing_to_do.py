# SPDX-License-Identifier: LGPL-2.1-or-later
"""A small executable, and no variable that asks for more or for a line: the preloader makes no system call.  With one it prints the
answer all the same."""

import collections
import shutil
import subprocess

import pytest

import helpers

pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    library = tmp_path_factory.mktemp("empty") / "empty.so"
    subprocess.run(["gcc", "-shared", "-o", library, "-x", "c", "/dev/null"], check=True, timeout=helpers.PATIENCE)
    return library


# The dynamic linker's work for a library depends on its segments.
OF_THE_LINKER = ("mmap", "mprotect", "munmap", "brk", "execve")


def trace(program, library, tmp_path, **variables):
    log = tmp_path / "strace"
    words = [f"-E{name}={value}" for name, value in {"LD_PRELOAD": library, **variables}.items()]
    result = helpers.run(["strace", "-y", "-o", log, *words, program])
    assert result.returncode < 126, result.stderr
    return [line for line in log.read_text().splitlines() if "(" in line]


def calls_of(program, library, tmp_path, **variables):
    names = [line.split("(")[0] for line in trace(program, library, tmp_path, **variables)]
    return collections.Counter(name for name in names if name not in OF_THE_LINKER)


@pytest.mark.parametrize("variables", [{}, {"LD_HUGEPAGES": "main"}, {"LD_HUGEPAGES": ""}, {"LD_HUGEPAGES_OPTIONS": "backend=thp,data=off"}],
                         ids=str)
def test_no_call(builder, empty, tmp_path, variables):
    program = builder.tiny()
    assert calls_of(program, helpers.LIBRARY, tmp_path, **variables) == calls_of(program, empty, tmp_path, **variables)


# --- what a start costs, over an empty library ---


@pytest.mark.parametrize("objects", ["*", "none", "main"])
def test_nothing_moves(builder, empty, tmp_path, objects):
    """At most eight calls, one of which is the dynamic linker's, for zero-initialised data."""
    program = builder.tiny()
    ours, plain = (trace(program, library, tmp_path, LD_HUGEPAGES=objects) for library in (helpers.LIBRARY, empty))
    assert len(ours) - len(plain) <= (1 if objects == "main" else 8), "\n".join(ours)


def test_copy_without_a_pool(builder, empty, tmp_path, pool, thp):
    """At most 32 calls beside those for the limits of groups.  Without a tracer one more mapping says that the pool is empty."""
    pool(0)
    program = builder.executable("pie")
    more = {"LD_HUGEPAGES": "main", "LD_HUGEPAGES_OPTIONS": "segments=text,data=off"}
    ours, plain = (trace(program, library, tmp_path, **more) for library in (helpers.LIBRARY, empty))
    moves = [line for line in ours if line.startswith("mremap(") and "MREMAP_FIXED" in line]
    limits = [line for line in ours if "/sys/fs/cgroup/" in line]  # for each group above this process's
    assert len(moves) == 1 and len(ours) - len(plain) - len(limits) <= 32, "\n".join(ours)
