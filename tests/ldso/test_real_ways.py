# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stock programs in each way to use our ld.so: the same output, text on huge pages, and where /proc/self/exe being ld.so
breaks one, that it does.  glibc-patches/README.md has the table."""

import os
import shutil
import subprocess
import typing

import pytest

import helpers
from installed import find_node
from linkers import BY_ROOT, over_interpreter
from smaps import read_smaps

CC = """
#include <cstddef>
#include <algorithm>
#include <map>
#include <string>
int main(int argc, char **argv) {
    std::map<std::string, size_t> map;
    for (int i = 0; i < argc; i++)
        map[argv[i]] += std::count(argv[i], argv[i] + 1, 'x');
    return static_cast<int>(map.size());
}
"""
# Each prints its own path as it sees it, and starts itself.
PYTHON = """
import hashlib, json, subprocess, sys
print(sys.executable, sys.prefix, hashlib.sha256(json.dumps(list(range(9999))).encode()).hexdigest(), flush=True)
subprocess.run([sys.executable, '-c', 'print(6 * 7)'])
"""
PERL = 'print join(",", $^X, map { $_ ** 2 } 1..99), "\\n"; exec $^X, "-e", "print 6 * 7"'
NODE = """
console.log(process.execPath, require('crypto').createHash('sha256').update('x'.repeat(99999)).digest('hex'));
console.log(require('child_process').spawnSync(process.execPath, ['-p', '6*7']).stdout.toString());
"""


class Program(typing.NamedTuple):
    argv: list
    text_pages: int  # on huge pages at the worst load address that the kernel may choose
    patterns: str = "main"


PROGRAMS = {
    # It starts itself, as it does for more than one file.
    "clang": Program(["clang", "-fno-integrated-cc1", "-x", "c++", "-S", "-O1", "SOURCE", "-o", "-"], 30, "main:libLLVM*:libclang-cpp*"),
    "python3": Program(["/usr/bin/python3", "-c", PYTHON], 1),
    "perl": Program(["/usr/bin/perl", "-e", PERL], 0),
    "node": Program([find_node(), "-e", NODE], 12),
}


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request, shared_folder):
    program = PROGRAMS[request.param]
    path = program.argv[0] and shutil.which(program.argv[0])
    if not path:
        pytest.skip(f"{request.param} is not installed")
    source = shared_folder / "ways.cc"
    source.write_text(CC)
    arguments = [source if word == "SOURCE" else word for word in program.argv[1:]]
    return program._replace(argv=[os.path.realpath(path), *arguments])


# --- the ways: the command that runs PROGRAM with LDSO ---


def by_run(program, ldso, installed, folder):
    return [helpers.HUGELD, "run", "--ld-so", ldso, "-p", program.patterns, "-o", "backend=hugetlb,verbose=2", "--", *program.argv]


def by_command(program, ldso, installed, folder):
    return [ldso, *program.argv]


def by_unit(program, ldso, installed, folder):
    """The mounts of systemd's BindReadOnlyPaths=LDSO:INTERPRETER."""
    read_only = ["sh", "-c", 'mount -o remount,bind,ro "$0" && exec "$@"', installed]
    return [*over_interpreter(BY_ROOT, ldso, installed), *read_only, *program.argv]


def by_patchelf(program, ldso, installed, folder):
    """A copy with another PT_INTERP, in the place of the original."""
    copy = folder / "patched"
    shutil.copy(program.argv[0], copy)
    subprocess.run(["patchelf", "--set-interpreter", ldso, copy], check=True, timeout=60)
    return [*over_interpreter(BY_ROOT, copy, program.argv[0]), *program.argv]


WAYS = [by_run, by_command, by_patchelf, by_unit]
# Programs that ask /proc/self/exe where they are, to start themselves.
NEED_EXE = ("clang", "perl", "node")


@pytest.mark.parametrize("way", WAYS)
def test_way(way, program, readable_ldso, installed, pause_library, empty_library, pool, root, tmp_path):
    pool(128)
    tmp_path.chmod(0o755)
    name = os.path.basename(program.argv[0])
    with helpers.paused(program.argv, helpers.preload(empty_library, pause_library), name) as process:
        plain = process.finish()
    assert plain[0] == 0, plain
    env = helpers.preload(pause_library, patterns=program.patterns, options="backend=hugetlb,verbose=2")
    command = way(program, readable_ldso, installed, tmp_path)
    with helpers.paused(command, env, readable_ldso.name if way is by_command else name) as process:
        mappings = read_smaps(process.pid)
        linker, = {m.inode for m in mappings if m.name in (str(readable_ldso), str(installed))}
        assert linker == readable_ldso.stat().st_ino
        text = sum(m.hugetlb_bytes for m in mappings if m.is_hugetlb and m.permissions == "r-xp") // helpers.HUGE
        assert text >= program.text_pages
        result = process.finish()
    exe_is_missed = way is by_command and name in NEED_EXE
    assert (result[:2] == plain[:2]) != exe_is_missed, f"plain: {plain}\nso: {result}"
