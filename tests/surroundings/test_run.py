# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that a preloaded library breaks or never reaches: `hugeld run` says so and runs them without hugeld;
programs that a moved one starts run as they would."""

import os
import pathlib
import platform
import re
import shutil
import subprocess

import pytest

import helpers
from surroundings import RODATA, TEXT


# Starts the program that is its argument, in every way, and prints how it ended.
STARTER = r"""
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
unsigned long big_sum(unsigned long x);
int main(int argc, char **argv) {
    int status = 0;
    pid_t pid;
    printf("sum %lx\n", big_sum(argc));
    fflush(stdout);
    if (posix_spawn(&pid, argv[1], NULL, NULL, argv + 1, environ) == 0)
        waitpid(pid, &status, 0);
    printf("spawned: %d\n", WEXITSTATUS(status));
    fflush(stdout);
    if ((pid = fork()) == 0)
        execv(argv[1], argv + 1);
    waitpid(pid, &status, 0);
    printf("executed: %d\n", WEXITSTATUS(status));
    printf("shell: %d\n", WEXITSTATUS(system(argv[1])));
    return 0;
}
"""
# Needs no 32-bit headers.
CHILD32 = r"""
int puts(const char *);
void exit(int);
void _start(void) {
    __asm__("andl $-16, %esp");
    puts("32 bits");
    exit(5);
}
"""
@pytest.fixture
def asan_program(builder):
    source = builder.write("asan.c", '#include <stdio.h>\nint main(void) { puts("sanitized"); return 6; }\n')
    return builder.once("asan", lambda folder: builder.compile(folder / "asan", source, "-fsanitize=address"))


def test_address_sanitizer(asan_program, tmp_path):
    """The preload alone makes it abort; `hugeld run` says so and does not preload, for a script in its language either."""
    assert helpers.run_preloaded([asan_program]).returncode not in (0, 6)
    script = tmp_path / "script"
    script.write_text(f"#!{asan_program}\n")
    script.chmod(0o755)
    for program in asan_program, script:
        result = helpers.hugeld("run", "--copy", "--", program)
        assert (result.returncode, result.stdout) == (6, "sanitized\n")
        assert result.stderr == (f"hugeld: {program}: started as it is: it is built with AddressSanitizer, which aborts with any "
                                 "preloaded library\n")
    result = helpers.hugeld("run", "--copy", "-o", "strict=on", "--", asan_program)
    assert (result.returncode, result.stdout) == (127, "") and "AddressSanitizer" in result.stderr


@pytest.mark.parametrize("how", ["program", "interpreter"])
def test_program_that_cannot_be_read(asan_program, root, shared_folder, library, how):
    """An unreadable program may be one that aborts with any preloaded library, and this one is."""
    app, script = shared_folder / "unreadable", shared_folder / "script"
    shutil.copy(asan_program, app)
    app.chmod(0o711)
    script.write_text(f"#!{app}\n")
    script.chmod(0o755)
    program = {"program": app, "interpreter": script}[how]
    nobody = helpers.become(65534)
    assert helpers.run([*nobody, program]).stdout == "sanitized\n"
    result = helpers.run([*nobody, library.parent / "hugeld", "run", "--copy", "--", program])
    assert (result.returncode, result.stdout) == (6, "sanitized\n"), result
    assert result.stderr == (f"hugeld: {program}: started as it is: the file that runs cannot be read, and some programs abort with a "
                             "preloaded library; let this user read it\n")
    strict = helpers.run([*nobody, library.parent / "hugeld", "run", "--copy", "-o", "strict=on", "--", program])
    assert (strict.returncode, strict.stdout) == (127, "") and "cannot be read" in strict.stderr, strict


def test_address_sanitizer_of_clang(builder, pool):
    """Its runtime is in the executable, with a __tls_get_addr that is not the dynamic linker's."""
    if helpers.run(["sh", "-c", "command -v clang"]).returncode != 0:
        pytest.skip("clang is not installed")
    pool(64)
    source = builder.write("clang-asan.c", '__asm__(".text\\n.fill 6 << 20, 1, 0x90\\n");\n#include <stdio.h>\n'
                           'int main(void) { puts("sanitized"); return 6; }\n')
    app = builder.once("clang-asan", lambda folder: builder.compile(
        folder / "clang-asan", source, "-fsanitize=address", compiler="clang"))
    result = helpers.run_preloaded([app], "main:ld-*", "backend=hugetlb,verbose=2")
    assert (result.returncode, result.stdout) == (6, "sanitized\n")
    assert re.fullmatch(r"hugeld: clang-asan: text \d+ pages hugetlb\n", result.stderr), result.stderr


@pytest.fixture
def child32(builder):
    """A 32-bit program, which prints and exits with 5."""
    libc = pathlib.Path("/usr/lib32/libc.so.6")
    if platform.machine() != "x86_64" or not libc.exists():
        pytest.skip("needs libc6-i386")
    source = builder.write("child32.c", CHILD32)
    child = builder.once("child32", lambda folder: builder.compile(
        folder / "child32", "-m32", "-nostdlib", "-fno-pie", "-no-pie", "-fno-stack-protector", source, libc,
        "-Wl,-dynamic-linker,/lib/ld-linux.so.2"))
    if helpers.run([child]).returncode != 5:
        pytest.skip("32-bit programs do not run here")
    return child


@pytest.mark.parametrize("way", ["preload", "run"])
def test_child_of_32_bits(builder, library, pool, child32, way):
    """The 64-bit program moves and its children run.  By hand the 32-bit ld.so says that it cannot preload a 64-bit
    library; by `hugeld run`, which has one for it, no line says anything."""
    pool(64)
    source = builder.write("starter.c", STARTER)
    starter = builder.once("starter", lambda folder: builder.compile(folder / "starter", source, *builder.object(), "-no-pie"))
    plain = helpers.run([starter, child32])
    if way == "run":
        moved = helpers.run([helpers.HUGELD, "run", "--copy", "-o", "backend=hugetlb,verbose=2,exe=*/starter", "--", starter, child32])
    else:
        moved = helpers.run_preloaded([starter, child32], options="backend=hugetlb,verbose=2,exe=*/starter", library=library)
    assert (moved.returncode, moved.stdout) == (plain.returncode, plain.stdout)
    said = moved.stderr.splitlines()
    assert said[0] == f"hugeld: starter: text {TEXT} pages hugetlb, rodata {RODATA} page hugetlb"
    allowed = f"ERROR: ld.so: object '{library}' from LD_PRELOAD cannot be preloaded (wrong ELF class: ELFCLASS64): ignored."
    assert set(said[1:]) <= ({allowed} if way == "preload" else set())


LINKERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}


@pytest.mark.parametrize("words", [[], ["--inhibit-cache"]], ids=["alone", "with an option"])
def test_program_of_the_dynamic_linker(builder, pool, words):
    """A program that is started by ld.so's path, as Nix and Bazel do, is served by the preloader."""
    pool(64)
    app = builder.executable("nopie")
    result = helpers.hugeld("run", "--copy", "-o", "backend=hugetlb,verbose=2", "--", LINKERS[os.uname().machine], *words, app)
    assert (result.returncode, result.stdout) == (helpers.run([app]).returncode, helpers.run([app]).stdout), result
    assert re.search(r"hugeld: app-nopie: text \d pages? hugetlb", result.stderr), result


# The arguments of run and the inherited variables -> whether a line names the library that has the text.
ASKED = {
    "nothing said": ([], {}, True),
    "main": (["-p", "main"], {}, True),
    "the patched linker": (["-l", "ldso"], {}, False),
    "the library": (["-p", "main:libbig*"], {}, False),
    "not this program": (["-o", "exe=other"], {}, False),
    "quietly": (["-o", "verbose=0"], {}, False),
}


@pytest.mark.parametrize("asked", ASKED)
def test_text_in_a_library(builder, asked):
    """The default takes the executable alone: where that is too small and a library that it is linked with has text, run names the
    library, and only once, with any children of the program.  Which program a shell script starts is not known."""
    arguments, changes, told = ASKED[asked]
    app, _ = builder.with_library("dso")
    advice = f"started as it is: most of its text is in a library; hugeld enable {app.with_name('libbig.so.1')}, then name it, as in hugeld run -p 'libLLVM*'"
    assert f"most of its text is in a library: inspect {app.with_name('libbig.so.1')}\n" in helpers.hugeld("inspect", app).stdout
    twice, script = builder.write("twice.sh", f"#!/bin/sh\n{app}\nexec {app}\n"), builder.write("of-env", f"#!/usr/bin/env {app}\n")
    for path in twice, script:
        path.chmod(0o755)
    for program, expected in (app, told), (script, told), (twice, False):
        result = helpers.hugeld("run", "-o", "verbose=1", *arguments, "--", program, env=helpers.environment(**changes))
        assert result.returncode == helpers.run([program]).returncode
        lines = [line for line in result.stderr.splitlines() if "text is in" in line]
        assert len(lines) == expected and all(line == f"hugeld: {program}: {advice}" for line in lines), result


def test_ignored_children():
    """The program inherits the same as run, although that has asked the dynamic linker in between."""
    argv = ["grep", "SigIgn", "/proc/self/status"]
    ignore = ["env", "--ignore-signal=CHLD"]
    result = helpers.run([*ignore, helpers.HUGELD, "run", "-o", "verbose=1", "--", *argv])
    assert result.stdout == helpers.run([*ignore, *argv]).stdout


@pytest.mark.parametrize("limit, few", [("data", 16), ("as", 64)])
def test_least_limit(builder, root, library, tmp_path, limit, few):
    """Where the memory suffices for a program with any other preloaded library, and a FEW pages more, it suffices with hugeld."""
    app, empty = builder.executable("nopie"), tmp_path / "empty.so"
    subprocess.run(["gcc", "-shared", "-o", empty, "-x", "c", "/dev/null"], check=True, timeout=helpers.PATIENCE)

    def run(preloaded, n_bytes):
        return helpers.run(["prlimit", f"--{limit}={n_bytes}", "env", f"LD_PRELOAD={preloaded}", app, "one"])
    plain = helpers.run([app, "one"])
    too_little, enough = 0, 1 << 30
    while enough - too_little > helpers.PAGE:
        middle = (too_little + enough) // 2
        result = run(empty, middle)
        if (result.returncode, result.stdout) == (plain.returncode, plain.stdout):
            enough = middle
        else:
            too_little = middle
    for more in range(few, 4096, 160):
        result = run(library, enough + more * helpers.PAGE)
        assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), (enough, more, result.stderr)
