# SPDX-License-Identifier: LGPL-2.1-or-later
"""glibc-patches/guard refuses an ld.so that does not belong to the installed libc.so.6, and says why."""

import platform
import re
import shutil
import struct
import subprocess

import pytest
from elftools.elf.elffile import ELFFile

from linkers import PATCHES, run_script

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


def test_those_that_belong_to_it_pass(unpatched, installed, ldso):
    assert [refusals(path) for path in (unpatched, installed, ldso)] == [[], [], []]


def test_no_header_changes():
    """So no structure that libc.so.6 shares does."""
    changed = {name for patch in PATCHES.glob("[0-9]*/0*.patch") for name in re.findall(r"^\+\+\+ b/(.*)$", patch.read_text(), re.M)}
    assert "elf/dl-load.c" in changed and not [name for name in changed if not name.endswith(("/Makefile", ".c"))]


def grow(data, elf):
    """A structure that libc shares gets larger."""
    at = symbol_at(elf, "_rtld_global_ro") + 16
    size, = struct.unpack_from("<Q", data, at)
    struct.pack_into("<Q", data, at, size + 8)


def change_string(old, new):
    def change(data, elf):
        dynstr = elf.get_section_by_name(".dynstr")
        at = dynstr["sh_offset"]
        assert len(old) == len(new) and old in data[at:at + dynstr["sh_size"]]
        data[at:at + dynstr["sh_size"]] = data[at:at + dynstr["sh_size"]].replace(old, new)

    return change


def change_type(data, elf):
    at = symbol_at(elf, "__tls_get_addr") + 4
    assert data[at] & 0xF == 2  # STT_FUNC
    data[at] -= 2  # STT_NOTYPE


def age(data, _):
    old = b" release version 2."
    assert data.count(old) == 1
    data[:] = data.replace(old, b" release version 1.")


def swap_tunables(data, _):
    """The names of two tunables change places: libc would ask for one and get the other."""
    a, b = b"glibc.malloc.arena_max\0", b"glibc.malloc.tcache_max\0"
    length = max(len(a), len(b))
    # The names in the table stand in arrays of their own.
    at, other = (data.index(name) for name in (a, b))
    data[at:at + length], data[other:other + length] = b.ljust(length, b"\0"), a.ljust(length, b"\0")


# How it differs, how many reasons there are (0: any number), and some of them.
DIFFERENCES = {
    "size": (grow, 1, ["_rtld_global_ro@@GLIBC_PRIVATE is a global object of "]),
    "missing": (change_string(b"\0_dl_find_dso_for_object\0", b"\0_dl_find_dso_for_objecT\0"), 3,
                ["_dl_find_dso_for_object@@GLIBC_PRIVATE is missing",
                 "_dl_find_dso_for_objecT@@GLIBC_PRIVATE is exported and the installed ld.so has no such symbol",
                 "libc.so.6 needs _dl_find_dso_for_object@GLIBC_PRIVATE"]),
    "type": (change_type, 1, ["__tls_get_addr@@GLIBC_2.3 is a global notype, the installed one a global func"]),
    "version": (change_string(b"\0GLIBC_2.35\0", b"\0GLIBC_2.99\0"), 0,
                ["the version definitions are not those of the installed ld.so", "__rseq_size@@GLIBC_2.35 is missing"]),
    "release": (age, 1, [" release version 1."]),
    "tunables": (swap_tunables, 1, ["tunable "]),
}


@pytest.mark.parametrize("change, number, expected", DIFFERENCES.values(), ids=DIFFERENCES)
def test_difference(edited, change, number, expected):
    reasons = refusals(edited(change))
    assert number in (0, len(reasons)), reasons
    for text in expected:
        assert any(text in reason for reason in reasons), (text, reasons)


@pytest.mark.parametrize("file", ["/dev/null", "/no-such-file"])
def test_no_elf_file(file):
    done = run_script("guard", file)
    assert done.returncode == 2 and done.stderr.startswith(f"guard: {file}: ") and "Traceback" not in done.stderr


def test_another_object(installed):
    assert f"its soname is libc.so.6, the installed one's {installed.name}" in refusals(installed.parent / "libc.so.6")
    other = "/lib/ld-linux.so.2"  # of libc6-i386
    assert refusals(other) == ["is for EM_386 32, the installed ld.so for EM_X86_64 64"]


def test_no_series_applies(cached_tree, tmp_path):
    """A patch that would need fuzz is refused, no other version's series applies either, and so there is no linker."""
    shutil.copytree(PATCHES, tmp_path / "glibc-patches")
    for series in (tmp_path / "glibc-patches").glob("[0-9]*"):
        for patch in series.glob("0004*"):
            patch.write_text(re.sub(r"^(@@ .*\n )", r"\1other", patch.read_text(), flags=re.M))
    done = subprocess.run([tmp_path / "glibc-patches/build", "-d", tmp_path / "out"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and "no series applies to glibc" in done.stderr, done
    assert not (tmp_path / "out/ld.so").exists()


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
    macros = re.findall(r"^#define (_dl_hugepages_\w+)", preprocess("-dM"), re.M)
    assert ("_dl_hugepages_init" in macros) == (active == "false")
