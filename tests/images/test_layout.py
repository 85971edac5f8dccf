# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld image: an image has every byte that its original loads, every symbol and section; it runs the same, and its text is mapped
by huge pages from the file.  A file that can have none is refused with a reason, and nothing is left behind."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys

import pytest

import helpers
import layouts
import programs
from objects import PF_X, page_up
from smaps import read_smaps
from stores import make_images

sys.path.append(str(helpers.ROOT / "tests/fuzz"))
import hostile  # noqa: E402  (its folder has just been added)


SMALL = 8192  # a huge page for small files


def make(original, out, *options):
    result = helpers.hugeld("image", *options, "--", original, out)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert os.stat(out).st_mode == os.stat(original).st_mode & ~0o7000
    return out


def refuse(original, out, reason, *options):
    """No image, one line that says why, and nothing left."""
    before = sorted(os.listdir(out.parent)) if out.parent.is_dir() else None
    result = helpers.hugeld("image", *options, "--", original, out)
    assert (result.returncode, result.stdout) == (1, ""), result
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("hugeld: "), result.stderr
    assert reason in result.stderr
    assert before is None or sorted(os.listdir(out.parent)) == before


class Space:
    """A mount namespace of its own with a tmpfs whose files are in huge pages."""

    def __init__(self, folder, options):
        folder.mkdir()
        command = 'mount -t tmpfs -o "$1" none "$2" && echo ready && exec cat'
        self.keeper = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", command, "sh", options, folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ready = self.keeper.stdout.readline() == "ready\n"
        self.folder = folder
        self.outside = pathlib.Path(f"/proc/{self.keeper.pid}/root{folder}")

    def inside(self, *argv):
        return ["nsenter", f"--mount=/proc/{self.keeper.pid}/ns/mnt", "--wd=/", *map(str, argv)]

    def end(self):
        self.keeper.stdin.close()
        self.keeper.wait(timeout=helpers.PATIENCE)


@contextlib.contextmanager
def space(folder, options):
    made = Space(folder, options)
    try:
        if not made.ready:
            pytest.skip(f"no tmpfs with {options} here: {made.keeper.stderr.read()}")
        yield made
    finally:
        made.end()


@pytest.fixture(scope="session")
def tmpfs(tmp_path_factory):
    if os.getuid() != 0:
        pytest.skip("needs root: mounts a tmpfs")
    with space(tmp_path_factory.mktemp("tmpfs") / "images", "huge=always,size=2G,mode=755") as made:
        yield made


def link(builder, name, *arguments):
    """The program of tests/system, linked by ARGUMENTS."""
    return builder.once(name, lambda folder: builder.compile(
        folder / name, builder.write("main.c", programs.MAIN), *builder.object(), *arguments))


OTHERS = {
    "static": ["-static"],
    "static-pie": ["-static-pie", "-fPIE"],
    "mold": ["-pie", "-fuse-ld=mold"],
    "mold-nopie": ["-no-pie", "-fuse-ld=mold"],
    "gold": ["-pie", "-fuse-ld=gold"],
    "lld-nopie": ["-no-pie", "-fuse-ld=lld"],
    "lld-separate": ["-pie", "-fuse-ld=lld", "-Wl,-z,separate-code"],
    "lld-separate-loadable": ["-no-pie", "-fuse-ld=lld", "-Wl,-z,separate-loadable-segments"],
    "lld-separate-2m": ["-pie", "-fuse-ld=lld", "-Wl,-z,separate-loadable-segments,-z,max-page-size=0x200000"],
    "high": ["-no-pie", "-Wl,-Ttext-segment=0x681000"],
    "aligned-more": ["-pie", "-Wl,-z,max-page-size=0x1000000"],
    "packed": ["-pie", "-Wl,-z,pack-relative-relocs"],
}
FEW = ["nopie", "pie", "aligned", "norosegment", "six", "hole-pie", "static-pie", "high", "dso", "dso-six", "dso-norosegment"]


def in_check(names):
    """`make check` leaves all but FEW to CI."""
    return [name if name in FEW else pytest.param(name, marks=pytest.mark.check_all(ci=True)) for name in names]


EXECUTABLES = in_check([*programs.EXECUTABLES, *OTHERS])
LIBRARIES = in_check([name for name in programs.LIBRARIES if name != "dso-textrel"])


def executable(builder, variant):
    if variant in OTHERS:
        if "mold" in variant and not shutil.which("mold"):
            pytest.skip("mold is not installed")
        return link(builder, f"app-{variant}", *OTHERS[variant])
    return builder.executable(variant)


def exec_mappings(pid, name):
    return [m for m in read_smaps(pid) if m.name == str(name) and "x" in m.permissions]


def whole_pages(mapping):
    return max(0, mapping.end // helpers.HUGE - -(-mapping.start // helpers.HUGE)) * helpers.HUGE


def run_and_look(argv, name):
    """The lines that the program prints before it sleeps, and the mappings of NAME's text then."""
    process = helpers.start([*argv, "wait", "x"])
    try:
        lines = []
        while not lines or not lines[-1].startswith("break"):
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
        return lines, exec_mappings(process.pid, name)
    finally:
        helpers.end_process(process)


def without_loads(lines):
    """An executable's image may have fewer PT_LOADs, and dl_iterate_phdr shows them."""
    return [line for line in lines if not line.startswith("loads ")]


def check_huge(mappings):
    assert sum(map(whole_pages, mappings)) >= 2 * helpers.HUGE
    for mapping in mappings:
        assert mapping.kb["ShmemPmdMapped"] * 1024 == whole_pages(mapping), mapping


# --- the same bytes, the same runs, on huge pages ---


@pytest.mark.parametrize("variant", EXECUTABLES)
def test_executable(builder, tmpfs, variant):
    app = executable(builder, variant)
    image = tmpfs.outside / app.name
    make(app, image)
    layouts.check_image(app, image)
    layouts.check_tools(app, image)
    plain, _ = run_and_look([app], app)
    lines, mappings = run_and_look(tmpfs.inside(tmpfs.folder / app.name), tmpfs.folder / app.name)
    assert without_loads(lines) == without_loads(plain)
    check_huge(mappings)
    assert helpers.run(tmpfs.inside(tmpfs.folder / app.name)).returncode == helpers.run([app]).returncode == 3
    image.unlink()


@pytest.mark.parametrize("variant", LIBRARIES)
def test_library(builder, tmpfs, variant):
    app, (library,) = builder.with_library(variant)
    small, image, soname = (tmpfs.outside / name for name in (app.name, library.name, f"{library.name}.1"))
    make(library, image)
    layouts.check_image(library, image)
    layouts.check_tools(library, image)
    shutil.copy(app, small)
    soname.symlink_to(library.name)
    plain, _ = run_and_look([app], app)
    lines, mappings = run_and_look(tmpfs.inside(tmpfs.folder / app.name), tmpfs.folder / library.name)
    assert lines == plain
    check_huge(mappings)
    for path in (small, image, soname):
        path.unlink()


def split(elf, number, *offsets, flags=None):
    """Splits the PT_LOAD with NUMBER at OFFSETS of the file; its first part gets FLAGS.  It takes PT_NOTEs for that."""
    at = elf.phdr.index(elf.loads()[number])
    for offset in offsets:
        first, second = dict(elf.phdr[at]), elf.phdr[at]
        if flags is not None and offset == offsets[0]:
            first["flags"] = flags
        head = offset - first["offset"]
        first["filesz"] = first["memsz"] = head
        for field, step in (("offset", head), ("vaddr", head), ("paddr", head), ("filesz", -head), ("memsz", -head)):
            second[field] += step
        note = next(i for i, ph in enumerate(elf.phdr) if ph["type"] == hostile.PT_NOTE)
        del elf.phdr[note]
        at -= note < at
        elf.phdr.insert(at, first)
        at += 1


def shorten(elf):
    elf.loads()[0].update(filesz=64 + 56 * elf.phnum, memsz=64 + 56 * elf.phnum)


# What patchelf 0.14 to 0.17 makes.  The text is the second PT_LOAD, read-only data the third.
PATCHED = {
    "a section across two": lambda elf: split(elf, 1, 0x301000),
    "two in a page": lambda elf: split(elf, 1, 0x301338),
    "three in a page": lambda elf: split(elf, 1, 0x301238, 0x301300),
    "data and read-only data in a page": lambda elf: split(elf, 2, elf.loads()[2]["offset"] + 0x1338, flags=6),
    "sections in the padding": shorten,
}


@pytest.fixture(params=["pie", pytest.param("nopie", marks=pytest.mark.check_all(ci=True))])
def patched(request, builder, tmp_path):
    """patched(shape): a program of that shape."""
    def patch(shape):
        elf = hostile.Elf(builder.executable(request.param).read_bytes())
        PATCHED[shape](elf)
        app = tmp_path / "app"
        app.write_bytes(elf.pack())
        app.chmod(0o755)
        return app

    return patch


@pytest.mark.parametrize("shape", PATCHED)
def test_patched(patched, tmpfs, shape):
    """It runs the same from its image, with its text on huge pages, and inspect finds its text."""
    app = patched(shape)
    image = make(app, tmpfs.outside / "app")
    layouts.check_image(app, image)
    plain, _ = run_and_look([app], app)
    lines, mappings = run_and_look(tmpfs.inside(tmpfs.folder / "app"), tmpfs.folder / "app")
    assert without_loads(lines) == without_loads(plain)
    check_huge(mappings)
    [file] = helpers.hugeld_json("inspect", app)["files"]
    assert file["text_bytes"] >= 4 * helpers.HUGE and file["plan"]["text_share"] > 0, file
    image.unlink()


@pytest.mark.parametrize("way", ["stripped", "no-sections", "debug"])
def test_sections(builder, tmpfs, tmp_path, way):
    """Programs without symbols, without any section, with DWARF."""
    app = tmp_path / "app"
    shutil.copy(builder.executable("pie"), app)
    if way == "stripped":
        subprocess.run(["strip", app], check=True)
    elif way == "no-sections":
        elf = layouts.Elf(app)
        data = bytearray(elf.bytes(0, max(ph.offset + ph.filesz for ph in elf.loads)))
        data[0x28:0x30], data[0x3C:0x40] = bytes(8), bytes(4)
        app.write_bytes(data)
    else:
        builder.compile(app, builder.write("main.c", programs.MAIN), *builder.object(), "-g3")
        assert b".debug_info" in app.read_bytes()
    image = make(app, tmpfs.outside / "app")
    layouts.check_image(app, image)
    layouts.check_tools(app, image)
    plain, _ = run_and_look([app], app)
    lines, mappings = run_and_look(tmpfs.inside(tmpfs.folder / "app"), tmpfs.folder / "app")
    assert without_loads(lines) == without_loads(plain)
    check_huge(mappings)


def refuse_to_share(app, store, reason):
    """No image gets into the STORE, and one line says why."""
    before = set(os.listdir(store)) | {".lock", ".records"}
    result = make_images(store, app, way="image")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result
    assert reason in result.stderr and set(os.listdir(store)) <= before, result


def test_no_store_takes_what_no_process_takes(builder, tmp_path, own_store):
    """A store takes no image with more than 64 program headers, since no process reads more."""
    app = tmp_path / "app"
    app.write_bytes(hostile.many_headers(builder.executable("pie").read_bytes(), 65))
    app.chmod(0o755)
    refuse_to_share(app, own_store, "no process would take its image")


GIB = 1 << 30


def check_not_recommended(images, path, reason):
    """No store takes an image of PATH, for REASON, and inspect knows it."""
    [file] = helpers.hugeld_json("inspect", "-o", images.options(), path)["files"]
    assert file["verdict"]["way"] != "image" and file["image"]["reason"] == reason, file
    refuse_to_share(path, images.folder, file["image"]["sentence"])


def test_holes_are_no_image(builder, tmp_path, images, own_store):
    """An image in a store has no holes, so one that would be mostly holes is refused, and nobody recommends it."""
    _, (library,) = builder.with_library("dso")
    elf = hostile.Elf(library.read_bytes())
    elf.loads()[-1]["vaddr"] += GIB
    changed = tmp_path / "library.so"
    changed.write_bytes(elf.pack())
    check_not_recommended(images, changed, "too-sparse")


def test_little_text_is_not_recommended(builder, tmp_path, images):
    """A library of 3 MiB, of which 528 KiB are text."""
    source = tmp_path / "little.s"
    source.write_text('.text\n.fill 0x84000, 1, 0x90\n.section .rodata\n.fill 0x280000, 1, 1\n')
    library = builder.compile(tmp_path / "little.so", source, "-shared", "-nostdlib")
    [file] = helpers.hugeld_json("inspect", "-o", images.options(), library)["files"]
    assert file["text_bytes"] == 0x84000 and file["verdict"]["way"] in ("nothing", "in-place"), file


ARM_TEXT = r"""
    int main(int argc, char **argv) { (void)argv; return argc; }
    int filled = 4711, zero[100000];
    __asm__(".text\n.p2align 12\nlarge:\n.fill %d, 4, 0xd503201f\n");
    """


SEPARATE = "-Wl,-z,separate-code"


@pytest.mark.parametrize("arguments", [["-pie", SEPARATE], ["-no-pie", SEPARATE], ["-shared", "-fPIC"], ["-static"]],
                         ids=lambda a: a[0])
def test_aarch64(builder, tmp_path, arguments):
    compiler = "gcc" if os.uname().machine == "aarch64" else "aarch64-linux-gnu-gcc"
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / "arm.c"
    source.write_text(ARM_TEXT % 2_000_000)
    app = builder.compile(tmp_path / "app", source, *arguments, compiler=compiler)
    image = layouts.check_image(app, make(app, tmp_path / "image"))
    assert SEPARATE not in arguments or layouts.check_traps(layouts.Elf(app), image, layouts.base_of(image), helpers.HUGE) > 0
    layouts.check_tools(app, tmp_path / "image")
    # A kernel with pages of 16 KiB has huge ones of 32 MiB.
    refuse(app, tmp_path / "none", "no whole huge page lies inside", "--huge-page=32M")
    layouts.check_image(app, make(app, tmp_path / "image", "--huge-page=1M"), 1 << 20)


# --- refusals ---


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A program of some pages, which has an image of small huge pages."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "a.c").write_text('int puts(const char *);\nint main(void) { return puts("x") < 0; }\n'
                                '__asm__(".text\\n.p2align 12\\n.fill 14000, 1, 0x90\\n");')
    subprocess.run(["gcc", "-g", "-o", folder / "small", folder / "a.c"], check=True)
    return folder / "small"


def test_reasons(builder, small, tmp_path):
    app, out = builder.executable("pie"), tmp_path / "out"
    data = small.read_bytes()
    options = [f"--huge-page={SMALL}"]
    layouts.check_image(small, make(small, out, *options), SMALL)
    out.unlink()

    def changed(name, bytes_):
        path = tmp_path / name
        path.write_bytes(bytes_)
        return path

    refuse(builder.tiny(), out, "no whole huge page lies inside")
    _, (textrel,) = builder.with_library("dso-textrel")
    refuse(textrel, out, "text relocations")
    refuse(changed("appended", data + b"PK"), out, "other data (appended", *options)
    layouts.check_image(changed("zeros", data + bytes(1000)), make(tmp_path / "zeros", out, *options), SMALL)
    out.unlink()
    swapped = dict(hostile.shapes(data))["unsorted"]
    refuse(changed("unsorted", swapped), out, "program headers contradict each other", *options)
    elf = hostile.Elf(data)
    elf.loads()[-1]["vaddr"] += 1 << 40
    refuse(changed("sparse", elf.pack()), out, "its segments lie too far apart", *options)
    elf = hostile.Elf(data)
    elf.loads()[-1]["offset"] += 8
    refuse(changed("not-congruent", elf.pack()), out, "program headers contradict each other", *options)
    elf = hostile.Elf(hostile.many_headers(data, 60))
    for i, ph in enumerate(elf.phdr[elf.phnum - 40 :]):
        ph.update(type=1, flags=4, vaddr=0x10000000 + i * 0x1000, offset=0, filesz=1, memsz=1, align=0x1000)
    refuse(changed("many", elf.pack()), out, "more than 32 PT_LOADs", *options)
    no_sections = bytearray(data)
    no_sections[0x28:0x30], no_sections[0x3C:0x40] = bytes(8), bytes(4)
    refuse(changed("no-sections", bytes(no_sections)), out, "other data (appended", *options)
    past = bytearray(data)
    struct.pack_into("<Q", past, 0x28, len(data) - 64)
    refuse(changed("past-the-end", bytes(past)), out, "cannot be read to the end", *options)
    assert app.exists() and not out.exists()


PT_GNU_STACK = 0x6474E551


# How programs carry data for themselves, which they find by an offset that was recorded when they were built.
@pytest.mark.parametrize("section", ["pydata", "pck", ".bun", ".payload", ".note.data", ".llvm.data", ".comment.x"])
def test_data_in_a_section(small, tmp_path, section):
    """PyInstaller, Godot and Bun keep their data in a section that is not loaded."""
    (tmp_path / "data").write_bytes(b"what the program reads" * 100)
    app = tmp_path / "app"
    subprocess.run(["objcopy", "--add-section", f"{section}={tmp_path / 'data'}", small, app], check=True)
    refuse(app, tmp_path / "out", "other data (appended, or in a section)", f"--huge-page={SMALL}")


@pytest.mark.parametrize("change", [{"flags": 2}, {"type": 7}, {"type": 3}, {"type": 4}, {"type": 2}, {"type": 17}])
def test_data_in_a_section_that_claims_to_be_another(small, tmp_path, change):
    """Neither SHF_ALLOC nor a type makes the section a loaded one, or one that is found by the section headers."""
    (tmp_path / "data").write_bytes(b"what the program reads" * 100)
    app = tmp_path / "app"
    subprocess.run(["objcopy", "--add-section", f"pydata={tmp_path / 'data'}", small, app], check=True)
    data = bytearray(app.read_bytes())
    shoff, = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    strings, = struct.unpack_from("<Q", data, shoff + 64 * names + 24)
    [at] = [shoff + 64 * i for i in range(count)
            if data[strings + struct.unpack_from("<I", data, shoff + 64 * i)[0]:].startswith(b"pydata\0")]
    if "type" in change:
        struct.pack_into("<I", data, at + 4, change["type"])
    else:
        struct.pack_into("<Q", data, at + 8, change["flags"])
    app.write_bytes(data)
    refuse(app, tmp_path / "out", "other data (appended, or in a section)", f"--huge-page={SMALL}")


def test_data_behind_a_program_header(small, tmp_path):
    """A program header that is not loaded covers nothing."""
    data = bytearray(small.read_bytes())
    where = -(-len(data) // 16) * 16
    data += bytes(where - len(data)) + b"what the program reads" * 100
    phoff, = struct.unpack_from("<Q", data, 32)
    count, = struct.unpack_from("<H", data, 56)
    [at] = [phoff + 56 * i for i in range(count) if struct.unpack_from("<I", data, phoff + 56 * i)[0] == PT_GNU_STACK]
    struct.pack_into("<IIQQQQQQ", data, at, 0x6abcdef0, 4, where, 0, 0, 2200, 0, 16)
    (tmp_path / "app").write_bytes(data)
    refuse(tmp_path / "app", tmp_path / "out", "other data (appended", f"--huge-page={SMALL}")


@pytest.mark.parametrize("kind", ["-pie", "-no-pie"])
def test_moved_program_headers(builder, tmp_path, kind):
    """The program headers lie in another page, as llvm-bolt puts them.  Debuggers need the file's headers for an object that is not
    where it was linked."""
    app, out = tmp_path / "app", tmp_path / "out"
    source = tmp_path / "app.c"
    source.write_text("const char room[4096] = {1};\nint main(void) { return room[1]; }\n")
    builder.compile(app, source, kind)
    layouts.move_headers(app, app.read_bytes().index(bytes(4000)) + 8 & -8)
    if kind == "-pie":
        refuse(app, out, "its program headers are not at its beginning", f"--huge-page={SMALL}")
    else:
        layouts.check_image(app, make(app, out, f"--huge-page={SMALL}"), SMALL)


@pytest.mark.parametrize("section", [".debug_info", ".comment", ".gnu_debuglink", ".rustc", ".note.stapsdt", ".gnu.warning", ".gnu.warning.f"])
def test_data_of_compilers(small, tmp_path, section):
    """Compilers' data is found by the section headers, which the image has, too."""
    (tmp_path / "data").write_bytes(b"what a debugger reads" * 100)
    app, out = tmp_path / "app", tmp_path / "out"
    subprocess.run(["objcopy", "--remove-section", section, "--add-section", f"{section}={tmp_path / 'data'}", small, app], check=True)
    layouts.check_image(app, make(app, out, f"--huge-page={SMALL}"), SMALL)


@pytest.mark.parametrize("trailer", ["at once", "at a page", "zip"])
def test_data_at_the_end(small, tmp_path, trailer):
    """Deno, AppImage and self-extracting archives have data at the end, also behind padding."""
    data = small.read_bytes()
    padding = {"at once": b"", "at a page": bytes(-len(data) % 4096 + 8192), "zip": b"PK\3\4" + bytes(70000)}[trailer]
    (tmp_path / "app").write_bytes(data + padding + b"d3n0l4nd")
    refuse(tmp_path / "app", tmp_path / "out", "other data (appended", f"--huge-page={SMALL}")


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    """A program whose segments have pages between them in the file: (path, the end of its text there, the begin of what follows)."""
    folder = tmp_path_factory.mktemp("spread")
    (folder / "a.c").write_text('int puts(const char *);\nint main(void) { return puts("x") < 0; }\n'
                                '__asm__(".text\\n.p2align 12\\n.fill 14000, 1, 0x90\\n");')
    subprocess.run(["gcc", "-Wl,-z,separate-code,-z,max-page-size=0x10000", "-o", folder / "spread", folder / "a.c"], check=True)
    loads = layouts.Elf(folder / "spread").loads
    text = next(ph for ph in loads if ph.flags & PF_X)
    end, following = text.offset + text.filesz, loads[loads.index(text) + 1].offset
    assert page_up(end) - end > 16 and following >= page_up(end) + 2 * helpers.PAGE
    return folder / "spread", end, following


def put(original, changed, at, what):
    data = bytearray(original.read_bytes())
    data[at:at + len(what)] = what
    changed.write_bytes(data)
    changed.chmod(0o755)


def test_data_between_segments(spread, tmp_path):
    """A few bytes other than zero between segments count as data."""
    original, end, _ = spread
    put(original, tmp_path / "app", page_up(end), b"data")
    refuse(tmp_path / "app", tmp_path / "out", "other data (appended", f"--huge-page={SMALL}")


def test_traps_between_segments(spread, tmp_path):
    """lld fills the end of the text with trap instructions up to its p_align."""
    if os.uname().machine != "x86_64":
        pytest.skip("the test's traps are those of x86-64")
    original, end, following = spread
    put(original, tmp_path / "app", end, b"\xcc" * (following - end))
    layouts.check_image(tmp_path / "app", make(tmp_path / "app", tmp_path / "out", f"--huge-page={SMALL}"), SMALL)


@pytest.mark.parametrize("where", ["behind", "before"])
def test_padding_of_a_page(spread, tmp_path, where):
    """The rest of the first and of the last page of a segment is padding, whatever it holds: it is mapped, and in the image, too."""
    original, end, following = spread
    head = layouts.Elf(original).loads[-1].offset % helpers.PAGE  # the data's
    assert head > 8
    at = end if where == "behind" else layouts.Elf(original).loads[-1].offset - 8
    put(original, tmp_path / "app", at, b"padding.")
    image = layouts.check_image(tmp_path / "app", make(tmp_path / "app", tmp_path / "out", f"--huge-page={SMALL}"), SMALL)
    assert b"padding." in image.data
    assert helpers.run([tmp_path / "out"]).stdout == "x\n"


def test_section_in_the_padding(spread, tmp_path):
    """What a section names is no padding."""
    original, end, _ = spread
    put(original, tmp_path / "app", end, b"what the program reads"[:8])
    data = bytearray((tmp_path / "app").read_bytes())
    elf = layouts.Elf(original)
    strings = elf.shdrs[elf.header[-1]].offset
    [at] = [elf.shoff + 64 * i for i, sh in enumerate(elf.shdrs) if data[strings + sh.name:].startswith(b".comment\0")]
    struct.pack_into("<I", data, at, struct.unpack_from("<I", data, at)[0] + 1)  # "comment"
    struct.pack_into("<QQ", data, at + 24, end, 8)
    (tmp_path / "app").write_bytes(data)
    refuse(tmp_path / "app", tmp_path / "out", "or in a section", f"--huge-page={SMALL}")


def test_padding_is_not_last(small, tmp_path):
    """In a file without section headers, what follows the last segment in its page is appended data."""
    data = bytearray(small.read_bytes())
    last = max(layouts.Elf(small).loads, key=lambda ph: ph.offset)
    data[last.offset + last.filesz:] = b"what the program reads"
    data[0x28:0x30], data[0x3C:0x40] = bytes(8), bytes(4)
    assert (last.offset + last.filesz) % helpers.PAGE
    (tmp_path / "app").write_bytes(data)
    refuse(tmp_path / "app", tmp_path / "out", "other data (appended", f"--huge-page={SMALL}")


def test_no_program(tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "empty").write_bytes(b"")
    out = tmp_path / "out"
    refuse(tmp_path / "script", out, "is a script")
    refuse(tmp_path / "empty", out, "is empty")
    refuse(tmp_path, out, "is no regular file")
    refuse("/dev/null", out, "is no regular file")
    refuse(tmp_path / "none", out, "No such file")


def test_out(builder, tmp_path):
    """Which files OUT may replace, and that the old one stays if it cannot be put there."""
    app, out = builder.executable("pie"), tmp_path / "out"
    out.mkdir()
    refuse(app, out, "is no regular file")
    out.rmdir()
    os.mkfifo(out)
    refuse(app, out, "is no regular file")
    out.unlink()
    out.symlink_to("elsewhere")
    refuse(app, out, "is no regular file")
    out.unlink()
    refuse(app, tmp_path / "none/out", "No such file")
    refuse(app, app, "is the file to read")
    os.link(app, out)
    refuse(app, out, "is the file to read")
    out.unlink()
    out.write_text("older")
    make(app, out)
    layouts.check_image(app, out)
    assert os.listdir(tmp_path) == ["out"]


def test_mode(builder, tmp_path):
    app = tmp_path / "app"
    shutil.copy(builder.executable("pie"), app)
    for mode in (0o6755, 0o700, 0o4511, 0o644):
        app.chmod(mode)
        make(app, tmp_path / "out")


def test_ended_by_signal(builder, strace, tmp_path):
    """Nothing is left if a signal ends it while it writes."""
    app = builder.executable("pie")
    trace = ["strace", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", "inject=pwrite64:signal=TERM:when=9"]
    result = helpers.run([*trace, helpers.HUGELD, "image", app, tmp_path / "out"])
    assert result.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), result
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["ftruncate", "pwrite64", "fchmod", "rename", "pread64"])
def test_call_fails(builder, strace, tmp_path, call):
    app = builder.executable("pie")
    for when in (1, 9) if call == "pwrite64" else (12,) if call == "pread64" else (1,):
        out = tmp_path / "out"
        result = helpers.run([*strace(call, "EIO", when), helpers.HUGELD, "image", app, out])
        assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result
        assert re.search("Input/output error|cannot be read to the end", result.stderr)
        assert os.listdir(tmp_path) == []
