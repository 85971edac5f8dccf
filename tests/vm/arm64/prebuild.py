# SPDX-License-Identifier: LGPL-2.1-or-later
"""../prebuild.py for the arm64 guests: `gcc` is the cross compiler there (../guest_arm64.py), and $T_HUGE_BYTES the
size of the huge page that the programs are built for.  The dynamic linker without the series can only be examined here."""

import os
import pathlib
import shutil
import struct
import sys

import pytest
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile

sys.path.append(str(pathlib.Path(__file__).resolve().parent))

import arm64  # noqa: E402  (its folder has just been added)
import arm64_exec_stop  # noqa: E402

sys.path.append(str(arm64.TESTS / "ldso"))

from linkers import run_script  # noqa: E402
from test_identity import segments  # noqa: E402

no_exec, first, tool, opens = arm64.no_exec, arm64.first, arm64.tool, arm64.opens


@pytest.fixture(autouse=True)
def nothing_left():
    """Nothing here runs on huge pages, and others may while it is built."""


def test_build(builder, pause_library, empty_library, no_exec, first, opens, tmp_path_factory):
    for variant in [*arm64.VARIANTS, *([] if arm64.IS_SMALL else ["high"])]:
        builder.executable(variant)
    if arm64.IS_SMALL:
        for variant in arm64.LATER:
            opens(variant)
        builder.executable("nopie", arm64.WORDS)
        for variant in arm64_exec_stop.BARE:
            arm64_exec_stop.build_bare(builder, variant)
        for variant in arm64_exec_stop.exec_stop.VARIANTS:
            arm64_exec_stop.exec_stop.build(builder, variant)
        arm64_exec_stop.exec_stop.build_meddle(builder)
    shutil.copytree(tmp_path_factory.getbasetemp(), os.environ["T_PREBUILT"], symlinks=True, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("*.c", "*.s", "*.o", "*.ld", "*current"))


def functions_at(path, addresses):
    """The names of the functions of PATH to which the bytes at ADDRESSES belong, of the code or of its unwind tables."""
    with open(path, "rb") as file:
        elf = ELFFile(file)
        frames = elf.get_section_by_name(".eh_frame")["sh_addr"]
        code = {frames + e.offset + i: e["initial_location"] for e in elf.get_dwarf_info().EH_CFI_entries()
                if isinstance(e, FDE) for i in range(e["length"] + 4)}
        symbols = [s for s in elf.get_section_by_name(".symtab").iter_symbols() if s["st_info"]["type"] == "STT_FUNC"]
        return {next((s.name for s in symbols if 0 <= code.get(at, at) - s["st_value"] < s["st_size"]), hex(at))
                for at in addresses}


# Debian 12's compiler for arm64 has the changes of 12.2.0-14+deb12u1, its cross compiler has not (12.2.0-14cross1).  In this
# function, which has an array of variable size, that gives other instructions; the former, given the same source, makes
# the distribution's.
COMPILED_DIFFERENTLY = {"_dl_map_object_from_fd"}


NOP = 0xd503201f


def is_relaxed(mine, theirs):
    """Whether THEIRS adds 0 to a register, which a newer linker (binutils 2.46) makes a move, or nothing: MINE."""
    to, register = theirs & 31, theirs >> 5 & 31
    return theirs & ~0x3ff == 0x91000000 and mine == (NOP if to == register else 0xaa0003e0 | register << 16 | to)


def differing(mine, theirs):
    """Where two segments that begin at instructions differ."""
    words = zip(struct.iter_unpack("<I", mine[:len(mine) & ~3]), struct.iter_unpack("<I", theirs[:len(mine) & ~3]))
    found = [4 * i for i, ((a,), (b,)) in enumerate(words) if a != b and not is_relaxed(a, b)]
    return found + ([len(mine) & ~3] if mine[len(mine) & ~3:] != theirs[len(mine) & ~3:] else [])


def test_linker_without_the_series():
    """It is the distribution's, as it is on x86-64 (../../ldso/test_identity.py), but for another compiler's differences."""
    tree = pathlib.Path(os.environ["T_TREE"])
    done = run_script("tree", "-r", tree, "lib")
    assert done.returncode == 0, done.stderr
    built = pathlib.Path(done.stdout.strip()) / "objects/elf/ld.so"
    installed = next(p for p in (tree / "lib", tree / "usr/lib") if p.exists()) / "ld-linux-aarch64.so.1"
    mine, theirs = (segments(ldso, False) for ldso in (built, installed))
    assert [header for header, _ in mine] == [header for header, _ in theirs]
    assert sum(header["p_filesz"] for header, _ in mine if header["p_type"] == "PT_LOAD") > 150_000
    for (header, a), (_, b) in zip(mine, theirs):
        found = [header["p_vaddr"] + i for i in differing(a, b)]
        assert len(a) == len(b) and functions_at(built, found) <= COMPILED_DIFFERENTLY, header
