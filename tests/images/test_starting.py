# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld run: what it leaves alone, and when it preloads."""

import os
import shutil
import subprocess

import pytest

import helpers
from worlds import APP, SYSTEM


# Prints where a program finds itself, in every way that there is.
WHERE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>
unsigned long big_sum(unsigned long x);
int main(int argc, char **argv) {
    char self[4096] = "";
    Dl_info info = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 2;
    dladdr((void *)main, &info);
    printf("exe %s\nargv[0] %s\nAT_EXECFN %s\nrealpath %s\n", self, argv[0], (char *)getauxval(AT_EXECFN),
           realpath("/proc/self/exe", NULL));
    printf("dladdr %s\nargc %d\nsum %lx\nAT_SECURE %lu\n", info.dli_fname != NULL ? info.dli_fname : "-", argc,
           big_sum(argc), getauxval(AT_SECURE));
    fflush(stdout);
    if (argc > 1 && argv[1][0] == 'c' && fork() == 0)
        return execl(self, "child", (char *)NULL);
    if (argc > 1 && argv[1][0] == 's')
        pause();
    return 3;
}
"""
LINKED = {"pie": ["-fPIE", "-pie"], "nopie": ["-no-pie"], "static": ["-static"], "static-pie": ["-fPIE", "-static-pie"]}
# Mounts are shared, as systemd makes them.
SHARED = ["unshare", "-m", "--propagation", "shared"]


@pytest.fixture
def program(builder, tmp_path):
    """program(variant): a copy of a large program that says where it finds itself, for this test alone."""

    def make(variant):
        def link(folder):
            source = builder.write("where.c", WHERE)
            return builder.compile(folder / f"where-{variant}", source, "-w", *builder.object(), *LINKED[variant])

        there = tmp_path / f"where-{variant}"
        shutil.copy(builder.once(f"where-{variant}", link), there)
        return there

    return make


# Started with a folder as descriptor 3: mounts, and renames between that descriptor and a path.
NOTICES = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>
__asm__(".text\n.p2align 12\nfiller: .rept 6291456\nnop\n.endr\n.p2align 12");
int main(int argc, char **argv) {
    char path[4096], name[256] = "";
    printf("%s\n", mount("none", argv[1], "tmpfs", 0, "") == 0 ? "mounted" : strerror(errno));
    snprintf(path, sizeof path, "%s/file", argv[2]);
    close(open(path, O_CREAT | O_RDWR, 0600));
    printf("%s\n", renameat(AT_FDCWD, path, 3, "other") == 0 ? "renamed" : strerror(errno));
    printf("%zd\n", readlink("/proc/self/ns/mnt", name, sizeof name - 1));
    printf("%s %s\n", name, argc == 3 ? "as started" : "otherwise");
    return 0;
}
"""


@pytest.mark.check_all
@pytest.mark.parametrize("how", [(), ("-o", "backend=auto"), ("-l", "preload")], ids=["run", "auto", "preload"])
def test_namespace_is_left_alone(images, builder, tmp_path, how):
    """The program's mounts are seen by others, and a descriptor that it inherited is in the same mount as a path."""
    source = tmp_path / "notices.c"
    source.write_text(NOTICES)
    app = builder.compile(tmp_path / "notices", source, "-pie", "-fPIE")
    images.add(app)
    (tmp_path / "mount").mkdir()
    run = [helpers.HUGELD, "run", *how, "-o", f"store={images.folder}", "--", app, tmp_path / "mount", tmp_path]
    script = 'readlink /proc/self/ns/mnt; "$@" 3< "$0"; grep -c "$0/mount" /proc/self/mountinfo'
    result = helpers.run([*SHARED, "sh", "-c", script, tmp_path, *run])
    before, mounted, renamed, _, inside, seen = result.stdout.splitlines()
    assert mounted == "mounted" and inside.endswith(" as started"), result
    assert (seen, renamed, inside.split()[0]) == ("1", "renamed", before)


@pytest.mark.parametrize("words", [[], ["--copy"]], ids=" ".join)
def test_lines_that_are_not_read(own_store, program, words):
    """Standard error is a pipe that nothing reads any more; the program itself writes nothing there."""
    app, ends = program("nopie"), os.pipe()
    os.close(ends[0])
    try:
        result = subprocess.run([helpers.HUGELD, "run", *words, "-o", f"store={own_store},verbose=2", "--", app], stdout=subprocess.PIPE,
                                stderr=ends[1], env=helpers.environment(), text=True, timeout=60)
    finally:
        os.close(ends[1])
    assert (result.returncode, result.stdout) == (3, helpers.run([app]).stdout)


@pytest.mark.check_all
def test_no_room_for_variables(program):
    """The kernel takes no more variables than the program has: it runs without hugeld's."""
    app, tried = program("nopie"), 0
    limit = 512 << 10  # a limit of the stack, a quarter of which is for words and variables

    def run(size, *words):
        variables = {**helpers.environment(), **{f"A{i}": "x" * 1000 for i in range(size // 1024)}, "B": "x" * (size % 1024)}
        try:
            return subprocess.run(["prlimit", f"--stack={limit}", *words, app], env=variables, capture_output=True, text=True, timeout=60)
        except OSError:
            return None

    for size in range((limit >> 2) - 6000, limit >> 2, 40):
        hugeld = run(size, helpers.HUGELD, "run", "--copy", "--")
        if hugeld is None or "Argument list too long" in hugeld.stderr:
            continue  # hugeld itself could not be executed
        plain = run(size)
        tried += 1
        assert (hugeld.returncode, hugeld.stdout) == (plain.returncode, plain.stdout) == (3, plain.stdout), (size, hugeld)
    assert tried > 0


# --- preloading ---


@pytest.fixture
def store(world):
    """The system's store of that namespace."""
    made = world.run("sh", "-c", f"mkdir -m 755 {SYSTEM} && mount -t tmpfs -o mode=755,huge=always,size=256m none {SYSTEM} && "
                     f"touch -d '1 hour ago' {SYSTEM}/.lock && chmod 600 {SYSTEM}/.lock")
    assert made.returncode == 0, made
    return world.path(SYSTEM)


def run(world, *words, prefix=(), **options):
    return world.run(*prefix, "/run/bin/hugeld", "run", *words, **options)


@pytest.fixture
def library(world, builder):
    """A library at a path that only root can change, whose file name is not its soname, libbig.so.1."""
    _, [dso] = builder.with_library("dso-aligned")
    shutil.copy(dso, world.path("/run/programs/large.so"))
    shutil.copy(helpers.LIBRARY, world.path("/run/bin"))
    return "/run/programs/large.so"


def test_preloads_only_for_what_is_shared(world, store, library):
    """Nothing of hugeld is in a program for which the store has none of the named objects, even if it has others."""
    plain = ["env", "-u", "LD_HUGEPAGES_OPTIONS"]

    def preloads(patterns, verbose=0):
        result = run(world, "-p", patterns, "-o", f"verbose={verbose}", "--", "sh", "-c", "cat /proc/self/maps; env", prefix=plain)
        assert result.returncode == 0 and ("libhugeld.so" in result.stdout) == ("LD_HUGEPAGES=" in result.stdout), result
        return "libhugeld.so" in result.stdout

    world.enable("--way=image", APP)
    assert not any(preloads(patterns, verbose) for patterns in ("main:libbig*", "main:*") for verbose in (0, 1))
    started = run(world, "-p", "main:libbig*", "-o", "verbose=1", "--", APP, prefix=plain)
    assert "there is no image of a library that is named" in started.stderr, started
    world.enable("--way=image", library)
    assert all(preloads(patterns, verbose)
               for patterns in ("main:libbig*", "main:large.so", library, "main:*") for verbose in (0, 1))
    assert not any(preloads(patterns) for patterns in ("main:libother*", "main:!libbig*:*", "/run/other/libother*"))
    # By links, or another mount, the program has it at another path.
    assert preloads("main:/run/elsewhere/libbig.so.1") and preloads("main:/run/elsewhere/*")
    moved = world.path(library).parent.rename(world.path("/run/renamed"))
    assert preloads("main:libbig*")
    moved.rename(world.path(library).parent)
    world.path(library).chmod(0o700)  # the image is that of another file now
    assert not preloads("main:libbig*")


def test_strict_for_a_library(world, store, library):
    """The program could begin on its image, and does not run, since the other named object is not there."""
    world.enable("--way=image", APP)
    plain = ["env", "-u", "LD_HUGEPAGES_OPTIONS"]
    refused = run(world, "-p", "main:libnone.so.1", "-o", "strict=on", "--", APP, prefix=plain)
    assert (refused.returncode, refused.stdout) == (127, "") and "libnone.so.1: no object" in refused.stderr, refused
    assert run(world, "-p", "main:libnone.so.1", "--", APP, prefix=plain).returncode == world.run(APP).returncode
