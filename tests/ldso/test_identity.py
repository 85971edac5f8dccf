# SPDX-License-Identifier: LGPL-2.1-or-later
"""Without the series, our build is the distribution's ld.so: so every difference with it comes from the series, and from the files
that are imported for it."""

import pathlib

import pytest
from elftools.elf.elffile import ELFFile

import helpers
from linkers import PATCHES, run_script

# In one worker: they build glibc in the same folders.
pytestmark = pytest.mark.xdist_group("glibc")

# Three fields of the ELF header, which lies in the first loaded segment, tell where the section headers are.  The
# distribution strips symbols and debugging information into a file of their own, so these differ.  Nothing else is
# excluded, not even the build ID: it is computed over the debugging information too.  But in a suite that is never
# released the tools are newer than those that built libc, and debugging information changes with them.
SECTION_HEADER_FIELDS = {"e_shoff": (40, 8), "e_shnum": (60, 2), "e_shstrndx": (62, 2)}  # offset and size
IS_RELEASED = "\nVERSION_ID=" in pathlib.Path("/etc/os-release").read_text()
BUILD_ID_BYTES = 20


def segments(path, with_build_id=IS_RELEASED):
    """[(program header, contents)], the fields above zeroed."""
    with open(path, "rb") as file:
        elf = ELFFile(file)
        note = elf.get_section_by_name(".note.gnu.build-id")
        build_id = note["sh_offset"] + note["sh_size"] - BUILD_ID_BYTES
        result = []
        for segment in elf.iter_segments():
            data = bytearray(segment.data())
            if segment["p_offset"] == 0 and data[:4] == b"\x7fELF":
                for at, size in SECTION_HEADER_FIELDS.values():
                    data[at:at + size] = bytes(size)
            if not with_build_id and 0 <= build_id - segment["p_offset"] < len(data):
                at = build_id - segment["p_offset"]
                data[at:at + BUILD_ID_BYTES] = bytes(BUILD_ID_BYTES)
            result.append((dict(segment.header), bytes(data)))
        return result


def test_segments_are_the_distributions(unpatched, installed):
    mine, theirs = segments(unpatched), segments(installed)
    assert [header for header, _ in mine] == [header for header, _ in theirs]
    loaded = [header for header, _ in theirs if header["p_type"] == "PT_LOAD"]
    assert len(loaded) == 4 and sum(header["p_filesz"] for header in loaded) > 150_000
    for (header, a), (_, b) in zip(mine, theirs):
        differing = [i for i, (x, y) in enumerate(zip(a, b)) if x != y]
        assert len(a) == len(b) and not differing, \
            f"{header['p_type']} at {header['p_offset']:#x}: {len(differing)} bytes differ, first at {differing[0]:#x}"


def test_says_what_it_was_compared_with(unpatched, installed):
    """A section that is not loaded has the installed ld.so's build ID, for finding out that libc was upgraded."""
    with open(unpatched, "rb") as mine, open(installed, "rb") as theirs:
        note, = ELFFile(theirs).get_section_by_name(".note.gnu.build-id").iter_notes()
        section = ELFFile(mine).get_section_by_name(".hugeld.for")
        assert section.data().decode() == note["n_desc"] + "\n"
        assert section["sh_flags"] == 0


def test_marked_as_the_distributions_is(ldso, installed):
    """The marks are for CET and BTI, which libc enforces for a process only if every object is marked."""
    def properties(path):
        with open(path, "rb") as file:
            section = ELFFile(file).get_section_by_name(".note.gnu.property")
            return section and section.data()

    assert properties(ldso) == properties(installed)


def test_import(tmp_path):
    assert run_script("import", tmp_path).stderr == f"glibc-patches/import: {tmp_path} is no glibc tree\n"
    (tmp_path / "elf/hugeld").mkdir(parents=True)
    (tmp_path / "elf/hugeld/gone.c").touch()
    core = {f.name: f for folder in ("elf", "perf-maps") for f in (helpers.ROOT / folder).glob("*.*")
            if f.suffix in (".c", ".h", ".def")}
    glue = {f.name: f for f in (PATCHES / "glue").glob("*.[ch]")}
    assert len(core) > 30
    times = []
    for _ in range(2):
        done = run_script("import", tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        times.append({f: f.stat().st_mtime_ns for f in tmp_path.rglob("*") if f.is_file()})
        for files, folder in ((core, tmp_path / "elf/hugeld"), (glue, tmp_path / "elf")):
            assert {f.name for f in folder.iterdir() if f.is_file()} == set(files)
            assert all((folder / name).read_bytes() == file.read_bytes() for name, file in files.items())
    assert times[0] == times[1], "make would compile all of it again"
