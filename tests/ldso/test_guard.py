# SPDX-License-Identifier: LGPL-2.1-or-later
"""glibc-patches/guard refuses an ld.so that does not belong to the installed libc.so.6, and says why."""

import difflib
import os
import platform
import re
import shutil
import struct
import subprocess

import pytest
from elftools.elf.elffile import ELFFile

import helpers
from linkers import PATCHES, WORK, run_script

# In one worker: they build glibc in the same folders.
pytestmark = pytest.mark.xdist_group("glibc")


def refusals(*arguments):
    """The reasons, one a line, without the name of the file."""
    done = run_script("guard", *arguments)
    assert done.returncode == (1 if done.stderr else 0), done.stderr
    assert not done.stdout
    prefix = f"guard: {arguments[-1]}: "
    lines = done.stderr.splitlines()
    assert all(line.startswith(prefix) for line in lines), done.stderr
    return [line[len(prefix):] for line in lines]


@pytest.fixture
def edited(unpatched, tmp_path):
    """A copy of an ld.so that would pass, and its path: edited(change) with change(bytearray, ELFFile)."""

    def edit(change):
        path = tmp_path / "ld.so"
        shutil.copy(unpatched, path)
        with open(path, "r+b") as file:
            data = bytearray(file.read())
            change(data, ELFFile(file))
            file.seek(0)
            file.write(data)
        return path

    return edit


def symbol_at(elf, name):
    """The offset in the file of NAME's entry in the dynamic symbol table (Elf64_Sym)."""
    table = elf.get_section_by_name(".dynsym")
    numbers = [i for i, symbol in enumerate(table.iter_symbols()) if symbol.name == name]
    assert len(numbers) == 1
    return table["sh_offset"] + numbers[0] * table["sh_entsize"]


def replace(data, old, new, times=1):
    assert len(old) == len(new) and data.count(old) == times
    data[:] = data.replace(old, new)


@pytest.mark.check_all
def test_unpatched_passes(unpatched):
    assert refusals(unpatched) == []


def test_installed_passes(installed):
    assert refusals(installed) == []


def test_ours_passes(ldso):
    assert refusals(ldso) == []


def test_no_header_changes():
    """So no structure that libc.so.6 shares does."""
    changed = {name for patch in PATCHES.glob("[0-9]*/0*.patch") for name in re.findall(r"^\+\+\+ b/(.*)$", patch.read_text(), re.M)}
    assert "elf/dl-load.c" in changed and not [name for name in changed if not name.endswith(("/Makefile", ".c"))]


@pytest.mark.parametrize("name", ["_rtld_global", "_rtld_global_ro"])
def test_size(edited, name):
    def grow(data, elf):
        at = symbol_at(elf, name) + 16
        size, = struct.unpack_from("<Q", data, at)
        struct.pack_into("<Q", data, at, size + 8)
        sizes.append(size)

    sizes = []
    path = edited(grow)
    assert refusals(path) == [f"{name}@@GLIBC_PRIVATE is a global object of {sizes[0] + 8} bytes, "
                              f"the installed one a global object of {sizes[0]} bytes"]


def test_missing_symbol(edited):
    def rename(data, elf):
        dynstr = elf.get_section_by_name(".dynstr")
        at = dynstr["sh_offset"]
        old, new = b"\0_dl_find_dso_for_object\0", b"\0_dl_find_dso_for_objecT\0"
        data[at:at + dynstr["sh_size"]] = data[at:at + dynstr["sh_size"]].replace(old, new)

    reasons = refusals(edited(rename))
    assert "_dl_find_dso_for_object@@GLIBC_PRIVATE is missing" in reasons
    assert "_dl_find_dso_for_objecT@@GLIBC_PRIVATE is exported and the installed ld.so has no such symbol" in reasons
    assert any(reason.endswith("libc.so.6 needs _dl_find_dso_for_object@GLIBC_PRIVATE") for reason in reasons)
    assert len(reasons) == 3


def test_symbol_of_another_type(edited):
    def change(data, elf):
        at = symbol_at(elf, "__tls_get_addr") + 4
        assert data[at] & 0xF == 2  # STT_FUNC
        data[at] -= 2  # STT_NOTYPE

    assert refusals(edited(change)) == ["__tls_get_addr@@GLIBC_2.3 is a global notype, the installed one a global func"]


def test_version_definition(edited):
    def change(data, elf):
        dynstr = elf.get_section_by_name(".dynstr")
        at = dynstr["sh_offset"]
        data[at:at + dynstr["sh_size"]] = data[at:at + dynstr["sh_size"]].replace(b"\0GLIBC_2.35\0", b"\0GLIBC_2.99\0")

    reasons = refusals(edited(change))
    assert "the version definitions are not those of the installed ld.so" in reasons
    assert "__rseq_size@@GLIBC_2.35 is missing" in reasons


def test_another_release(edited, installed):
    def older(data, _):
        replace(data, b" release version 2.", b" release version 1.")

    reasons = refusals(edited(older))
    assert len(reasons) == 1 and " release version 1." in reasons[0] and ", installed is " in reasons[0]


def test_tunables_in_another_order(edited):
    """The names of two tunables change places: libc would ask for one and get the other."""
    def swap(data, _):
        a, b = b"glibc.malloc.arena_max\0", b"glibc.malloc.tcache_max\0"
        length = max(len(a), len(b))
        # The names in the table stand in arrays of their own.
        at, other = (data.index(name) for name in (a, b))
        data[at:at + length], data[other:other + length] = b.ljust(length, b"\0"), a.ljust(length, b"\0")

    reasons = refusals(edited(swap))
    assert len(reasons) == 1 and reasons[0].startswith("tunable "), reasons


def test_built_for_another_machine(unpatched, installed, tmp_path):
    """Linkers that cannot be run are compared all the same, but for their version and tunables."""
    data = bytearray(unpatched.read_bytes())
    struct.pack_into("<H", data, 18, 0x5555)  # e_machine
    other, changed = tmp_path / "other", tmp_path / "changed"
    other.write_bytes(data)
    changed.write_bytes(data.replace(b"\0_dl_find_dso_for_object\0", b"\0_dl_find_dso_for_objecT\0"))
    other.chmod(0o755)
    libc = installed.parent / "libc.so.6"
    assert run_script("guard", other, other, libc).returncode == 0
    done = run_script("guard", changed, other, libc)
    assert done.returncode == 1 and "_dl_find_dso_for_object@@GLIBC_PRIVATE is missing" in done.stderr


@pytest.mark.parametrize("file", ["libc.so.6", "/dev/null", "no-such-file"])
def test_no_dynamic_linker(installed, tmp_path, file):
    path = installed.parent / file if file == "libc.so.6" else file if file.startswith("/") else tmp_path / file
    done = run_script("guard", path)
    if file == "libc.so.6":
        assert done.returncode == 1
        assert f"guard: {path}: its soname is libc.so.6, the installed one's {installed.name}" in done.stderr
    else:
        assert done.returncode == 2 and done.stderr.startswith(f"guard: {path}: ") and "Traceback" not in done.stderr


def test_wrong_machine(installed):
    other = "/lib/ld-linux.so.2"  # of libc6-i386
    assert refusals(other) == ["is for EM_386 32, the installed ld.so for EM_X86_64 64"]


# --- built ones ---


def make_series(cached_tree, folder, file, old, new):
    """FOLDER becomes a series of one patch that replaces OLD by NEW in FILE."""
    before = (cached_tree / file).read_text()
    assert before.count(old) == 1
    after = before.replace(old, new)
    diff = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{file}", f"b/{file}")
    (folder / "0001-test.patch").write_text("".join(diff))
    (folder / "series").write_text("0001-test.patch\n")
    return folder


def refused_build(*where):
    """The guard's reasons against an ld.so built with the series of make_series(*WHERE)."""
    series = make_series(*where)
    done = run_script("build", "-s", series, "-d", WORK / "refused")
    assert done.returncode == 1, "the guard let it pass"
    assert not (WORK / "refused/ld.so").exists()
    return [line.partition("/ld.so: ")[2] for line in done.stderr.splitlines() if line.startswith("guard: ")]


@pytest.mark.check_all
def test_one_more_tunable(cached_tree, tmp_path):
    reasons = refused_build(cached_tree, tmp_path, "elf/dl-tunables.list", "  malloc {\n",
                         "  malloc {\n    hugeld {\n      type: INT_32\n    }\n")
    assert any(re.fullmatch(r"(\d+) tunables, the installed ld.so has \d+", reason) for reason in reasons), reasons


@pytest.mark.check_all
def test_patch_that_needs_fuzz(cached_tree, tmp_path):
    """A series made for another source is refused, not bent into place."""
    series = make_series(cached_tree, tmp_path, "elf/rtld.c", "process_envvars (struct dl_main_state *state)\n{\n",
                         "process_envvars (struct dl_main_state *state)\n{\n  /* A line of ours.  */\n")
    patch = series / "0001-test.patch"
    text = patch.read_text()
    last = text.rstrip("\n").rpartition("\n")[2]
    assert last.startswith(" ")
    patch.write_text(text.removesuffix(f"{last}\n") + "   char *something_else = NULL;\n")
    done = run_script("build", "-s", series, "-d", WORK / "refused")
    assert done.returncode == 1 and "0001-test.patch does not apply to glibc" in done.stderr
    assert not (WORK / "refused/ld.so").exists()


def test_no_series_applies(cached_tree, tmp_path):
    """No other version's series applies either, so there is no linker."""
    shutil.copytree(PATCHES, tmp_path / "glibc-patches")
    for series in (tmp_path / "glibc-patches").glob("[0-9]*"):
        for patch in series.glob("0004*"):
            patch.write_text(patch.read_text().replace("maplength", "size"))
    done = subprocess.run([tmp_path / "glibc-patches/build", "-d", tmp_path / "out"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and "no series applies to glibc" in done.stderr, done
    assert not (tmp_path / "out/ld.so").exists()


def packagers_lines():
    """The three lines for packagers in the README."""
    text = (PATCHES / "README.md").read_text()
    part = text[text.index("## For another distribution"):]
    lines = re.findall(r"^    (.*)$", part, re.M)[:3]
    assert [line.split()[0] for line in lines] == ["glibc-patches/build", "install", "hugeld"]
    return lines


def run_line(line, source, objects, folder):
    bin_folder = folder / "dest/usr/bin"
    bin_folder.mkdir(parents=True, exist_ok=True)
    for command in "hugeld", "hugeld-command":
        shutil.copy(helpers.BUILD / command, bin_folder)
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "SOURCE": str(source), "OBJECTS": str(objects),
           "OUT": str(folder / "out"), "DESTDIR": str(folder / "dest")}
    done = subprocess.run(["sh", "-euc", line], cwd=helpers.ROOT, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


def walk(source, objects, folder):
    """A packager builds and installs, and a user runs a program."""
    build, install, run = packagers_lines()
    run_line(build, source, objects, folder)
    run_line(install, source, objects, folder)
    said = run_line(run.replace("PROGRAM", "cat /proc/self/maps"), source, objects, folder)
    inode = (folder / "dest/usr/lib/hugeld/ld.so").stat().st_ino
    assert re.search(rf" {inode} +\S*/hugeld/ld\.so$", said, re.M), said


@pytest.mark.parametrize("inside", ["source", "source/objects", "beside"])
def test_no_build_inside_of_what_is_copied(inside, tmp_path):
    """A build folder inside of the copied one is refused before anything is written."""
    for folder in "source/objects", "beside":
        (tmp_path / folder).mkdir(parents=True)
    objects = "source/objects" if inside != "beside" else "beside"
    done = run_script("build", "-t", tmp_path / "source", "-o", tmp_path / objects, "-d", tmp_path / inside / "out")
    assert (done.returncode, done.stderr.endswith("/out: choose a folder outside of TREE and OBJECTS\n")) == (1, True), done.stderr
    assert not (tmp_path / inside / "out").exists()


@pytest.mark.check_all
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "beside"])
def test_any_distributions_tree(cached_tree, ldso, tmp_path, inside):
    """A packager's command: a source, and where it was built, inside of it or beside it.  Both stay as they were, and the result
    is for that ld.so, with which it shares a libc of any build ID."""
    tree, objects = tmp_path / "glibc", tmp_path / "built"
    done = run_script("copy", cached_tree, tree)
    assert done.returncode == 0, done.stderr
    if inside:
        objects = (tree / "objects").resolve()
        (tree / "objects").unlink()
    else:
        place = (tree / "objects").resolve()
        (tree / "objects").unlink()
        place.rename(objects)
        for file in (f for f in [*objects.glob("config*"), *objects.rglob("*.d"), *objects.rglob("*.dt")] if f.is_file()):
            times = file.stat()
            file.write_bytes(file.read_bytes().replace(bytes(place), bytes(objects)))
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    before = (objects / "elf/ld.so").read_bytes()
    walk(tree, objects, tmp_path)
    assert (objects / "elf/ld.so").read_bytes() == before and not (tree / "elf/hugeld").exists()
    with open(tmp_path / "out/ld.so", "rb") as mine, open(ldso, "rb") as ours:
        a, b = ELFFile(mine), ELFFile(ours)
        assert a.get_section_by_name(".hugeld.libc").data() == bytes(64)
        for name in (".hugeld.for", ".dynsym"):
            assert a.get_section_by_name(name).data() == b.get_section_by_name(name).data(), name


@pytest.mark.parametrize("flags, active", [(["-m64"], "_dl_hugepages_active"), (["-m32"], "false"), (["-mx32"], "false")])
def test_other_machines_build_as_before(flags, active, tmp_path):
    """Their ld.so has no such object, and the call sites come to nothing: the function that the series calls is a macro."""
    if platform.machine() != "x86_64":
        pytest.skip("needs a compiler for x86")
    for name in ("link.h", "stdbool.h"):
        (tmp_path / name).touch()
    source = "#define IS_IN(lib) 1\n#include <dl-hugepages.h>\nactive: _dl_hugepages_active\n"
    command = ["gcc", *flags, "-E", "-nostdinc", "-I", tmp_path, "-I", PATCHES / "glue", "-"]

    def preprocess(option):
        return subprocess.run([*command, option], input=source, capture_output=True, text=True, check=True).stdout

    assert f"active: {active}\n" in preprocess("-P")
    called = {name for patch in PATCHES.glob("[0-9]*/0*.patch")
              for name in re.findall(r"^\+.*\b(_dl_hugepages_\w+)(?= ?[(;,)])", patch.read_text(), re.M)}
    assert {"_dl_hugepages_init", "_dl_hugepages_check_libc"} <= called
    macros = set(re.findall(r"^#define (_dl_hugepages_\w+)", preprocess("-dM"), re.M))
    assert macros >= called if active == "false" else not macros
