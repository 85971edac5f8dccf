# SPDX-License-Identifier: LGPL-2.1-or-later
"""The patched dynamic linker in the arm64 guests, by the proof of ../../ldso, and the command's answers there
about programs that either way in has moved."""

import os
import re
import struct
import sys

import pytest

import arm64
import helpers
from arm64 import ALL, HUGE, IS_SMALL, VARIANTS, refuses, status_of
from hugepages import free_pages
from smaps import read_smaps

sys.path.append(str(arm64.TESTS / "ldso"))

from linked import Linked, by_command, by_run  # noqa: E402  (its folder has just been added)

opens = arm64.opens
LDSO = helpers.BUILD / "ldso" / "ld.so"
INSTALLED = "/lib/ld-linux-aarch64.so.1"
HUGETLB = "backend=hugetlb,data=off"


@pytest.fixture
def linked(pause_library):
    return Linked(LDSO, pause_library)


@pytest.mark.parametrize("option", ["--version", "--list-tunables"])
def test_says_what_the_installed_one_says(option):
    """glibc-patches/guard could not run them where they were built."""
    ours, theirs = (helpers.run([ldso, option]) for ldso in (LDSO, INSTALLED))
    assert ours.returncode == 0 and ours.stdout.count("\n") > 3
    assert ours.stdout == theirs.stdout


CASES = [*((v, by_run) for v in VARIANTS), *((v, by_command) for v in VARIANTS if v in ("pie", "bti", "bti-pie"))]


@pytest.mark.parametrize("variant, way", CASES)
def test_executable(builder, linked, variant, way):
    app = builder.executable(variant)
    proof = linked.prove([app], {app.name: ALL}, "main", HUGETLB, way=way)
    assert proof.pages >= 2
    assert refuses(proof.moved) == variant.startswith("bti")


def test_thp(builder, linked, thp):
    app = builder.executable("bti")
    proof = linked.prove([app], {app.name: ALL}, "main", "backend=thp,data=off", backend="thp")
    assert refuses(proof.moved)


@pytest.mark.skipif(not IS_SMALL, reason="n/a: several hundred MiB of data")
def test_data(builder, linked, thp):
    """The program forks, and its heap grows and shrinks."""
    app = builder.executable("nopie", arm64.WORDS)
    linked.prove([app], {app.name: (*ALL, "data")}, "main", "backend=hugetlb,data=thp,bss=thp")


@pytest.mark.skipif(not IS_SMALL, reason="n/a: a hundred MiB for each library")
@pytest.mark.parametrize("variant", arm64.LATER)
def test_library_that_comes_later(opens, variant):
    program, shared = opens(variant)
    options = "backend=hugetlb,data=off,verbose=2"
    env = helpers.environment(LD_HUGEPAGES="libbig*", LD_HUGEPAGES_OPTIONS=options)
    arm64.check_later(by_run(LDSO, "libbig*", options, [program, shared]), env, program, shared, variant)


@pytest.mark.parametrize("variant", ["pie", "bti-pie"] if IS_SMALL else ["pie"])
def test_image(builder, linked, images, variant):
    """glibc maps text again for PROT_BTI, from the file whose program headers are in memory: the image."""
    app = builder.executable(variant)
    images.add(app)
    proof = linked.prove([app], {app.name: ALL}, "main", images.options("data=off"), way=by_command, backend="image")
    assert proof.pages >= 2
    assert refuses(proof.moved) == variant.startswith("bti")


@pytest.mark.skipif(not IS_SMALL, reason="n/a: a hundred MiB for each library")
@pytest.mark.parametrize("variant", arm64.LATER)
def test_image_of_a_library(opens, images, variant):
    program, shared = opens(variant)
    image = images.add(shared)
    options = images.options("data=off", "verbose=2")
    env = helpers.environment(LD_HUGEPAGES="libbig*", LD_HUGEPAGES_OPTIONS=options)
    arm64.check_later(by_run(LDSO, "libbig*", options, [program, shared]), env, program, shared, variant, backend="image", mapped=image)


def test_pool_too_small(builder, linked, pool):
    pool(1)
    app = builder.executable("nopie" if IS_SMALL else "pie")
    plain, result = helpers.run([app]), linked.run([app], "main", "backend=hugetlb,segments=text,verbose=1")
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
    assert "text stays: the huge page pool cannot serve it" in result.stderr


# --- stock programs ---


@pytest.mark.skipif(not IS_SMALL, reason="n/a: their text is smaller than a huge page")
@pytest.mark.parametrize("name", arm64.STOCK)
def test_stock_program(linked, tmp_path, name):
    argv, expected, pages = arm64.STOCK[name](tmp_path)
    proof = linked.prove(argv, {os.path.basename(argv[0]): ALL}, "main", HUGETLB, way=by_command,
                         same=arm64.same_but_times)
    assert proof.moved[0] == 0 and expected in proof.moved[1] and proof.pages >= pages


# --- the command's answers ---


def perf_map(pid):
    """{name: (start, end)} of the lines of `hugeld perf-map`."""
    result = helpers.hugeld("perf-map", "-O", "-", pid)
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) (\S+)$", result.stdout, re.M)
    return {name: (int(start, 16), int(start, 16) + int(size, 16)) for start, size, name in lines}


def code_at(pid, address):
    """Two instructions."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return struct.unpack("<2I", memory.read(8))


BTI_C, ADD, PACIASP, STP = 0xd503245f, 0x8b000400, 0xd503233f, 0xa9bf7bfd
BEGINS = {"text_a": (BTI_C, ADD), "text_c": (BTI_C, ADD), "trampoline": (PACIASP, STP)}


@pytest.mark.parametrize("loader", ["preload", "ldso"])
def test_command(builder, pause_library, loader):
    """`inspect` predicts which text moves, `run` moves it, smaps shows it, and the others agree with smaps."""
    app = builder.executable("bti")
    [before] = helpers.hugeld_json("inspect", app)["files"]
    assert before["machine"] == "aarch64" and before["huge_page_bytes"] == HUGE
    assert helpers.hugeld_json("doctor")["pool"]["free_pages"] == free_pages() >= before["pool_pages"]
    argv = [helpers.HUGELD, "run", "-l", loader, "-o", f"{HUGETLB},verbose=2", "--", app]
    with helpers.paused(argv, helpers.preload(pause_library), app.name) as process:
        huge = [m for m in read_smaps(process.pid) if m.is_hugetlb]
        spans = [(int(s["start"], 0), int(s["end"], 0), s["flags"] + "p") for s in before["plan"]["spans"]]
        assert [(m.start, m.end, m.permissions) for m in huge] == [s for s in spans if "w" not in s[2]]
        assert sum(m.bytes for m in huge) <= before["pool_pages"] * HUGE
        names = perf_map(process.pid)
        for name, code in BEGINS.items():
            assert any(m.start <= names[name][0] and names[name][1] <= m.end and "x" in m.permissions for m in huge)
            assert code_at(process.pid, names[name][0]) == code, name
        result = status_of(process)
    assert refuses(result) and "hugeld: app-bti: text" in result[2] and " hugetlb" in result[2]
