# SPDX-License-Identifier: LGPL-2.1-or-later
"""The x86-64 guests: this machine's own Python, pytest and programs on each of Debian's kernels.

There is no compiler in the guest.  Its `gcc` is a script that takes the output of this machine's gcc for the same sources
(prebuild.py), so that the tests of ../system and ../writable run there as they are."""

import hashlib
import os
import pathlib
import shutil
import subprocess

from archive import Archive, Unavailable, new_folder, run
from image import Root
from machine import Guest

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
BUILD = pathlib.Path(os.environ.get("B", TESTS.parent / "build"))
PYTHON = "/usr/bin/python3"

COMMANDS = ("sh", "cat", "cp", "rmdir", "true", "env", "ls", "nm", "ld", "dmesg", "sed", "setsid", "stty", "mount",
            "umount", "unshare", "setarch", "sleep", "strace", "nsenter")
# The parts of Python's library that are large and never imported.
LEAVE = ("test", "idlelib", "lib2to3", "pydoc_data", "ensurepip", "tkinter", "turtledemo", "config-*", "distutils")
PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "attr", "py.py", "more_itertools", "exceptiongroup",
          "tomli")

GCC = """#!/bin/sh
# Instead of a compiler: what the host's made, by its place below pytest's temporary folder.
output=
for argument; do
    [ "$output" != -o ] || { output=$argument; break; }
    [ "$argument" != -o ] || output=-o
done
made=/programs/${output#/tmp/t/}
if [ ! -e "$made" ]; then
    echo "$made was not built before: tests/vm/prebuild.py" >&2
    exit 1
fi
exec cp "$made" "$output"
"""


def python_library():
    return run([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]).strip()


# The files that prebuild.py compiles, and how.
SOURCES = ("conftest.py", "system/programs.py", "system/pause.c", "surroundings/*.[ch]", "surroundings/conftest.py", "churn.h",
           "images/*.c", "images/test_exec_stop.py", "attach/*.[ch]", "attach/conftest.py", "attach/attaching.py",
           "writable/*.[ch]", "writable/conftest.py", "vm/prebuild.py", "vm/guest/*.c", "vm/guest/conftest.py",
           "vm/systemd/service.c", "vm/systemd/conftest.py", "../harness/calls.c", "../harness/text.S")


def programs_key():
    """Names everything that the programs are made of.  Of libhugeld.so that is the symbols it needs."""
    key = hashlib.sha256()
    for argv in (["gcc", "--version"], ["ld", "--version"], ["nm", "-D", "--undefined-only", BUILD / "libhugeld.so"]):
        key.update(run(argv).encode())
    for pattern in SOURCES:
        for path in sorted(TESTS.glob(pattern)):
            key.update(path.read_bytes())
    return key.hexdigest()[:16]


def compile_modules(root):
    """Byte code for the tests and what they import, which takes an emulated processor long."""
    run([PYTHON, "-m", "compileall", "-q", "-j2", "--invalidation-mode", "unchecked-hash", "-s", root.folder, root.inside("/hugeld")])


def build_programs(folder):
    """Everything that the tests compile, by this machine's compiler; kept in the build folder."""
    kept = BUILD / "vm" / f"programs-{programs_key()}"
    if kept.exists():
        return kept
    for old in kept.parent.glob("programs-*"):
        shutil.rmtree(old)
    argv = [PYTHON, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", folder / "t",
            HERE / "prebuild.py"]
    with new_folder(kept) as new:
        result = subprocess.run([str(a) for a in argv], env={**os.environ, "T_PREBUILT": str(new), "T_VM": "1"},
                                capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Unavailable(f"prebuild.py: {result.stdout[-2000:]}{result.stderr[-2000:]}")
    return kept


def add_policies(root):
    """The policies that test_vm_lsm.py loads, and the tools for it.  AppArmor's package would change the machine if it were
    installed."""
    with Archive("amd64", ["bookworm", "bookworm-security"]).packages(["apparmor"]) as tree:
        root.add(tree / "sbin/apparmor_parser", at="/usr/sbin/apparmor_parser")
    run(["secilc", "-o", root.inside("/hugeld/execmem.policy"), "-f", "/dev/null", HERE / "guest" / "execmem.cil"])


def make_root(folder):
    """All but process 1."""
    programs = build_programs(folder)
    root = Root(folder / "root")
    root.add_command(*COMMANDS)
    root.add(os.path.realpath(PYTHON))
    root.inside(PYTHON).symlink_to(os.path.basename(os.path.realpath(PYTHON)))
    root.add_tree(python_library(), leave=LEAVE)
    for name in PYTEST:
        found = pathlib.Path("/usr/lib/python3/dist-packages", name)
        if found.is_dir():
            root.add_tree(found)
        elif found.exists():
            root.add(found)
    root.add_libraries(programs / "programs0" / "exceptions" / "exceptions")
    for name in ("/etc/ld.so.cache", "/etc/passwd", "/etc/group"):
        root.add(name)
    root.add_tree(TESTS.parent / "harness", at="/hugeld/harness", leave=("__pycache__",))
    root.add_tree(TESTS, at="/hugeld/tests", leave=("__pycache__", "real", "unit", "surroundings/test_*"))
    for name in ("hugeld", "hugeld-command", "hugeld-glibc", "libhugeld.so"):
        root.add(BUILD / name, at=f"/hugeld/build/{name}")
    if not (BUILD / "ldso" / "ld.so").exists():
        raise Unavailable("the patched linker is not built: make ldso")
    root.add(BUILD / "ldso" / "ld.so", at="/hugeld/build/ldso/ld.so", libraries=False)
    root.add_tree(programs, at="/programs")
    root.add_tree(folder.parent / "cases", at="/hugeld/cases")
    compile_modules(root)
    add_policies(root)
    root.write("/usr/bin/gcc", GCC, 0o755)
    for name in ("/usr/bin/ld.lld", "/usr/include/seccomp.h"):  # tests look whether they are there
        root.write(name, "", 0o755)
    return root


def make_image(folder):
    root = make_root(folder)
    root.add(HERE / "guest" / "init", at="/init")
    return root.make_image(folder / "root.ext4")


# The emulator executes "rep movsb" and "rep stosb" byte by byte: without ERMS the kernel clears and copies pages by
# words, and a test takes a third of the time.
CPU = "max,-erms,-fsrm"


# On a busy machine the kernel finds that an emulated timer does not tick, or that a processor is stuck.
WORDS = ("no_timer_check", "nowatchdog")


def guest(name, *suites, image=make_image, words=(), **changes):
    return Guest(name, "amd64", list(suites), "linux-image-cloud-amd64",
                 ["qemu-system-x86_64", "-machine", "q35", "-cpu", CPU], image, native="x86_64", words=[*WORDS, *words],
                 **changes)


GUESTS = [
    guest("6.1", "bookworm", "bookworm-security", tests="amd64"),
    guest("newest", "sid", "trixie-backports", words=["security=selinux"], tests="amd64"),
    guest("6.12", "trixie", "trixie-security", tests="amd64"),
]
