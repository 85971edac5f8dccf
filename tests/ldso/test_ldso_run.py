# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld run --via=ldso`: the exec stop maps ours in the place of the system's, for root and for nobody, for programs and scripts;
a helper that fails; and the refusals where that is not possible."""

import os
import pathlib
import re
import shutil
import struct
import subprocess

import pytest

import helpers
from linkers import NOBODY, change_build_id, interpreter
from smaps import read_smaps

HERE = pathlib.Path(__file__).resolve().parent
AT_BASE = 7
# It stops in a constructor that dlopen runs.
OPENS = """
#include <dlfcn.h>
#include <signal.h>
#ifdef LIBRARY
__attribute__((constructor)) static void stop(void) { raise(SIGSTOP); }
#else
int main(int argc, char **argv) { return argc == 0 || dlopen(argv[1], RTLD_NOW) == 0; }
#endif
"""


@pytest.fixture
def folder(shared_folder, ldso, request):
    """The command, libhugeld.so and ldso/ld.so where every user can run them."""
    folder = shared_folder / request.node.name.replace("/", "-")
    (folder / "ldso").mkdir(parents=True)
    for file, copy in ((helpers.HUGELD, "hugeld"), (helpers.COMMAND, "hugeld-command"), (helpers.LIBRARY, "libhugeld.so"), (ldso, "ldso/ld.so")):
        shutil.copy(file, folder / copy)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def tells(builder, shared_folder):
    """The program that says how it was started, where every user may run it."""
    return builder.once("tells-for-run", lambda _: builder.compile(shared_folder / "tells-for-run", HERE / "tells.c", "-pthread"))


def run(folder, *arguments, prefix=(), **changes):
    return helpers.run([*prefix, folder / "hugeld", "run", *arguments], helpers.environment(**changes))


def without_linkers(result):
    return [line for line in result.stdout.splitlines() if not line.startswith("linker ")]


def linkers(result):
    return set(re.findall("^linker (.*)$", result.stdout, re.M))


@pytest.mark.parametrize("user", [[], NOBODY], ids=["root", "nobody"])
def test_in_the_others_place(folder, tells, builder, pool, user, root):
    """Nothing tells the program but /proc/self/maps, in which the other linker is not any more; there is no namespace; of a script the
    interpreter is the program; the executable is moved."""
    pool(64)
    plain = helpers.run([*user, tells, "one"], helpers.environment(HL_TELLS="kept"))
    done = run(folder, "-l", "ldso", "--", tells, "one", prefix=user, HL_TELLS="kept")
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr) == (3, "")
    assert without_linkers(done) == without_linkers(plain) and "base is the linker's" in done.stdout
    assert linkers(done) == {str(folder / "ldso/ld.so")}
    script = builder.write("names.sh", "#!/bin/sh\nreadlink /proc/$$/exe /proc/$$/ns/mnt /proc/$$/ns/user\ncat /proc/$$/comm\nid\n"
                           "grep -c ldso/ld.so /proc/$$/maps >&2\n")
    script.chmod(0o755)
    script = shutil.copy(script, folder)
    plain = helpers.run([*user, script])
    done = run(folder, "-l", "ldso", "--", script, prefix=user)
    assert (done.returncode, done.stdout, plain.stderr) == (0, plain.stdout, "0\n") and int(done.stderr) > 1
    app = shutil.copy(builder.executable("nopie"), folder)
    done = run(folder, "-l", "ldso", "-o", "backend=hugetlb,verbose=2", "--", app, prefix=user)
    assert (done.returncode, done.stderr) == (3, "hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb\n")


def paused(folder, pause_library, program, *prefix):
    env = helpers.preload(pause_library)
    return helpers.paused([*prefix, folder / "hugeld", "run", "-l", "ldso", "--", program], env, program.name)


def find_base(folder, process):
    """The kernel's AT_BASE, which is where our linker begins."""
    with open(f"/proc/{process.pid}/auxv", "rb") as file:
        base = dict(struct.iter_unpack("2Q", file.read()))[AT_BASE]
    first = min(m.start for m in read_smaps(process.pid) if m.name == str(folder / "ldso/ld.so"))
    assert base == first
    return base


def test_address(folder, tells, pause_library):
    """It is as random as any, and the same one where that is switched off."""
    bases = []
    for prefix in 4 * [()] + 2 * [["setarch", "-R"]]:
        with paused(folder, pause_library, tells, *prefix) as process:
            bases.append(find_base(folder, process))
            process.finish()
    assert len(set(bases[:4])) > 1 and bases[4] == bases[5]


def test_debugger(folder, builder, tmp_path):
    """gdb takes our linker's symbols from our file, in a process and in a core."""
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")
    source = builder.write("opens.c", OPENS)
    library = builder.compile(tmp_path / "libstops.so", "-shared", "-fPIC", "-DLIBRARY", source)
    process = helpers.start([folder / "hugeld", "run", "-l", "ldso", "--", builder.compile(tmp_path / "opens", source), library])
    try:
        helpers.wait_until(lambda: helpers.state_of(process.pid) == "T", what="the stop")
        live = helpers.run(["gdb", "-q", "-nx", "-batch", "-p", process.pid, "-ex", "bt", "-ex", "info sharedlibrary",
                            "-ex", f"gcore {tmp_path}/core"])
        core = helpers.run(["gdb", "-q", "-nx", "-batch", tmp_path / "opens", tmp_path / "core", "-ex", "bt"])
    finally:
        helpers.end_process(process)
    assert str(folder / "ldso/ld.so") in live.stdout
    for said in live.stdout, core.stdout:
        assert re.search(r"^#\d+ .*\b_dl_init \(", said, re.M) and re.search(r"^#\d+ .*\bmain \(", said, re.M), said


# --- a helper that fails ---


@pytest.fixture
def meddled(builder, ldso, tells):
    """meddled(what, options): hugeld run with the fault WHAT (tests/images/exec-stop-meddle.c)."""
    source = helpers.ROOT / "tests/images/exec-stop-meddle.c"
    library = builder.once("meddle", lambda folder: builder.compile(folder / "meddle.so", source, "-shared", "-fPIC", "-ldl"))

    def start(what, options="verbose=1"):
        env = helpers.environment(LD_PRELOAD=library, T_MEDDLE=what, HL_TELLS="kept")
        return helpers.run([helpers.STARTER, "run", "--ld-so", ldso, "-o", options, "--", tells, "one"], env)

    return start


@pytest.mark.parametrize("what", ["kill", "fail", "end"])
def test_faults(meddled, tells, ldso, installed, what):
    """The helper is killed before each of its calls of ptrace(2); or one call that it makes in the program fails, or all from that
    one on: the program begins with the one linker or the other."""
    plain = helpers.run([tells, "one"], helpers.environment(HL_TELLS="kept"))
    begun = set()
    for n in range(1, 200):
        done = meddled(f"{what} {n}")
        assert done.returncode == plain.returncode and without_linkers(done) == without_linkers(plain), (n, done)
        begun.add(next(line for line in done.stdout.splitlines() if line.startswith("linker ")).split()[1])
        if "meddled" not in done.stderr:
            break
        if "without the patched linker" in done.stderr and what != "end":
            assert linkers(done) == {str(installed)}, n
    assert n > 5 and begun == {str(ldso), str(installed)}


def test_strict(meddled):
    done = meddled("fail 1", "strict=on")
    assert (done.returncode, done.stdout) == (127, "")
    assert "without the patched linker: " in done.stderr and "strict=on, so it does not run" in done.stderr


# --- refusals ---


# The option that names the linker, what precedes the command, and the reason.
REFUSALS = {
    "not-made-for-this-libc": (["--ld-so", interpreter().resolve()], [], r"\S+ was not made by 'make ldso'"),
    "not-there": (["--ld-so", "/run/none"], [], r"/run/none may not be executed \(No such file or directory\)"),
    "none-built": (["-l", "ldso"], [], "there is no patched dynamic linker; install hugeld-ldso, or build it with make ldso"),
    "traced": (["-l", "ldso"], ["strace", "-f", "-o", "/dev/null", "-e", "trace=none"], r"it is already being traced\b.*"),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_refused(folder, builder, pool, strace, why):
    """libhugeld.so does its work, and without hugetlb pages for traced text on some kernels."""
    pool(64)
    option, prefix, reason = REFUSALS[why]
    app = builder.executable("nopie")
    if why == "none-built":
        (folder / "ldso/ld.so").unlink()
    done = run(folder, *option, "-o", "verbose=2", "--", app, prefix=prefix)
    assert done.returncode == 3
    assert re.match(rf"hugeld: {app}: {reason}; libhugeld.so is preloaded instead\nhugeld: app-nopie: text 5 pages ", done.stderr), done.stderr


def test_another_interpreter(folder, tells, installed):
    """A program that names another linker than the one that ours was made for, such as musl's, starts with that one."""
    other = folder / "other-ld.so"
    change_build_id(installed, other)
    program = shutil.copy(tells, folder / "tells-of-another")
    subprocess.run(["patchelf", "--set-interpreter", other, program], check=True, timeout=helpers.PATIENCE)
    done = run(folder, "-l", "ldso", "--", program)
    assert done.returncode == 3 and str(other) in linkers(done) and str(folder / "ldso/ld.so") not in linkers(done)
    assert f"ldso/ld.so was not made for {other} and its libc" in done.stderr and done.stderr.count("\n") == 1


def test_secure_mode(folder, tells, installed, root):
    """It runs as without hugeld."""
    program = shutil.copy(tells, folder / "tells-for-root")
    os.chmod(program, 0o4755)
    done = run(folder, "-l", "ldso", "--", program, prefix=NOBODY)
    assert done.returncode == 3 and linkers(done) == {str(installed)} and "secure 1" in done.stdout


def test_static_program(folder, builder):
    done = run(folder, "-l", "ldso", "--", builder.tiny("-static"))
    assert done.returncode == 4 and done.stderr.count("\n") == 1 and "static, the dynamic linker never runs" in done.stderr
