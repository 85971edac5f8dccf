# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects that hugeld leaves alone with any patterns: ld.so, the vdso, itself, segments that may not be read, objects with
text relocations; and programs that remap their own text, which must still be able to."""


import pytest

import helpers
import programs
from installed import find_node
from objects import PF_X
from proof import check_span, read_image, read_plans
from smaps import read_smaps
from surroundings import ALL


def lies_as_linked(image, object_):
    """Every page of OBJECT is the file's, or its own zero-initialised data."""
    for mapping in image.mappings:
        if mapping.start < object_.end and mapping.end > object_.start:
            assert not mapping.is_hugetlb and not mapping.thp_bytes, mapping
            assert mapping.inode or mapping.permissions in ("rw-p", "r--p", "---p"), mapping


@pytest.fixture(scope="module")
def large_library(builder, shared_folder):
    """libhugeld.so with the large text inside itself, in the place where the large text of others moves from."""
    folder = shared_folder / "large"
    folder.mkdir()
    sources = [source for name in ("elf", "perf-maps", "loader") for source in (helpers.ROOT / name).glob("*.c")]
    objects = [helpers.BUILD / source.parent.name / f"{source.stem}.o" for source in sources]
    return builder.compile(folder / "libhugeld.so", "-shared", "-Wl,-soname,libhugeld.so,-z,now,-z,initfirst", *objects,
                           *builder.object())


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
@pytest.mark.parametrize("patterns", ["*", "libhugeld*:main", "/*:main"])
def test_itself(builder, large_library, pause_library, pool, thp, backend, patterns):
    pool(64)
    app = builder.executable("nopie")
    plain = helpers.run([app], helpers.preload(large_library, patterns="!*"))
    env = helpers.preload(large_library, pause_library, patterns=patterns, options=f"backend={backend},verbose=3")
    with helpers.paused([app], env, app.name) as process:
        image = read_image(process.pid)
        own = image.find(large_library.name)
        assert own.end - own.start > 12 << 20
        lies_as_linked(image, own)
        lies_as_linked(image, image.find("ld-linux-x86-64.so.2"))
        plans = read_plans(process.pid, [app])
        for span in plans[app.name].spans:
            check_span(image, span, backend)
        status, stdout, stderr = process.finish()
    assert (status, stdout) == (plain.returncode, plain.stdout)
    assert not any(name in stderr for name in ("libhugeld", "ld-linux", "vdso"))


def test_ldso_as_the_program(builder, library, pause_library, pool):
    """`ld.so PROGRAM`: there is no interpreter, and the executable is in ld.so's list, not in the kernel's."""
    pool(64)
    app = builder.executable("pie")
    plain = helpers.run(["/lib64/ld-linux-x86-64.so.2", app])
    env = helpers.preload(library, pause_library, patterns="*", options="backend=hugetlb,verbose=2")
    with helpers.paused(["/lib64/ld-linux-x86-64.so.2", app], env, "ld-linux-x86-64.so.2") as process:
        mappings = read_smaps(process.pid)
        assert any(m.is_hugetlb and "x" in m.permissions for m in mappings)
        assert not any(m.is_hugetlb for m in mappings if "ld-linux" in m.name)
        status, stdout, stderr = process.finish()
    assert (status, stdout) == (plain.returncode, plain.stdout)
    assert "ld-linux" not in stderr and f"hugeld: {app.name}: text" in stderr


def test_text_that_may_not_be_read(builder, surround, pool):
    """PF_X without PF_R: the read-only data moves, the text does not."""
    pool(64)
    app = builder.patched(builder.executable("aligned"), "noread", PF_X)
    if helpers.run([app]).returncode < 0:
        pytest.skip("the kernel does not run it")
    outcome = surround([app], {app.name: ("rodata",)}, options="verbose=3")
    assert "stays: the segment may not be read (PF_R is missing)" in outcome.stderr


NON_PIC = """
    .text
    .globl relocated
relocated:
    .rept 100
    movabsq $relocated, %rax
    .endr
    ret
    .section .note.GNU-stack,"",@progbits
"""


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_text_relocations(builder, surround, pool, thp, backend):
    """The library stays as ld.so relocated it; the one beside it moves."""
    pool(64)

    def link(folder):
        source = builder.write("non-pic.s", NON_PIC)
        library = folder / "libreloc.so"
        builder.compile(library, "-shared", "-Wl,-soname,libreloc.so,-z,notext", source, *builder.object())
        big = builder.compile(folder / "libbig.so", "-shared", "-Wl,-soname,libbig.so", *builder.object())
        main = builder.write("main.c", programs.MAIN)
        return builder.compile(folder / "relocated", main, "-Wl,--no-as-needed", big, library, "-Wl,-rpath,$ORIGIN")

    app = builder.once("relocated", link)
    outcome = surround([app], {"libbig.so": ALL}, patterns="lib*", options=f"backend={backend},verbose=2", backend=backend)
    assert "hugeld: libreloc.so: text stays: it has text relocations\n" in outcome.stderr


@pytest.mark.parametrize("how", [[], ["mremap"]], ids=["copy", "mremap"])
@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_remaps_itself(builder, surround, pool, thp, tool, backend, how):
    pool(64)
    app = builder.once("remap", lambda folder: builder.compile(
        folder / "remap", "-x", "c", tool.source("remap"), "-x", "none", *builder.object(), "-no-pie"))
    outcome = surround([app, *how], {app.name: ALL}, options=f"backend={backend},verbose=1", backend=backend)
    assert (outcome.returncode, outcome.stderr) == (4, "")


def test_node_with_its_own_large_pages(library, pool, thp):
    """node's option looks for its own text in /proc/self/maps and remaps it."""
    node = find_node()
    if not node:
        pytest.skip("needs node")
    pool(128)
    argv = [node, "--use-largepages=on", "-e", "console.log([1, 2, 3].map(x => x * x).join())"]
    plain = helpers.run(argv)
    moved = helpers.run_preloaded(argv, options="backend=hugetlb,verbose=2", library=library)
    assert (moved.returncode, moved.stdout) == (plain.returncode, plain.stdout)
    assert "hugeld: node: text" in moved.stderr and "stays" not in moved.stderr
