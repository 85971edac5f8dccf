# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many starts of each real program, at addresses that are random, while another process drains and refills the pool at
random: its output and exit status are always the plain run's, and nothing is left (tests/conftest.py).

T_STARTS says how many of each in each way, if not 20."""

import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import helpers
from installed import find_cc1plus, find_node

sys.path.append(str(helpers.ROOT / "tests/ldso"))
from linkers import BY_ROOT, build_linker, interpreter, over_interpreter  # noqa: E402

STARTS = int(os.environ.get("T_STARTS", "20"))
POOL = 48

SOURCE = "int f(int a, int b) { int x = 0; for (int i = a; i < b; i++) x = x * 31 + i; return x; }\n"

# Of cc1plus and node everything fits, of clang two libraries, of the others the part that their load address allows.
PROGRAMS = {
    "cc1plus": lambda file: [find_cc1plus(), "-quiet", "-O1", file, "-o", "-"],
    "clang": lambda file: ["/usr/bin/clang", "-x", "c", "-O1", "-S", file, "-o", "-"],
    "mariadbd": lambda file: ["/usr/sbin/mariadbd", "--no-defaults", "--datadir=/nonexistent", "--verbose",
                              "--help"],  # in a datadir it makes a file, and two at once see each other's
    "node": lambda file: [find_node(), "-p", "require('zlib').deflateSync(Buffer.alloc(50000, 7)).length"],
    "perl": lambda file: ["/usr/bin/perl", "-e", "print join(',', map { $_ ** 2 } 1..300), qq(\\n); exit 6"],
    "postgres": lambda file: [*find_postgres(), "--describe-config"],
    "python3": lambda file: ["/usr/bin/python3", "-I", "-c", "import json, re; print(json.dumps(re.findall('a+', 'aba')))"],
    "bash": lambda file: ["/bin/bash", "-c", "for i in {1..300}; do ((x += i)); done; echo $x; exit 5"],
}

PATTERNS = "main:libLLVM*:libclang-cpp*:libc.so*:libcrypto*:libperl*"

# way -> (through ld.so, backend)
WAYS = {"hugetlb": (False, "hugetlb"), "thp": (False, "thp"), "auto": (False, "auto"), "ldso-hugetlb": (True, "hugetlb"),
        "ldso-thp": (True, "thp")}


def find_postgres():
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    return [*user, found[-1]] if found else [None]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("starts") / "f.c"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def ldso():
    return build_linker()


@pytest.fixture
def draining(builder, pool):
    """Another process takes any number of pages for any time and gives them back, again and again."""
    source = helpers.ROOT / "tests/pool/thief.c"
    thief = builder.once("thief", lambda folder: builder.compile(folder / "thief", "-D_GNU_SOURCE", source))
    pool(POOL)
    process = helpers.start([thief, POOL, "random"], stdin=subprocess.PIPE)
    yield
    helpers.end_process(process)


def result_of(command, env):
    """(exit status, output, errors but for warnings with a date), and the lines of hugeld's."""
    done = helpers.run(command, env, timeout=120)
    said = re.findall(r"^hugeld: .*\n", done.stderr, re.M)
    errors = re.sub(r"^(?:hugeld: |\d{4}-\d\d-\d\d ).*\n", "", done.stderr, flags=re.M)
    return (done.returncode, done.stdout, errors), "".join(said)


@pytest.mark.check_all
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_starts(request, source, shared_folder, library, thp, draining, program, way):
    argv = PROGRAMS[program](source)
    if not all(argv) or not shutil.which(argv[0]):
        pytest.skip(f"{program} is not installed")
    by_linker, backend = WAYS[way]
    env = helpers.preload(*([] if by_linker else [library]), patterns=PATTERNS, options=f"backend={backend},verbose=2")
    command = argv
    if by_linker:
        command = [*over_interpreter(BY_ROOT, request.getfixturevalue("ldso"), interpreter().resolve()), *argv]
    expected, _ = result_of(argv, helpers.environment())
    seen = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for result, said in threads.map(lambda _: result_of(command, env), range(STARTS)):
            assert result == expected, said
            assert "rolled back, but" not in said
            seen["hugetlb"] += "pages hugetlb" in said
            seen["short"] += "the huge page pool cannot serve it" in said
    print(f"{program} {way}: {STARTS} starts, {seen['hugetlb']} with something on hugetlb pages, {seen['short']} too short")
    if program in ("cc1plus", "node") and "hugetlb" in way:
        assert seen["hugetlb"] and seen["short"], "the pool was not drained, or not refilled"
