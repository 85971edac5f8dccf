# SPDX-License-Identifier: LGPL-2.1-or-later
"""Our ld.so puts generated programs and libraries, linked in every way that matters, on huge pages exactly as planned:
the executable that the kernel mapped, the one that it maps itself, and libraries."""

import pathlib
import re
import shutil
import tempfile

import pytest

import helpers
import programs
from linked import ALL, by_command, by_run
from objects import PF_X, PT_LOAD, find_bias, object_at, page_down, page_up, read_headers
from smaps import read_smaps

# Objects without read-only data of their own beside the text.
ONLY_TEXT = ("noseparate", "norosegment", "dso-noseparate", "dso-norosegment")


def kinds(variant):
    return ("text",) if variant in ONLY_TEXT else ALL


@pytest.mark.parametrize("variant", programs.EXECUTABLES)
def test_executable_mapped_by_the_kernel(linked, builder, pool, variant):
    pool(64)
    app = builder.executable(variant)
    linked.prove([app], {app.name: kinds(variant)}, "main", "backend=hugetlb")


@pytest.mark.parametrize("variant", programs.EXECUTABLES)
def test_executable_mapped_by_us(linked, builder, pool, variant):
    pool(64)
    app = builder.executable(variant)
    linked.prove([app], {app.name: kinds(variant)}, "main", "backend=hugetlb", by_command)


@pytest.mark.parametrize("variant", [v for v in programs.LIBRARIES if v != "dso-textrel"])
def test_library(linked, builder, pool, variant):
    pool(64)
    app, [library] = builder.with_library(variant)
    linked.prove([app], {library.name: kinds(variant)}, "libbig*", "backend=hugetlb")


ADDRESS = 0x700000000000


def test_library_with_an_address_of_its_own(linked, builder, pool):
    """Linked (or prelinked) for an address: it gets that, and with its address taken another one."""
    pool(64)

    def build(folder):
        libraries = [builder.compile(folder / f"lib{name}.so", "-shared", f"-Wl,-soname,lib{name}.so", *builder.object(),
                                     f"-Wl,-Ttext-segment={ADDRESS:#x}") for name in ("big", "big2")]
        app = builder.compile(folder / "small-prelinked", builder.write("main.c", programs.MAIN), "-Wl,--no-as-needed",
                              *libraries, "-Wl,-rpath,$ORIGIN")
        return app, libraries

    app, libraries = builder.once("prelinked", build)
    linked.prove([app], {library.name: ALL for library in libraries}, "libbig*", "backend=hugetlb")
    with linked.paused([app], "libbig*", "backend=hugetlb") as process:
        mappings = read_smaps(process.pid)
        biases = [find_bias(library, [m for m in mappings if m.name == str(library)]) for library in libraries]
        assert biases[0] == 0 and biases[1] != 0
        assert any(m.is_hugetlb and ADDRESS <= m.start < ADDRESS + 16 * helpers.HUGE for m in mappings)


# Text is the first segment, and read-only data follow.
TEXT_FIRST = """
PHDRS {
    text PT_LOAD FILEHDR PHDRS FLAGS(5); rodata PT_LOAD FLAGS(4); data PT_LOAD FLAGS(6);
    dynamic PT_DYNAMIC FLAGS(6); stack PT_GNU_STACK FLAGS(6);
}
SECTIONS {
    . = SIZEOF_HEADERS;
    .text : { *(.text .text.* big_a big_b big_c) } :text
    .plt : { *(.plt .plt.*) }
    . = ALIGN(CONSTANT(MAXPAGESIZE));
    .rodata : { *(.rodata .rodata.*) } :rodata
    .note : { *(.note.gnu.*) } .eh_frame_hdr : { *(.eh_frame_hdr) }
    .hash : { *(.hash) } .gnu.hash : { *(.gnu.hash) } .dynsym : { *(.dynsym) } .dynstr : { *(.dynstr) }
    .rela.dyn : { *(.rela.*) } .eh_frame : { *(.eh_frame) }
    . = ALIGN(CONSTANT(MAXPAGESIZE));
    .dynamic : { *(.dynamic) } :data :dynamic
    .data : { *(.got .got.* .data .data.*) } :data
    .bss : { *(.bss .bss.*) }
}
"""


def test_text_before_read_only_data(linked, builder, pool):
    pool(64)

    def build(folder):
        script = builder.write("text-first.ld", TEXT_FIRST)
        library = builder.compile(folder / "libbig.so", "-shared", "-nostartfiles", "-Wl,-soname,libbig.so",
                                  *builder.object(), f"-Wl,-T,{script}")
        return builder.compile(folder / "small-text-first", builder.write("main.c", programs.MAIN), "-Wl,--no-as-needed",
                               library, "-Wl,-rpath,$ORIGIN"), library

    app, library = builder.once("text-first", build)
    flags = [h.flags for h in read_headers(library) if h.type == PT_LOAD]
    assert flags == [5, 4, 6]
    linked.prove([app], {library.name: ALL}, "libbig*", "backend=hugetlb")
    with linked.paused([app], "libbig*") as process:
        start, _ = text_of(library, read_smaps(process.pid))
        assert start % helpers.HUGE == 0


@pytest.mark.parametrize("way", [by_run, by_command])
@pytest.mark.parametrize("variant", ["dso", "dso-hole", "pie", "nopie"])
def test_thp(linked, builder, thp, variant, way):
    if variant.startswith("dso"):
        app, [moved] = builder.with_library(variant)
    else:
        app = moved = builder.executable(variant)
    linked.prove([app], {moved.name: ALL}, "libbig*:app-*", "backend=thp", way, backend="thp")


def text_of(library, mappings):
    """[start, end) of the library's largest text segment, in pages."""
    object_ = object_at(library, find_bias(library, [m for m in mappings if m.name == str(library)]))
    load = max((h for h in object_.loads if h.flags & PF_X), key=lambda h: h.memory_bytes)
    start = object_.bias + load.vaddr
    return page_down(start), page_up(start + load.memory_bytes)


@pytest.mark.parametrize("variant", ["dso", "dso-hole", "dso-noseparate"])
def test_begins_on_a_boundary(linked, builder, pool, variant):
    """Where the kernel maps files anywhere, as those of tmpfs, the object begins on a boundary of huge pages in every start."""
    pool(64)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        copy = pathlib.Path(shutil.copytree(builder.with_library(variant)[0].parent, f"{folder}/copy", symlinks=True))
        library = copy / "libbig.so"
        for _ in range(5):
            with linked.paused([copy / f"small-{variant}"], "libbig*", "segments=text") as process:
                mappings = read_smaps(process.pid)
                assert find_bias(library, [m for m in mappings if m.name == str(library)]) % helpers.HUGE == 0
                assert any(m.is_hugetlb for m in mappings)


def test_merge_covers_all_text(linked, builder, pool):
    """edges=merge that the user asks for: the last page of the text is filled up."""
    pool(64)
    app, [library] = builder.with_library("dso")
    for _ in range(5):
        proof = linked.prove([app], {library.name: ("text",)}, "libbig*", "edges=merge,segments=text")
        plan = proof.plans[library.name].json["plan"]
        assert plan["text_share"] == 1


# How often each is called while one library moves; the last one not at all.
CALLS = {"mremap": 6, "pread64": 8, "mprotect": 4, "munmap": 12, "userfaultfd": 3, "madvise": 6, "process_vm_readv": 3}


@pytest.mark.parametrize("call", CALLS)
def test_failing_calls(linked, builder, pool, strace, call):
    """The kernel refuses each call once: the program runs as usual, and the huge pages come back at its end."""
    pool(64)
    app, _ = builder.with_library("dso")
    plain = helpers.run([app])
    for number in range(1, CALLS[call]):
        command = [*strace(call, "ENOMEM", number), linked.ldso, app]
        done = helpers.run(command, linked.environment("libbig*", "verbose=1"))
        if done.returncode == 127:  # glibc's own call, which glibc needs
            assert "error while loading shared libraries" in done.stderr
            continue
        assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), f"{call} {number}: {done.stderr}"


def test_executable_and_libraries(linked, builder, pool):
    pool(64)
    app, libraries = builder.with_library("dso", 2)
    moved = {library.name: ALL for library in libraries}
    linked.prove([app], moved, "*", "backend=hugetlb")
    linked.prove([app], {libraries[1].name: ALL}, "libbig*:!libbig.so*")
    linked.prove([app], {libraries[0].name: ALL}, str(libraries[0].parent) + "/libbig.so*")


@pytest.mark.parametrize("data", ["thp", "off"])
@pytest.mark.parametrize("way", [by_run, by_command])
@pytest.mark.parametrize("variant", ["nopie", "pie"])
def test_data_of_the_executable(linked, builder, pool, thp, variant, way, data):
    """6 MiB of initialised data, which the program then writes and forks with; not one page is left for the copies."""
    app = builder.executable(variant, words=6 * 2**17)
    moved = ALL if data == "off" else (*ALL, "data")
    pool(64)
    linked.prove([app], {app.name: moved}, "main", f"data={data}", way)


@pytest.mark.parametrize("random", [True, False], ids=["random", "fixed"])
@pytest.mark.parametrize("variant", ["nopie", "pie"])
def test_bss_and_heap(linked, builder, pool, thp, variant, random):
    """The heap, which without address-space randomisation begins in the last huge page of .bss, grows and shrinks.  That of
    a PIE which `ld.so PROGRAM` maps is elsewhere, after ld.so: no line names it."""
    pool(64)
    app = builder.executable(variant, words=6 * 2**17)
    plain = helpers.run([app])
    for way in (by_run, by_command):
        command = way(linked.ldso, "main", "data=thp,bss=thp,verbose=2", [app])
        done = helpers.run([*([] if random else ["setarch", "-R"]), *command], linked.environment("main", "data=thp,bss=thp,verbose=2"))
        assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
        assert re.fullmatch(r"hugeld: app-\S+: text \d pages hugetlb, .*data \d pages? thp, bss \d pages? thp \(advised\)\n",
                            done.stderr), done.stderr
        assert "break grows and shrinks" in done.stdout


def test_exceptions(linked, builder, pool):
    pool(64)
    app = builder.exceptions()
    status, stdout, _ = linked.prove([app], {app.name: ALL}, "main").moved
    assert (status, stdout) == (0, "caught: thrown 5\n")


def test_auto_takes_thp_where_the_pool_is_empty(linked, builder, pool, thp):
    pool(0)
    app, [library] = builder.with_library("dso")
    linked.prove([app], {library.name: ALL}, "libbig*", backend="thp")


@pytest.mark.parametrize("free", [0, 1, 4, 5])
def test_short_pool(linked, builder, pool, free):
    """All of the text or nothing; the reason is told, and the program runs."""
    pool(free)
    app, _ = builder.with_library("dso")
    plain = helpers.run([app])
    done = linked.run([app], "libbig*", "backend=hugetlb,segments=text,verbose=2")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    text = "hugeld: libbig.so.1: text "
    assert done.stderr.startswith(text + ("5 pages hugetlb" if free == 5 else "stays: the huge page pool"))


def test_strict(linked, builder, pool):
    pool(0)
    app, _ = builder.with_library("dso")
    done = linked.run([app], "libbig.so.1", "backend=hugetlb,strict=on")
    assert done.returncode == 127 and done.stdout == ""
    assert done.stderr == "hugeld: libbig.so.1: text stays: the huge page pool cannot serve it; strict=on ends the program\n"
    assert linked.run([app], "libbig*", "backend=hugetlb,strict=on").returncode == 3


def test_text_relocations(linked, builder, pool):
    pool(64)
    app, _ = builder.with_library("dso-textrel")
    plain = helpers.run([app])
    if plain.returncode < 0:
        pytest.skip(f"it does not run here without hugeld either: signal {-plain.returncode}")
    done = linked.run([app], "libbig*", "verbose=2")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr == "hugeld: libbig.so.1: text stays: it has text relocations\n"
