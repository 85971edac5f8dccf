# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs and libraries linked in every way that matters really are on huge pages, exactly as planned, and do the same
as without: smaps right after the constructors, then output and exit status."""

import pytest

import helpers
import programs
from objects import PF_R, PF_W, PF_X

ALL = ("text", "rodata")

# Objects without read-only data beside the text, or with none that fills a huge page of its own.
ONLY_TEXT = ("noseparate", "norosegment", "dso-noseparate", "dso-norosegment")


def kinds(variant):
    return ("text",) if variant in ONLY_TEXT else ALL


@pytest.mark.parametrize("by_command", [False, True], ids=["preload", "run"])
@pytest.mark.parametrize("variant", programs.EXECUTABLES)
def test_executable_hugetlb(builder, prove, pool, variant, by_command):
    pool(64)
    app = builder.executable(variant)
    prove([app], {app.name: kinds(variant)}, options="backend=hugetlb", by_command=by_command)


@pytest.mark.parametrize("variant", programs.EXECUTABLES)
def test_executable_thp(builder, prove, thp, variant):
    app = builder.executable(variant)
    prove([app], {app.name: kinds(variant)}, options="backend=thp", backend="thp")


@pytest.mark.parametrize("variant", [v for v in programs.LIBRARIES if v != "dso-textrel"])
def test_library_hugetlb(builder, prove, pool, variant):
    pool(64)
    app, [library] = builder.with_library(variant)
    prove([app], {library.name: kinds(variant)}, patterns="libbig*", options="backend=hugetlb")


@pytest.mark.parametrize("variant", ["dso", "dso-hole", "dso-aligned"])
def test_library_thp(builder, prove, thp, variant):
    app, [library] = builder.with_library(variant)
    prove([app], {library.name: ALL}, patterns="libbig.so.1", options="backend=thp", backend="thp")


@pytest.mark.parametrize("options", ["edges=small", "segments=text", "edges=small,segments=text"])
@pytest.mark.parametrize("variant", ["nopie", "pie", "aligned", "six", "dso"])
def test_edges_and_segments(builder, prove, pool, variant, options):
    pool(64)
    moved = ("text",) if "segments" in options else ALL
    if variant == "dso":
        app, [library] = builder.with_library(variant)
        pages = prove([app], {library.name: moved}, patterns="libbig*", options=f"backend=hugetlb,{options}").pages
    else:
        app = builder.executable(variant)
        pages = prove([app], {app.name: moved}, options=f"backend=hugetlb,{options}").pages
    if variant in ("nopie", "aligned"):
        # Text 0x401000 to 0xc040e1; linked at 2 MiB 0x600000 to 0xe030e1; read-only data 5.2 MiB behind it.
        wanted = {"nopie": {"edges=small": 5, "segments=text": 5, "edges=small,segments=text": 3},
                  "aligned": {"edges=small": 7, "segments=text": 5, "edges=small,segments=text": 5}}[variant]
        if variant in wanted:
            assert pages == wanted[variant][options]


def test_executable_and_libraries(builder, prove, pool):
    pool(64)
    app, libraries = builder.with_library("dso", 2)
    moved = {library.name: ALL for library in libraries}
    prove([app], moved, patterns="main:libbig*", options="backend=hugetlb")
    prove([app], {libraries[1].name: ALL}, patterns="libbig*:!libbig.so*", options="backend=hugetlb")
    prove([app], {libraries[0].name: ALL}, patterns=str(libraries[0].parent) + "/libbig.so*", options="backend=hugetlb")


@pytest.mark.parametrize("data", ["thp", "off"])
@pytest.mark.parametrize("variant", ["nopie", "pie"])
def test_data(builder, prove, pool, thp, variant, data):
    """6 MiB of initialised data, which the program then writes and forks with."""
    pool(64)
    app = builder.executable(variant, words=6 * 2**17)
    moved = ALL if data == "off" else (*ALL, "data")
    prove([app], {app.name: moved}, options=f"backend=hugetlb,data={data}")


@pytest.mark.parametrize("random", [True, False], ids=["random", "fixed"])
@pytest.mark.parametrize("variant", ["nopie", "pie"])
def test_bss(builder, prove, pool, thp, variant, random):
    """Zero-initialised data is advised, and nothing behind it: the heap, which without address-space randomisation begins
    in the last huge page of .bss, grows and shrinks as before."""
    pool(64)
    app = builder.executable(variant, words=6 * 2**17)
    prefix = [] if random else ["setarch", "-R"]
    proof = prove([*prefix, app], {app.name: (*ALL, "data")}, options="backend=hugetlb,data=thp,bss=thp", name=app.name)
    assert "break grows and shrinks" in proof.moved[1]


def test_unwritten_data_stays_by_default(builder, prove, pool, thp):
    pool(64)
    app = builder.executable("pie", words=6 * 2**17)
    prove([app], {app.name: ALL}, options="backend=hugetlb")


def test_auto_takes_thp_where_the_pool_is_empty(builder, prove, pool, thp):
    pool(0)
    app = builder.executable("nopie")
    _, _, stderr = prove([app], {app.name: ALL}, options="verbose=0", backend="thp").moved
    assert stderr == ""


@pytest.mark.parametrize("numa", ["any", "local", "interleave"])
@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_numa(builder, prove, pool, thp, numa, backend):
    pool(64)
    app = builder.executable("nopie")
    prove([app], {app.name: ALL}, options=f"backend={backend},numa={numa}", backend=backend)


def test_exceptions_through_moved_text(builder, prove, pool):
    pool(64)
    app = builder.exceptions()
    status, stdout, _ = prove([app], {app.name: ALL}, options="backend=hugetlb").moved
    assert (status, stdout) == (0, "caught: thrown 5\n")


def stays(app, patterns=None, options="verbose=2", library=helpers.LIBRARY):
    """hugeld's output for a program in which nothing moves, which runs as it would without."""
    plain = helpers.run([app])
    if plain.returncode < 0:
        pytest.skip(f"it does not run here without hugeld either: signal {-plain.returncode}")
    moved = helpers.run_preloaded([app], patterns, options, library)
    assert (moved.returncode, moved.stdout) == (plain.returncode, plain.stdout)
    return moved.stderr


def test_text_without_read_permission(builder, pool):
    pool(64)
    app = builder.patched(builder.executable("nopie"), "noread", PF_X)
    assert "hugeld: noread: text stays: the segment may not be read" in stays(app) or "rodata" in stays(app)
    assert "may not be read" in stays(app, options="verbose=3")


def test_writable_text(builder, pool):
    pool(64)
    app = builder.patched(builder.executable("nopie"), "rwx", PF_R | PF_W | PF_X)
    assert "the segment is writable and executable" in stays(app, options="verbose=3,data=off")


def test_text_relocations(builder, pool):
    pool(64)
    app, _ = builder.with_library("dso-textrel")
    assert stays(app, "libbig*") == "hugeld: libbig.so.1: text stays: it has text relocations\n"
