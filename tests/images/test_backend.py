# SPDX-License-Identifier: LGPL-2.1-or-later
"""backend=image: text and read-only data are mapped from an image, one copy for every process; and an image that is not
certain to be one of the file that is mapped is not used."""

import os
import re
import shutil
import subprocess
import sys

import pytest

import helpers
from hugepages import free_pages
from objects import PF_X, read_headers
from pagecache import on_small_pages
from smaps import read_smaps
from stores import Store, is_image


READ_ONLY = ("text", "rodata")


@pytest.fixture
def own(builder, tmp_path):
    """own(path): a copy of PATH that the test may change."""

    def copy(path):
        there = tmp_path / os.path.basename(path)
        shutil.copy(path, there)
        on_small_pages(there)
        return there

    return copy


@pytest.fixture
def moved(images, library):
    """moved(argv, ...): runs ARGV with backend=image; its result, and the kinds that came from an image."""

    def run(argv, patterns="main", options="", plain=None, **changes):
        result = helpers.run_preloaded(argv, patterns, images.options("verbose=3", *filter(None, [options])), library, **changes)
        assert result.stdout == helpers.run(plain or argv).stdout, result.stderr
        return result, set(re.findall(r" (text|rodata) \d+ pages? image$", result.stderr, re.M))

    return run


# --- its effects ---


@pytest.mark.parametrize("variant", ["nopie", "aligned", "aligned-pie", "six", "hole", "lazy"])
def test_executable(images, builder, prove, variant):
    app = builder.executable(variant)
    images.add(app)
    proof = prove([app], {app.name: READ_ONLY}, "main", images.options("data=off"), backend="image")
    assert proof.plans[app.name].pages("text") >= 3 and proof.plans[app.name].pages("rodata") >= 1


@pytest.mark.parametrize("variant", ["dso-aligned", "dso-hole", "dso-six"])
def test_library(images, builder, library, variant):
    """A library that is not linked at 2 MiB lies where the kernel puts it: its image is used there, or the reason says why not."""
    app, [dso] = builder.with_library(variant)
    images.add(dso)
    result = helpers.run_preloaded([app], "libbig*", images.options("verbose=2"), library)
    assert result.stdout == helpers.run([app]).stdout
    mapped = re.search(r"libbig.so.1: text \d+ pages image, rodata \d+ pages? image", result.stderr)
    assert mapped or ("does not fit its image" in result.stderr and variant != "dso-aligned"), result.stderr


def read_all(pid):
    """(bytes of shared mappings that are resident, those by huge pages) of PID."""
    inside = [m for m in read_smaps(pid) if is_image(m.name)]
    return sum(m.kb["Rss"] for m in inside), sum(m.kb["ShmemPmdMapped"] for m in inside), sum(m.kb["Pss"] for m in inside)


def test_touched_by_two(images, builder, library):
    """All of it is on huge pages when all was used, but for the one with the ELF header, and a second process shares them."""
    app = builder.executable("nopie")
    images.add(app)
    env = helpers.preload(library, patterns="main", options=images.options())
    starts = [helpers.start([app, "wait", "x"], env) for _ in range(2)]
    try:
        for process in starts:
            helpers.wait_until(lambda: "break" in process.stdout.readline(), what="its last line")
        (rss, huge, pss), other = (read_all(p.pid) for p in starts)
        assert rss - huge in (0, (helpers.HUGE - helpers.PAGE) // 1024) and huge >= 10 * 1024 and other[:2] == (rss, huge)
        assert pss <= 0.51 * rss
    finally:
        for process in starts:
            helpers.end_process(process)


def test_auto_takes_the_image_first(images, builder, pool, prove):
    """...and nothing of the pool."""
    pool(32)
    app = builder.executable("nopie")
    images.add(app)
    prove([app], {app.name: READ_ONLY}, "main", f"data=off,store={images.folder}", backend="image")
    assert free_pages() == 32


def test_auto_where_no_image_fits(images, builder, pool, library):
    """A PIE at 4 KiB lies anywhere: hugetlb, as without a store; only verbose=3 speaks of it."""
    pool(32)
    app = builder.executable("pie")
    images.add(app)
    for _ in range(3):
        results = [helpers.run_preloaded([app], "main", f"store={images.folder},verbose={v}", library) for v in (2, 3)]
        if all("pages hugetlb" in r.stderr for r in results):
            break # at one start in 512 it lies on a boundary
    assert "image" not in results[0].stderr and "its load address does not fit its image" in results[1].stderr


def test_process_without_huge_pages(images, builder, moved):
    """PR_SET_THP_DISABLE, which is inherited: the kernel would map the image by small entries."""
    app = builder.executable("nopie")
    images.add(app)
    script = "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
    result, kinds = moved([sys.executable, "-c", script, app], plain=[app])
    assert not kinds and f"hugeld: {app.name}: text stays: transparent huge pages are disabled for this process" in result.stderr, result


def test_no_image_of_a_pie(images, builder, moved):
    app = builder.executable("pie")
    images.add(app)
    results = [moved([app], options="data=off") for _ in range(3)]
    assert any("text stays: its load address does not fit" in r.stderr and "start it with hugeld run" in r.stderr for r, _ in results)


# --- images that must never be used ---


def check_unused(moved, app, reason, **options):
    result, kinds = moved([app], options="data=off", **options)
    assert not kinds and reason in result.stderr, result.stderr


NO_IMAGE = "there is no image of it, or the file has changed since"


def test_replaced_by_rename(images, builder, own, moved):
    app = own(builder.executable("nopie"))
    images.add(app)
    other = app.with_name("other")
    shutil.copy(builder.executable("six"), other)
    os.rename(other, app)
    check_unused(moved, app, NO_IMAGE)


def test_overwritten_in_place(images, builder, own, moved):
    """...with bytes of the same number, and its times set back as far as a user can."""
    app = own(builder.executable("nopie"))
    images.add(app)
    assert moved([app], options="data=off")[1] == {*READ_ONLY}
    before = os.stat(app)
    with open(app, "r+b") as file:
        text = next(h for h in read_headers(app) if h.flags & PF_X and h.file_bytes > helpers.HUGE)
        file.seek(text.offset + text.file_bytes - 8)
        file.write(b"\xcc")
    os.utime(app, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(app).st_ino == before.st_ino and os.stat(app).st_size == before.st_size
    check_unused(moved, app, NO_IMAGE)


def test_image_of_another_file(images, builder, own, moved):
    """Its folder is that of this file, and the image in it is another's."""
    app = own(builder.executable("nopie"))
    images.add(app, source=builder.executable("six"))
    check_unused(moved, app, "its image does not match the file")


@pytest.mark.parametrize("bytes_left", [0, 100, 4096, 3 << 20])
def test_truncated(images, builder, own, moved, bytes_left):
    app = own(builder.executable("nopie"))
    os.truncate(images.add(app), bytes_left)
    check_unused(moved, app, "its image does not match the file")


def test_another_file_of_the_same_name(images, builder, own, moved, tmp_path):
    """Two containers have the same path for two files: each is its own."""
    app = own(builder.executable("nopie"))
    images.add(app)
    other = tmp_path / "elsewhere"
    other.mkdir()
    shutil.copy(builder.executable("six"), other / app.name)
    script = f'mount --bind {other / app.name} {app} && exec {app}'
    command = ["unshare", "--mount", "/bin/sh", "-c", script]
    result, kinds = moved(command, options=f"exe=*{app.name},data=off", plain=command)
    assert not kinds and NO_IMAGE in result.stderr, result.stderr


LINKER = "/lib64/ld-linux-x86-64.so.2"


@pytest.mark.skipif(not os.path.exists(LINKER), reason=f"{LINKER} is not there")
def test_as_an_argument_of_the_linker(images, builder, own, moved):
    """/proc/self/exe is ld.so then, and the program is found by its name: no image of another file that the name leads to."""
    app = own(builder.executable("nopie"))
    images.add(app)
    _, kinds = moved([LINKER, app])
    assert kinds == set(READ_ONLY)
    result = helpers.run([helpers.HUGELD, "run", "-o", f"verbose=2,store={images.folder}", "--", LINKER, app])
    assert re.search(r": text \d+ pages image", result.stderr) and result.stdout == helpers.run([app]).stdout, result
    other = app.with_name("other")
    shutil.copy(app, other)
    _, kinds = moved([LINKER, "--argv0", app, other])
    assert not kinds


def test_on_overlayfs(images, builder, own, moved, tmp_path):
    """On overlayfs the file's numbers in maps are not those of stat: its image is found all the same, and the lower file's
    image is not its own."""
    app = own(builder.executable("nopie"))
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    shutil.move(app, tmp_path / "lower" / app.name)
    merged = tmp_path / "merged"
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    result = subprocess.run(["mount", "-t", "overlay", "-o", options, "none", merged], capture_output=True, text=True)
    if result.returncode != 0:
        pytest.skip(f"no overlayfs here: {result.stderr}")
    with helpers.at_end('umount -l "$1"', merged):
        images.add(tmp_path / "lower" / app.name)
        check_unused(moved, merged / app.name, NO_IMAGE)
        images.add(merged / app.name)
        assert moved([merged / app.name], options="data=off")[1] == {*READ_ONLY}
        with open(merged / app.name, "r+b") as file: # it is copied up
            file.seek(-1, os.SEEK_END)
            file.write(b"\1")
        check_unused(moved, merged / app.name, NO_IMAGE)


UNSAFE = "another user could have written to the store, or to the image"


@pytest.fixture
def store_of_its_own(images, builder, own, tmp_path):
    """(store, program, image): a store that a test may spoil."""
    store = Store(images.folder / tmp_path.name)
    store.folder.mkdir(mode=0o755)
    app = own(builder.executable("nopie"))
    yield store, app, store.add(app)
    shutil.rmtree(store.folder)


def run_with(store, app, library):
    result = helpers.run_preloaded([app], "main", store.options("verbose=3", "data=off"), library)
    assert result.stdout == helpers.run([app]).stdout
    return result.stderr


@pytest.mark.parametrize("what, change", [
    ("store", lambda p: os.chmod(p, 0o775)),
    ("store", lambda p: os.chmod(p, 0o757)),
    ("store", lambda p: os.chown(p, 1, 1)),
    ("image", lambda p: os.chmod(p, 0o775)),
    ("image", lambda p: os.chmod(p, 0o757)),
    ("image", lambda p: os.chown(p, 1, 1)),
])
def test_others_could_have_written(store_of_its_own, library, what, change):
    store, app, image = store_of_its_own
    assert "pages image" in run_with(store, app, library)
    change(store.folder if what == "store" else image)
    told = run_with(store, app, library)
    assert "pages image" not in told and UNSAFE in told, told


def test_auto_says_that_a_store_is_unsafe(store_of_its_own, library, pool):
    """...at verbose=1, and takes the pool."""
    pool(32)
    store, app, _ = store_of_its_own
    os.chmod(store.folder, 0o777)
    result = helpers.run_preloaded([app], "main", f"store={store.folder},verbose=1,data=off", library)
    assert result.stderr.count("\n") == 1 and UNSAFE in result.stderr


def test_store_behind_a_link(store_of_its_own, library, tmp_path):
    """A user who can change the link could choose the store."""
    store, app, _ = store_of_its_own
    link = tmp_path / "link"
    link.symlink_to(store.folder)
    told = run_with(Store(link), app, library)
    assert "pages image" not in told and UNSAFE in told, told
