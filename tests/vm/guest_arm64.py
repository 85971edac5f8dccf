# SPDX-License-Identifier: LGPL-2.1-or-later
"""The arm64 guests: hugeld, the patched dynamic linker, the core's tests and generated programs, built here by a cross
compiler, and stock programs from Debian's arm64 packages.

They live in their initramfs: Debian's kernel with pages of 16 KiB has drivers and file systems as modules only.  There
the huge page has 32 MiB, so the programs are larger, and that guest has an image of its own."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

from archive import Archive, Unavailable, run
from guest_amd64 import LEAVE, PYTEST, PYTHON, compile_modules
from image import Root
from machine import Guest

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
ROOT = TESTS.parent
BUILD = pathlib.Path(os.environ.get("B", ROOT / "build")) / "arm64"
HUGE_16K = 32 << 20  # the huge page of a kernel with pages of 16 KiB
CROSS = "aarch64-linux-gnu-"
LIBRARIES = "usr/lib/aarch64-linux-gnu", "lib/aarch64-linux-gnu"

# The programs' release: its libc is not newer than the cross compiler's, its Python has this machine's byte code.
SUITES = ["bookworm", "bookworm-security"]
BUILD_PACKAGES = [
    "libbz2-1.0", "libcmocka-dev", "libcmocka0", "libjansson-dev",
    "libjansson4", "liblzma-dev", "liblzma5", "libxxhash-dev", "libzstd1", "zlib1g",
]
# One list, so that they are always of the same version.
LDSO_PACKAGES = ["glibc-source", "libc6"]
PROGRAM_PACKAGES = [
    "busybox-static", "g++-12", "libexpat1", "libffi8", "libgcc-s1", "libgmp10", "libisl23", "libmpc3", "libmpfr6",
    "libpython3.11-minimal", "libpython3.11-stdlib", "libstdc++6", "python3.11-minimal", "strace",
]
COMMANDS = {
    "python3.11": "usr/bin/python3.11", "strace": "usr/bin/strace", "cc1plus": "usr/lib/gcc/aarch64-linux-gnu/12/cc1plus",
}
APPLETS = ("sh", "cat", "chmod", "cp", "env", "ls", "mount", "reboot", "sed", "sleep", "stty", "touch", "true", "umount")

# Instead of a compiler: the output of the cross compiler, by its place below pytest's temporary folder, without objects.
GCC = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
case $2 in
*.o) exec touch "$2" ;;
*) exec cp "/programs/${2#/tmp/t/}" "$2" ;;
esac
"""

# conftest.py asks it for the names that libhugeld.so needs.
NM = "#!/bin/sh\nexec cat /programs/names\n"


def build(tree):
    """hugeld and its unit tests for arm64, in BUILD, with the libraries in TREE."""
    config = BUILD / "config.mk"
    folders = [tree / name for name in LIBRARIES]
    flags = [f"-L{folders[0]}", *(f"-Wl,-rpath-link,{folder}" for folder in folders)]
    arguments = [f"--output={config}", f"CC={CROSS}gcc", f"CFLAGS=-O2 -g -idirafter {tree}/usr/include",
                 f"LDFLAGS={' '.join(flags)}"]
    BUILD.mkdir(parents=True, exist_ok=True)
    if not config.exists() or str(tree) not in config.read_text():
        run([ROOT / "configure", *arguments], cwd=ROOT)
    run(["make", "-j2", f"B={BUILD}", f"CONFIG={config}", "all", "unit-tests"], cwd=ROOT)


def build_programs(folder, huge_bytes):
    """The programs that the tests compile, by their own fixtures, with the cross compiler in the compiler's place."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("gcc", "nm"):
        path = shutil.which(CROSS + name)
        if path is None:
            raise Unavailable(f"{CROSS}{name} is not installed")
        (tools / name).symlink_to(path)
    programs = folder / "programs"
    argv = [PYTHON, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", folder / "t",
            HERE / "arm64" / "prebuild.py"]
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "B": str(BUILD), "T_PREBUILT": str(programs),
           "T_HUGE_BYTES": str(huge_bytes), "T_VM": "1"}
    result = subprocess.run([str(a) for a in argv], env=env, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Unavailable(f"arm64/prebuild.py: {result.stdout[-2000:]}{result.stderr[-2000:]}")
    (programs / "names").write_text(run([tools / "nm", "-D", "--undefined-only", BUILD / "libhugeld.so"]))
    shutil.rmtree(folder / "t")
    return programs


def find_library(tree, name):
    for folder in LIBRARIES:
        if (tree / folder / name).exists():
            return tree / folder / name
    raise Unavailable(f"{name} is in none of the packages")


def add_program(root, tree, path, at):
    """The arm64 file PATH, and the libraries of TREE that it needs."""
    if root.inside(at).exists():
        return
    root.add(path, at=at, libraries=False)
    for name in re.findall(r"\(NEEDED\).*\[(.+)\]", run(["readelf", "-d", path])):
        add_program(root, tree, find_library(tree, name), f"/usr/{LIBRARIES[0][4:]}/{name}")


def add_python(root, tree):
    """Python with its byte code, which takes several times as long to make in a guest, and pytest."""
    library = "/usr/lib/python3.11"
    root.add_tree(tree / library[1:], at=library, leave=LEAVE)
    for name in PYTEST:
        found = pathlib.Path("/usr/lib/python3/dist-packages", name)
        if found.is_dir():
            root.add_tree(found, leave=("__pycache__",))
        elif found.exists():
            root.add(found)
    root.inside("/usr/bin/python3").symlink_to("python3.11")
    for folder in (library, "/usr/lib/python3"):
        run([PYTHON, "-m", "compileall", "-q", "-j2", "--invalidation-mode", "unchecked-hash", "-s", root.folder,
             root.inside(folder)])


def make_root(folder, tree, huge_bytes, linker):
    root = Root(folder / "root")
    root.inside("/usr/lib/ld-linux-aarch64.so.1").symlink_to("aarch64-linux-gnu/ld-linux-aarch64.so.1")
    root.add(tree / "bin/busybox", at="/usr/bin/busybox", libraries=False)
    for name in APPLETS:
        root.inside(f"/usr/bin/{name}").symlink_to("busybox")
    add_python(root, tree)
    for name, path in COMMANDS.items():
        add_program(root, tree, tree / path, f"/usr/bin/{name}")
    for name in ("libgcc_s.so.1", "libffi.so.8"):  # backtrace(3) and Python's ctypes load them
        add_program(root, tree, find_library(tree, name), f"/usr/lib/aarch64-linux-gnu/{name}")
    for name in ("hugeld", "hugeld-command", "hugeld-glibc", "libhugeld.so"):
        add_program(root, tree, BUILD / name, f"/hugeld/build/{name}")
    root.add(linker, at="/hugeld/build/ldso/ld.so", libraries=False)
    for source in sorted((TESTS / "unit").glob("test-*.c")):
        add_program(root, tree, BUILD / "tests" / source.stem, f"/hugeld/build/tests/{source.stem}")
    for name in ("conftest.py", "images/test_exec_stop.py", "ldso/linked.py", "vm/archive.py", "vm/guest/vm_plugin.py", "vm/guest/vmguest.py"):
        root.add(TESTS / name, at=f"/hugeld/tests/{name}")
    root.add_tree(ROOT / "harness", at="/hugeld/harness", leave=("__pycache__",))
    for name in ("system", "surroundings", "unit", "vm/arm64"):
        root.add_tree(TESTS / name, at=f"/hugeld/tests/{name}", leave=("__pycache__",))
    root.add_tree(build_programs(folder, huge_bytes), at="/programs")
    root.add_tree(folder.parent / "cases", at="/hugeld/cases")
    compile_modules(root)
    root.write("/usr/bin/gcc", GCC, 0o755)
    root.write("/usr/bin/nm", NM, 0o755)
    root.add(HERE / "arm64" / "init", at="/init", libraries=False)
    return root


def make_archive(root, path):
    """The tree as an archive that the kernel unpacks.  Not compressed: that takes an emulated processor longer."""
    names = "\0".join(str(p.relative_to(root.folder)) for p in sorted(root.folder.rglob("*")))
    with open(path, "wb") as file:
        result = subprocess.run(["cpio", "-0", "-o", "-H", "newc", "-R", "0:0", "--quiet"], cwd=root.folder,
                                input=names.encode(), stdout=file, stderr=subprocess.PIPE, check=False)
    if result.returncode != 0:
        raise Unavailable(f"cpio: {shlex.quote(result.stderr.decode())}")
    return path


def make_image(folder, huge_bytes=2 << 20):
    archive, tree = Archive("arm64", SUITES), folder / "tree"
    with archive.packages(BUILD_PACKAGES) as found:
        build(found)
    with archive.packages(LDSO_PACKAGES) as found:
        run([ROOT / "glibc-patches" / "build", "-r", found, "-d", BUILD / "ldso"])
    for names in (LDSO_PACKAGES, BUILD_PACKAGES, PROGRAM_PACKAGES):
        with archive.packages(names) as found:
            shutil.copytree(found, tree, symlinks=True, dirs_exist_ok=True)
    return make_archive(make_root(folder, tree, huge_bytes, BUILD / "ldso" / "ld.so"), folder / "root.cpio")


def make_image_16k(folder):
    return make_image(folder, huge_bytes=HUGE_16K)


def guest(name, package, image, *suites, tests="arm64", **changes):
    # The architected algorithm of pointer authentication takes most of the emulator's time, and nothing needs it.
    return Guest(name, "arm64", list(suites), package,
                 ["qemu-system-aarch64", "-machine", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"], image,
                 initramfs=True, console="ttyAMA0", results="ttyAMA0", tests=tests, **changes)


def guest_16k(name, *suites, **changes):
    return guest(name, "linux-image-arm64-16k", make_image_16k, *suites, memory="1536M", huge_bytes=HUGE_16K, **changes)


GUESTS = [
    guest("6.12-arm64", "linux-image-arm64", make_image, "trixie", "trixie-security"),
    guest("6.1-arm64", "linux-image-arm64", make_image, "bookworm", "bookworm-security"),
    guest_16k("6.12-arm64-16k", "trixie", "trixie-security"),
]
