# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shared by the tests of perf maps: the program that prints a file's map, programs with functions of every kind, and a
/tmp of their own."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import helpers
import perfmaps

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def map_file(tmp_path_factory):
    """map_file(path, bias, [(start, end)]): the map that perf-maps/ makes of a file, as text between its marks; None for no ELF file, or
    one with too much text.  The file bounds how much is written, and with MEMORY, in bytes, how much is allocated."""
    program = tmp_path_factory.mktemp("map-file") / "map-file"
    objects = [*helpers.BUILD.glob("elf/*.o"), *helpers.BUILD.glob("perf-maps/*.o")]
    includes = ["-iquote", helpers.ROOT, "-iquote", helpers.ROOT / "elf"]
    command = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", *includes, "-o", program, HERE / "map-file.c", *objects]
    subprocess.run(command, check=True, timeout=helpers.PATIENCE)

    def make(path, bias=0, ranges=((0, 2**64 - 1),), memory=None):
        numbers = [f"{number:x}" for piece in ranges for number in piece]
        limit = ["prlimit", f"--as={memory}", "--"] if memory else []
        result = subprocess.run([*limit, program, path, f"{bias:x}", *numbers], capture_output=True, timeout=helpers.PATIENCE)
        assert result.returncode in (0, 3), result.stderr
        assert len(result.stdout) < 4 * os.stat(path).st_size + 2 * 2**20
        text = result.stdout.decode(errors="surrogateescape")
        assert result.returncode != 0 or (text.startswith(perfmaps.MARK) and text.endswith(perfmaps.MARK))
        return text[len(perfmaps.MARK):-len(perfmaps.MARK)] if result.returncode == 0 else None

    return make


NAMED = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
namespace space {
struct shape { virtual ~shape() {} virtual int area(int x) const = 0; };
template <typename T> struct square : shape {
    int area(int x) const override { return puts(""), x * x * (int)sizeof(T); }
};
template struct square<int>;
template struct square<char>;
int twice(const shape &one, int x) { return one.area(x) + one.area(x + 1); }
}
extern "C" int f(int x) { return x + 1; }
extern "C" __attribute__((alias("f"))) int f_alias(int);
extern "C" __attribute__((alias("f"))) int _f_alias_that_is_longer(int);
extern "C" __attribute__((weak, alias("f"))) int f_weak_alias(int);
static int chosen_one(int x) { return x; }
extern "C" int (*choose_one(void))(int) { return chosen_one; }
extern "C" int chosen(int) __attribute__((ifunc("choose_one"), visibility("hidden")));
__attribute__((noinline)) static int local_function(int x) { return x ^ 5; }
asm(".globl hand_written\nhand_written: ret\n.skip 31, 0x90\n");
asm(".globl no_size\n.type no_size, @function\nno_size: ret\n.skip 63, 0x90\n"
    ".globl next\n.type next, @function\nnext: ret\n.size next, 1\n");
int main(int argc, char **argv) {
    space::square<int> square;
    int x = local_function(chosen(f(argc))) + twice(square, argc) + (int)strlen(argv[0]);
    if (argc > 1) sleep(60);
    return x == 12345;
}
"""


FILLERS = r"""
asm(".macro filler n\n.type filler_\\n, @function\nfiller_\\n: .skip 4096, 0xcc\n.size filler_\\n, 4096\n.endm\n"
    ".altmacro\n.set i, 0\n.rept COUNT\nfiller %i\n.set i, i+1\n.endr\n.noaltmacro\n");
"""


@pytest.fixture(scope="session")
def named(builder):
    """named(name, *flags, filler=N): a C++ program with functions of every kind, and N fillers of 4 KiB; 2080: the last huge
    page, which has the other functions, holds enough text to be moved."""
    def build(name, *flags, filler=0):
        def make(folder):
            source = folder / f"{name}.cc"
            source.write_text(NAMED + (FILLERS.replace("COUNT", str(filler)) if filler else ""))
            return builder.compile(folder / name, "-x", "c++", source, "-x", "none", "-lstdc++", *flags)

        return builder.once(f"named-{name}", make)

    return build


@pytest.fixture
def moved_app(named, pool, library, pause_library):
    """moved_app(options): (process, path) of a program that stands still after its text moved, with perf_map=on if that
    is among the options."""
    pool(64)
    started = []

    def start(options="", app=None, **changes):
        app = app or named("large", "-pie", filler=2080)
        env = helpers.preload(library, pause_library, options=options or None, **changes)
        context = helpers.paused([app], env, app.name)
        started.append(context)
        return context.__enter__(), app

    yield start
    for context in started:
        context.__exit__(None, None, None)


@pytest.fixture
def clean_tmp():
    """Maps that a test leaves in /tmp go away with it."""
    before = set(os.listdir("/tmp"))
    yield
    for name in set(os.listdir("/tmp")) - before:
        if re.fullmatch(r"\.?perf-\d+\.map(\.[0-9a-f]+)?", name):
            path = pathlib.Path("/tmp", name)
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.fixture
def own_tmp(root, library, pause_library):
    """own_tmp(script, app, options, user): the command and environment of APP, run as USER in a mount namespace with a new
    /tmp, in which the shell SCRIPT has run before as root; $$ is the process ID.  Everything lies outside /tmp."""
    if helpers.run(["unshare", "-m", "true"]).returncode != 0:
        pytest.skip("unshare -m is not allowed")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hugeld-", dir="/var/tmp"))
    folder.chmod(0o755)

    def copy(path):
        to = folder / pathlib.Path(path).name
        if not to.exists():
            shutil.copy(path, to)
            to.chmod(0o755)
        return to

    def command(script, app, options="perf_map=on,verbose=2", user=perfmaps.NOBODY, mode="1777", wrapper=(),
                run='exec "$@"'):
        env = helpers.environment()
        inside = ["env", f"LD_PRELOAD={copy(library)}:{copy(pause_library)}",
                  f"LD_HUGEPAGES_OPTIONS=backend=hugetlb,{options},exe={app.name}", str(copy(app))]
        shell = f'mount -t tmpfs -o mode={mode} none /tmp && cd / && {{ {script}; }} && {run}'
        drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return ["unshare", "-m", *wrapper, "/bin/sh", "-c", shell, "sh", *drop, *inside], env

    yield command
    shutil.rmtree(folder)
