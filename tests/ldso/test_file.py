# SPDX-License-Identifier: LGPL-2.1-or-later
"""backend=file: text stays the file's, in huge pages of the page cache that all processes share; nothing is copied."""

import mmap
import os
import pathlib
import re
import shutil
import tempfile

import pytest

import helpers
import programs
from hugepages import compact_memory, free_pages
from linked import by_run
from objects import PF_X, PT_LOAD, page_up, read_headers
from smaps import read_smaps
from test_ldso_moving import text_of

ON_FILE = "hugeld: libbig.so.1: text 3 pages file"
SMALL = "text stays: the kernel keeps its file on small pages"
TRIES = 3  # where other tests have left no huge page free just then
KERNEL = tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups()))


def huge_file_bytes(mapping):
    return (mapping.kb["FilePmdMapped"] + mapping.kb["ShmemPmdMapped"]) * 1024


@pytest.fixture
def on_tmpfs(builder):
    """The program with the large library in a folder on tmpfs."""
    app, _ = builder.with_library("dso")
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no tmpfs on /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        copy = pathlib.Path(folder) / "copy"
        shutil.copytree(app.parent, copy, symlinks=True)
        yield copy / app.name


def check(linked, app, library):
    """LIBRARY's text is on huge pages of its file, and on no other's: the file itself is still mapped."""
    free = free_pages()
    with linked.paused([app], "libbig*", "backend=file,segments=text") as process:
        mappings = read_smaps(process.pid)
        start, end = text_of(library, mappings)
        text = [m for m in mappings if m.start < end and m.end > start]
        assert {m.name for m in text} == {str(library)} and all(m.inode for m in text)
        assert {m.permissions for m in text} == {"r-xp"}
        assert sum(map(huge_file_bytes, text)) == 3 * helpers.HUGE
        assert sum(m.kb["Anonymous"] for m in text) == 0
        assert free_pages() == free
        [told] = [o for o in helpers.hugeld_json("status", str(process.pid))["processes"][0]["objects"]
                  if o["path"] == str(library)]
        assert told["backends"] == {"hugetlb_pages": 0, "thp_pages": 0, "image_pages": 0, "file_pages": 3}
        assert told["file_pmd_bytes"] == told["text_huge_bytes"] == 3 * helpers.HUGE
        return process.finish()


@pytest.mark.check_all
def test_tmpfs(linked, on_tmpfs, thp):
    library = on_tmpfs.parent / "libbig.so"
    plain = helpers.run([on_tmpfs])
    for _ in range(2):
        assert check(linked, on_tmpfs, library)[:2] == (plain.returncode, plain.stdout)
    assert linked.run([on_tmpfs], "libbig*", "backend=file,segments=text,verbose=2").stderr.startswith(ON_FILE)


@pytest.fixture(params=["ext4", "xfs"])
def disk(request, tmp_path, root):
    """(a folder on this file system, a function that empties its page cache)."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(320 << 20)  # xfs wants 300 MiB
    if not shutil.which(f"mkfs.{request.param}"):
        pytest.skip(f"mkfs.{request.param} is not installed")
    assert helpers.run([f"mkfs.{request.param}", "-q", image]).returncode == 0
    done = helpers.run(["mount", "-o", "loop", image, folder])
    if done.returncode != 0:
        pytest.skip(f"cannot mount: {done.stderr}")

    def empty():
        mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()  # which is free then
        compact_memory()  # the kernel's read-ahead takes free huge pages
        for command in (["umount", folder], ["mount", "-o", "loop", image, folder]):
            assert helpers.run(command).returncode == 0

    yield folder, empty
    helpers.run(["umount", folder])


@pytest.mark.check_all
def test_disk(linked, builder, disk, thp):
    """The page cache of the disk is empty: Linux 6.18 reads into huge pages, others say why not."""
    folder, empty = disk
    app, _ = builder.with_library("dso")
    plain = helpers.run([app])
    copy = pathlib.Path(shutil.copytree(app.parent, folder / "copy", symlinks=True))
    for _ in range(TRIES):
        empty()
        done = linked.run([copy / app.name], "libbig*", "backend=file,segments=text,verbose=2")
        assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
        if not done.stderr.startswith(f"hugeld: libbig.so.1: {SMALL}"):
            break
        if KERNEL < (6, 18):
            return
    assert done.stderr.startswith(ON_FILE)
    assert check(linked, copy / app.name, copy / "libbig.so")[:2] == (plain.returncode, plain.stdout)


def test_two_processes_share(linked, on_tmpfs, thp):
    library = on_tmpfs.parent / "libbig.so"
    with linked.paused([on_tmpfs], "libbig*", "backend=file"), \
            linked.paused([on_tmpfs], "libbig*", "backend=file") as second:
        huge = [m for m in read_smaps(second.pid) if m.name == str(library) and huge_file_bytes(m)]
        assert huge and all(m.kb["Pss"] * 2 <= m.kb["Rss"] + 8 for m in huge)


def test_file_on_small_pages(linked, builder, thp):
    """A file that is cached on small pages already: it stays there, the reason is told, and the program runs."""
    app, [library] = builder.with_library("dso")
    library.read_bytes()
    plain = helpers.run([app])
    done = linked.run([app], "libbig*", "backend=file,segments=text,verbose=2")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr.startswith((ON_FILE, f"hugeld: libbig.so.1: {SMALL}"))


def test_address_of_the_kernel(linked, builder, thp):
    """An executable that the kernel mapped lies where the kernel put it."""
    app = builder.executable("pie")
    sentence = "hugeld: app-pie: text stays: its address is not congruent with its offset in the file"
    told = [linked.run([app], "main", "backend=file,segments=text,verbose=1") for _ in range(3)]
    assert all(done.returncode == 3 for done in told)
    assert any(done.stderr.startswith(sentence) for done in told)  # one in 512 addresses does


# Small pages of text more or less than two huge ones, and how many huge pages are all mapped then.
SIZES = {-1: 1, 0: 2, 1: 2, 256: 2}
ALIGNED = ["-Wl,-z,max-page-size=0x200000", "-Wl,-z,separate-code"]


def link_sized(builder, folder, name, pages, *arguments):
    """NAME in FOLDER, linked at 2 MiB, with text of two huge pages and PAGES."""
    def link(bytes_):
        source.write_text(f'.section .text.z, "ax", @progbits\n.fill {bytes_}, 1, 0xcc\n'
                          '.section .note.GNU-stack, "", @progbits\n')
        path = builder.compile(folder / name, *arguments, source, *ALIGNED)
        [text] = [h for h in read_headers(path) if h.type == PT_LOAD and h.flags & PF_X]
        return path, text.memory_bytes

    source = folder / "fill.s"
    wanted = 2 * helpers.HUGE + pages * helpers.PAGE
    path, bytes_ = link(wanted - link(0)[1] - 64)
    assert page_up(bytes_) == wanted
    return path


@pytest.fixture(scope="module")
def sized(builder):
    """A folder with programs of each size: (program, the pattern, the file with the text, its huge pages)."""

    def make(folder):
        main, empty = builder.write("tiny.c", programs.TINY), builder.write("empty.c", "")
        found = []
        for pages, huge in SIZES.items():
            for mode in ("-no-pie", "-pie"):
                app = link_sized(builder, folder, f"text{mode}{pages}", pages, main, mode)
                found.append((app, "main", app, huge))
            name = f"libtext{pages}.so"
            library = link_sized(builder, folder, name, pages, "-shared", f"-Wl,-soname,{name}", empty)
            app = builder.compile(folder / f"with{pages}", main, "-Wl,--no-as-needed", library, "-Wl,-rpath,$ORIGIN")
            found.append((app, library.name, library, huge))
        return folder, found

    return builder.once("sized", make)


def check_sizes(linked, sized, copy, prefix=(), empty=None):
    """In the folder COPY, which only a process behind PREFIX may see, the prediction of inspect comes true; EMPTY() is for another
    try. If that does not help, the line says that the kernel keeps one on small pages, but not all."""
    served = 0
    for app, named, file, pages in sized:
        [inspected] = helpers.hugeld_json("inspect", "-o", "backend=file", file)["files"]
        assert inspected["plan"]["pages"] == pages, file
        assert "range" not in inspected or inspected["range"]["pages_min"] == inspected["range"]["pages_max"] == pages
        assert not any("max-page-size" in (s["remedy"] or "") for s in inspected["plan"]["segments"])
        command = [*prefix, *by_run(linked.ldso, named, "backend=file,verbose=2", [copy / app.name])]
        told = f"hugeld: {file.name}: text {pages} page{'s' * (pages > 1)} file\n"
        for _ in range(TRIES):
            with helpers.paused(command, linked.environment(None, None, [linked.pause]), app.name) as process:
                text = [m for m in read_smaps(process.pid) if m.permissions == "r-xp" and m.name.endswith(f"/{file.name}")]
                huge = sum(map(huge_file_bytes, text))
                result = process.finish()
            if empty is None or SMALL not in result[2]:
                break
            empty()
        if empty is not None and SMALL in result[2]:
            assert (result[:2], result[2].count("\n"), huge) == ((4, "tiny\n"), 1, 0), file
            continue
        assert result == (4, "tiny\n", told)
        assert huge == pages * helpers.HUGE, file
        served += 1
    assert served > 0


@pytest.mark.check_all
@pytest.mark.parametrize("huge", [pytest.param("never", marks=pytest.mark.check_all), "always"])
def test_sizes_on_tmpfs(linked, sized, tmp_path, root, thp, huge):
    folder, found = sized
    script = f'mount -t tmpfs -o huge={huge} none {tmp_path} && cp {folder}/* {tmp_path}/ && exec "$@"'
    prefix = ["unshare", "--mount", "/bin/sh", "-c", script, "sh"]
    if helpers.run([*prefix, "true"]).returncode != 0:
        pytest.skip(f"no tmpfs with huge={huge} here")
    check_sizes(linked, found, tmp_path, prefix)


@pytest.mark.check_all
def test_sizes_on_disk(linked, sized, disk, thp):
    if KERNEL < (6, 18):
        pytest.skip("before Linux 6.18 files on a disk have no huge pages")
    folder, empty = disk
    copy = pathlib.Path(shutil.copytree(sized[0], folder / "sized"))
    empty()
    check_sizes(linked, sized[1], copy, empty=empty)


def test_preloader_says_no(builder):
    done = helpers.run_preloaded([builder.tiny()], options="backend=file")
    assert done.stderr == "hugeld: LD_HUGEPAGES_OPTIONS: backend=file: needs the patched linker; ignored\n"
