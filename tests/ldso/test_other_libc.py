# SPDX-License-Identifier: LGPL-2.1-or-later
"""Beside a libc.so.6 that it was not made for, ours leaves the program to the system's dynamic linker, as happens while a
package manager brings another libc.  The other libc is the installed one with another build ID, in a mount namespace."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

import helpers
from hugepages import free_pages
from linkers import BY_ROOT, NOBODY, change_build_id, over_interpreter

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def other_libc(installed, shared_folder):
    """A command prefix: the other libc is there."""
    libc = installed.parent / "libc.so.6"
    change_build_id(libc, shared_folder / "other-libc.so.6")
    return over_interpreter(BY_ROOT, shared_folder / "other-libc.so.6", libc.resolve())


@pytest.fixture
def tells(builder, readable_ldso, shared_folder):
    """tells(flags): the program, which names our ld.so, where every user may run it."""

    def make(*flags):
        return builder.compile(shared_folder / f"tells{''.join(flags)}", HERE / "tells.c", *flags, "-pthread",
                               f"-Wl,--dynamic-linker={readable_ldso}")

    return make


def run(command, **variables):
    return helpers.run(command, helpers.environment(HL_TELLS="kept", **variables))


def told(result):
    """The program's output, without the linkers, and the linkers' base names."""
    lines = result.stdout.splitlines()
    linkers = {pathlib.Path(line.split()[1]).name for line in lines if line.startswith("linker ")}
    return [line for line in lines if not line.startswith("linker ")], linkers


@pytest.mark.parametrize("link", ["-pie", "-no-pie"])
def test_handed_over(link, tells, other_libc, readable_ldso, installed, root):
    """The program finds everything as usual; ours stays mapped, but nothing uses it.  Beside its own libc ours goes on."""
    program = tells(*(["-pie", "-fPIE"] if link == "-pie" else ["-no-pie", "-fno-pie"]))
    ours = run([program, "one", "two"])
    assert ours.returncode == 3, ours.stderr
    said, linkers = told(ours)
    assert linkers == {readable_ldso.name}
    assert "base is the linker's" in said
    theirs = run([*other_libc, program, "one", "two"])
    assert (theirs.returncode, theirs.stderr) == (3, "")
    assert told(theirs) == (said, {readable_ldso.name, installed.name})


def test_debugger(tells, other_libc, root):
    """gdb sets a breakpoint in the text of ours, which is the program's interpreter, again when it has looked for libraries."""
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")
    program = tells("-pie", "-fPIE")
    said = run([*other_libc, "gdb", "-nx", "-batch", "-ex", "break main", "-ex", "run", "-ex", "info sharedlibrary",
                "-ex", "continue", "--args", program, "one"])
    assert re.search(r"^Breakpoint 1, .*\bmain \(\)", said.stdout, re.M), said
    assert "argument one" in said.stdout and "exited with code 03" in said.stdout, said


def test_what_was_moved_stays(other_libc, readable_ldso, builder, shared_folder, pool, root):
    """The executable is on huge pages before libc is mapped, and the system's linker finds it there; a library that was on them
    is gone, with its pages."""
    app, _ = builder.with_library("dso")
    program = shared_folder / "moved" / app.name
    shutil.copytree(app.parent, program.parent, symlinks=True)
    program.parent.chmod(0o755)
    subprocess.run(["patchelf", "--set-interpreter", readable_ldso, program], check=True, timeout=helpers.PATIENCE)
    pool(64)
    free = free_pages()
    result = run([*other_libc, program, "one"], LD_HUGEPAGES="*", LD_HUGEPAGES_OPTIONS="verbose=1")
    plain = run([program, "one"])
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
    assert "hugeld: libc.so.6: text stays: libc.so.6 is not the one" in result.stderr
    assert free_pages() == free
    strict = run([*other_libc, program, "one"], LD_HUGEPAGES="main", LD_HUGEPAGES_OPTIONS="strict=on")
    assert (strict.returncode, strict.stdout) == (127, "")
    assert "libc.so.6 is not the one" in strict.stderr


def test_told_what_to_run(tells, other_libc, readable_ldso, installed, root):
    """ld.so PROGRAM: the system's one is executed with the same arguments, its own options included."""
    options = ["--inhibit-cache", "--argv0", "another", "--preload", installed.parent / "libm.so.6"]
    program = tells("-pie", "-fPIE")
    theirs = run([*other_libc, readable_ldso, *options, program, "one"])
    plain = run([installed, *options, program, "one"])
    assert (theirs.returncode, theirs.stderr) == (3, "")
    assert told(theirs) == told(plain)
    assert told(theirs)[1] == {installed.name}


@pytest.mark.parametrize("needs_libc", [True, False], ids=["libc", "alone"])
def test_with_an_auditor(needs_libc, tells, other_libc, installed, builder, root, tmp_path):
    """An auditor's libc is the first; without one the program's is.  By then TLS is set up: the program is executed anew, and its
    auditor runs once."""
    alone = builder.write("alone.c", "unsigned int la_version(unsigned int version) { return version; }\n")
    source = [HERE / "auditor.c", *builder.object()] if needs_libc else ["-nostdlib", alone]
    auditor = builder.compile(tmp_path / "libauditor.so", "-shared", "-fPIC", *source)
    program = tells("-pie", "-fPIE")
    theirs = run([*other_libc, "env", f"LD_AUDIT={auditor}", program, "one"])
    said, linkers = told(theirs)
    assert theirs.returncode == 3, theirs.stderr
    assert len(re.findall("^audited 1", theirs.stderr, re.M)) == needs_libc
    assert linkers == {installed.name}
    assert [line for line in said if line.startswith("argument")] == [f"argument {program}", "argument one"]


@pytest.mark.parametrize("variables", [{}, {"LD_PRELOAD": "libm.so.6", "LD_DEBUG": "files"},
                                       {"LD_PRELOAD": "libm.so.6", "LD_DEBUG": "files", "LD_PROFILE": "x"}],
                         ids=["none", "two", "three"])
def test_secure_mode(variables, tells, other_libc, readable_ldso, installed, root, shared_folder):
    """Variables that secure mode removes leave the auxiliary vector where the next linker looks for it."""
    program = shared_folder / "tells-for-root"
    shutil.copy(tells("-pie", "-fPIE"), program)
    program.chmod(0o4755)
    result = run([*other_libc, *NOBODY, program, "one"], **variables)
    said, linkers = told(result)
    assert result.returncode == 3, result.stderr
    assert linkers == {readable_ldso.name, installed.name}
    assert "constructed 1, secure 1, variable kept" in said and "uid 65534 of 65534" in " ".join(said)


# Until glibc 2.38 ld.so keeps a copy of GLIBC_TUNABLES behind its own data, to which the environment points then.
TUNABLES = {"one": "glibc.malloc.perturb=3", "two": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=2", "empty": "",
            "processor": "glibc.cpu.hwcaps=-AVX512F", "unknown": "x=" + 5000 * "y"}
LARGE = {f"HL_LARGE_{i}": 100_000 * "z" for i in range(10)}
ENVIRONMENTS = {**{name: {"GLIBC_TUNABLES": value} for name, value in TUNABLES.items()}, "large": LARGE,
                "large-with-tunables": {**LARGE, "GLIBC_TUNABLES": TUNABLES["one"]},
                "moved": {"GLIBC_TUNABLES": TUNABLES["one"], "LD_HUGEPAGES": "main"},
                "absent-auditor": {"GLIBC_TUNABLES": TUNABLES["one"], "LD_AUDIT": "libnosuch.so"}}


@pytest.fixture
def prints(readable_ldso, shared_folder):
    """prints(mode): two programs that print their environment, one with our linker, one with the system's."""

    def make(mode):
        folder = shared_folder / f"prints-{mode:o}"
        if not folder.exists():
            for interpreter in "ours", "theirs":
                (folder / interpreter).mkdir(parents=True)
                shutil.copy("/usr/bin/env", folder / interpreter)
            subprocess.run(["patchelf", "--set-interpreter", readable_ldso, folder / "ours/env"], check=True, timeout=helpers.PATIENCE)
            for program in folder.glob("*/env"):
                program.chmod(mode)
        return [folder / interpreter / "env" for interpreter in ("ours", "theirs")]

    return make


SMALL_STACK = ["sh", "-c", 'ulimit -s 64; exec "$@"', "sh"]
STARTS = {
    **{f"{name}-{mode:o}": (mode, NOBODY, variables) for name, variables in ENVIRONMENTS.items() for mode in (0o755, 0o4755)
       if mode == 0o755 or "LD_HUGEPAGES" not in variables},  # those are removed in secure mode
    **{f"small-stack-{name}": (0o755, SMALL_STACK, ENVIRONMENTS[name]) for name in ("one", "unknown")},
}


@pytest.mark.parametrize("mode, prefix, variables", STARTS.values(), ids=STARTS)
def test_environment(prints, other_libc, root, mode, prefix, variables):
    """Each variable arrives in the program as it does by the system's linker."""
    ours, theirs = (helpers.run([*other_libc, *prefix, program], {"PATH": os.environ["PATH"], **variables})
                    for program in prints(mode))
    assert ours.returncode == theirs.returncode == 0, ours
    assert set(ours.stderr.splitlines()) == set(theirs.stderr.splitlines())  # both may complain of LD_AUDIT
    assert ours.stdout.replace("/ours/", "/theirs/") == theirs.stdout


@pytest.mark.parametrize("variables", [{}, {"LD_HUGEPAGES": "main", "LD_HUGEPAGES_OPTIONS": "strict=on,verbose=1"},
                                       {"GLIBC_TUNABLES": "glibc.malloc.perturb=3"}], ids=["unset", "moved", "tunables"])
@pytest.mark.parametrize("way", ["interpreter", "command"])
def test_over_the_systems_own(variables, way, tells, other_libc, readable_ldso, installed, root):
    """A mount has put ours in the place of the system's, so there is none to hand over to: nothing runs mismatched."""
    program = tells("-pie", "-fPIE")
    command = [program, "one"] if way == "interpreter" else [readable_ldso, program, "one"]
    result = run([*other_libc, *over_interpreter([], readable_ldso, installed), *command], **variables)
    assert (result.returncode, result.stdout) == (127, "")
    assert re.fullmatch(r"hugeld: \S*/libc\.so\.6 is not the one that this dynamic linker was made for, and at \S+ there is no "
                        r"other linker; .*\n", result.stderr), result.stderr


def test_no_other_can_be_executed(tells, other_libc, readable_ldso, strace, root):
    """ld.so PROGRAM, and the system's linker cannot be executed."""
    program = tells("-pie", "-fPIE")
    result = run([*other_libc, *strace("execve", "EACCES", 1), readable_ldso, program, "one"])
    assert (result.returncode, result.stdout) == (127, "")
    assert "libc.so.6 is not the one that this dynamic linker was made for, and " in result.stderr
    assert result.stderr.endswith(" cannot be executed\n")


def test_no_stamp_takes_every_libc(tells, other_libc, readable_ldso, root, shared_folder):
    """A linker that a distribution builds together with its libc holds no build ID."""
    free = shared_folder / "ld.so-without-stamp"
    (shared_folder / "zeros").write_bytes(bytes(64))
    subprocess.run(["objcopy", "--update-section", f".hugeld.libc={shared_folder / 'zeros'}", readable_ldso, free], check=True)
    free.chmod(0o755)
    program = shared_folder / "tells-of-a-distribution"
    shutil.copy(tells("-pie", "-fPIE"), program)
    subprocess.run(["patchelf", "--set-interpreter", free, program], check=True, timeout=helpers.PATIENCE)
    result = run([*other_libc, program, "one"])
    assert told(result)[1] == {free.name}
