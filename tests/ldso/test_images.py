# SPDX-License-Identifier: LGPL-2.1-or-later
"""The patched linker opens an object's image in the place of its file: nothing is copied or moved, and to the program and
to every tool that looks at the object it is the file.  Executables that the kernel maps are tested in tests/images."""

import os
import pathlib
import re
import shutil
import struct

import pytest

import helpers
from linked import ALL, by_command, by_run
from objects import PT_LOAD, read_headers
from pagecache import on_small_pages


HERE = pathlib.Path(__file__).resolve().parent
IMAGE = re.compile(r"^hugeld: (libbig\S*|app-\S*): text (\d+) pages image, rodata \d+ pages? image", re.M)
MISMATCH = "its image does not match the file"


@pytest.fixture
def own(builder, tmp_path):
    """own(variant): (program, library), copies that the test may change."""

    def copy(variant="dso"):
        folder = shutil.copytree(builder.with_library(variant)[0].parent, tmp_path / "own", symlinks=True)
        on_small_pages(folder / "libbig.so")
        return folder / f"small-{variant}", folder / "libbig.so"

    return copy


def without_loads(text):
    """An executable's image may have fewer PT_LOADs, and dl_iterate_phdr shows them."""
    return re.sub(r"^loads \d+$", "", text, flags=re.M)


@pytest.fixture
def same(linked, images):
    """same(argv, ...): ARGV does the same as without hugeld; the lines of ours at verbose=2."""

    def run(argv, patterns="libbig*", options="", way=by_run, **changes):
        plain = helpers.run(argv, helpers.environment(**changes))
        done = linked.run(argv, patterns, images.options("verbose=2", *filter(None, [options])), way, **changes)
        assert (done.returncode, without_loads(done.stdout)) == (plain.returncode, without_loads(plain.stdout)), done.stderr
        return done.stderr

    return run


# --- its effects ---


@pytest.mark.parametrize("variant, way", [("pie", by_command), ("hole-pie", by_command), ("nopie", by_command), ("nopie", by_run),
                                          ("dso", by_run), ("dso-hole", by_run), ("dso-noseparate", by_run)])
def test_only_its_text(images, builder, linked, variant, way):
    """All that the plan says is on the image's huge pages. Protections, RELRO, descriptors and all other memory are those of a plain
    run.  An executable that ld.so maps may be a PIE; of those that the kernel maps the preloader's way takes the parts that fit."""
    app, moved, patterns = builder.executable(variant) if "dso" not in variant else None, None, "main"
    if app is None:
        (app, [moved]), patterns = builder.with_library(variant), "libbig*"
    moved = moved or app
    images.add(moved)
    kinds = ("text",) if variant == "dso-noseparate" else ALL
    proof = linked.prove([app], {moved.name: kinds}, patterns, images.options("data=off"), way=way, backend="image",
                         same=lambda plain, moved: list(map(without_loads, plain[1:])) == list(map(without_loads, moved[1:])))
    assert proof.plans[moved.name].pages("text") >= 3


# --- it is still the file ---


@pytest.fixture(scope="module")
def asks(builder):
    return builder.once("asks", lambda folder: builder.compile(folder / "asks", HERE / "asks.c"))


@pytest.mark.parametrize("way", [by_run, by_command])
def test_same_object(images, own, same, asks, way):
    """Names, origin and identity: another name of the file, a symbolic and a hard link are the same object, a copy is not."""
    _, library = own()
    image = images.add(library)
    hard, link, copy = (library.with_name(f"libbig-{name}.so") for name in ("hard", "link", "copy"))
    link.symlink_to(library)
    shutil.copy(library, copy)
    os.link(library, hard)  # that changes its ctime
    image = images.add(library)
    told = same([asks, library, link, hard, library.parent / "." / library.name, copy], way=way)
    assert IMAGE.search(told) and str(image) in told


def test_soname(images, builder, same, asks):
    """Before it is mapped its path decides; one that only its soname selects is moved afterwards."""
    _, [library] = builder.with_library("dso")
    image = images.add(library)
    assert str(image) in same([asks, library], "lib*.so")
    assert str(image) not in same([asks, library], "!libbig.so:*")
    assert "libbig.so: text" in same([asks, library], "libbig.so.1")


# --- images that must never be used ---


@pytest.fixture
def unused(images, linked, asks):
    """unused(library, reason): the file itself is mapped, and verbose=3 says why."""

    def check(library, reason):
        plain = helpers.run([asks, library])
        done = linked.run([asks, library], "libbig*", images.options("verbose=3"))
        assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
        assert reason in done.stderr and f" {library}\n" in done.stderr and "pages image" not in done.stderr, done.stderr

    return check


# Name: how the image of a library is changed, by the place of a header (or None: the ELF header's), the offset in it and the
# format.
FIELDS = {
    "e_ident": (None, 8, "B"), "e_type": (None, 16, "H"), "e_machine": (None, 18, "H"), "e_version": (None, 20, "I"),
    "e_entry": (None, 24, "Q"), "e_flags": (None, 48, "I"), "e_phnum": (None, 56, "H"), "e_shnum": (None, 60, "H"),
    "p_type": (-1, 0, "I"), "p_flags": (-1, 4, "I"), "p_vaddr": (-1, 16, "Q"), "p_paddr": (-1, 24, "Q"),
    "p_filesz": (-1, 32, "Q"), "p_memsz": (-1, 40, "Q"), "p_align": (-1, 48, "Q"), "its p_offset": (0, 8, "Q"),
    "its p_flags": (0, 4, "I"), "its p_memsz": (0, 40, "Q"), "its p_align": (0, 48, "Q"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_other_headers(images, own, unused, field):
    """Every field of the headers is compared but those that say where something is in the file."""
    _, library = own()
    image = images.add(library)
    index, place, kind = FIELDS[field]
    header = 0 if index is None else [h for h in read_headers(image) if index or h.type == PT_LOAD][index].position
    with open(image, "r+b") as file:
        file.seek(header + place)
        [before] = struct.unpack("<" + kind, file.read(struct.calcsize(kind)))
        file.seek(header + place)
        file.write(struct.pack("<" + kind, before ^ (helpers.PAGE | helpers.HUGE if field in ("its p_offset", "its p_align") else 1)))
    unused(library, MISMATCH)


def test_filter_that_came_after_start(images, features, linked):
    """A filter that kills for the calls that look for an image, and not for those of dlopen."""
    images.add(features())
    script = (helpers.forbid_calls("getcpu", "geteuid", "pread64") +
              f"ctypes.CDLL('{features()}')\n"
              f"print('libbig' in open('/proc/self/maps').read())\n")
    for options, told in (("verbose=1", True), ("verbose=0", False)):
        done = linked.run(["/usr/bin/python3", "-c", script], "libbig*", images.options(options))
        assert (done.returncode, done.stdout) == (0, "True\n"), done
        assert ("the process has restricted itself since it started" in done.stderr) == told
