# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files in place: the page cache holds a program's own text in huge pages, by `hugeld enable` and `apply`.

Each test scatters a program's pages first: it drops them and reads them back one by one.  Huge pages are read from smaps of a
process that runs the program, and cached pages from mincore."""

import contextlib
import ctypes
import json
import mmap
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import helpers
from calls import build_calls
from hugepages import file_pages_stay
from pagecache import evict, scatter
from helpers import reasons
from pressure import CALM, waiting
from smaps import read_smaps
from worlds import APP, SYSTEM, USER


BIG = "/run/programs/big"
MIB = 16
TEXT_BEGINS = 16  # pages
ENABLED = "/sys/kernel/mm/transparent_hugepage"

libc = ctypes.CDLL(None, use_errno=True)
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def refused(result, *words, status=1):
    """It says WORDS, in one line."""
    assert result.returncode == status and result.stderr, result
    for word in words:
        assert word in result.stderr, result
    return True


def cached(path):
    """Which pages of PATH's text are in the page cache.  (A command that looks at a file reads its headers.)"""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as room:
        state = ctypes.create_string_buffer(-(-len(room) // helpers.PAGE))
        at = ctypes.addressof(ctypes.c_char.from_buffer(room))
        assert libc.mincore(at, len(room), state) == 0
        return {i for i, byte in enumerate(state.raw) if byte & 1 and TEXT_BEGINS <= i < MIB << 8}


@contextlib.contextmanager
def running(world, path=BIG):
    """The program at PATH, which has called each of its functions once."""
    process = helpers.start(world.command(path, 0, "wait"), stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline()
        yield process
    finally:
        helpers.end_process(process)


def huge_text(process):
    """Bytes of the text of PROCESS on huge pages of the page cache, and all of it."""
    text = [m for m in read_smaps(process.pid) if "x" in m.permissions and m.name.endswith("/big")]
    return sum(m.kb["FilePmdMapped"] for m in text) * 1024, sum(m.bytes for m in text)


def huge_bytes(world):
    with running(world) as process:
        return huge_text(process)[0]


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    return build_calls(tmp_path_factory.mktemp("big") / "big", "-no-pie", mib=MIB)


def cover(world, path, text, name):
    """Covers PATH in WORLD with a file that has TEXT."""
    file = world.path("/run") / name
    file.write_text(text)
    assert world.run("mount", "--bind", f"/run/{name}", path).returncode == 0


@pytest.fixture
def place(world, big):
    """A world with a large program, whose file is scattered, on a machine under no pressure."""
    shutil.copy(big, world.path(BIG))
    world.path(BIG).chmod(0o755)
    if os.path.exists("/proc/pressure"):
        cover(world, "/proc/pressure/io", CALM, "io")
        cover(world, "/proc/pressure/memory", CALM, "memory")
    with file_pages_stay():
        scatter(world.path(BIG))
        assert huge_bytes(world) == 0, "a file that was read page by page is on huge pages"
        yield world


def add(world, *arguments):
    """`hugeld enable`, where this kernel can put a file in place."""
    result = world.hugeld("enable", "--way=in-place", *arguments)
    if "keeps files on small pages" in result.stderr:
        pytest.skip("this file system and kernel have no large folios")
    assert (result.returncode, result.stderr) == (0, ""), result
    return result


def refused_untouched(world, *words, prefix=(), arguments=("enable", "--way=in-place", BIG), status=1):
    """hugeld refuses with WORDS, or waits (3), and nothing was dropped from the page cache.  (The cached pages are no proof: the machine may
    reclaim some by itself.)"""
    result = world.run("strace", "-f", "-o", "/run/trace", "-e", "trace=fadvise64", *prefix, "/run/bin/hugeld", *arguments)
    assert "fadvise64" not in world.path("/run/trace").read_text()
    if status == 3:
        world.hugeld("disable", BIG)
    return refused(result, *words, status=status)


def expected(world):
    """Bytes in whole huge pages inside the text of the program."""
    with running(world) as process:
        return sum(max(0, m.end // helpers.HUGE - -(-m.start // helpers.HUGE)) * helpers.HUGE
                   for m in read_smaps(process.pid) if "x" in m.permissions and m.name.endswith("/big"))


def test_scattered(place):
    """A scattered file becomes huge as a whole, for every process that starts, and is the same program."""
    plain = place.run(BIG, 0, "where").stdout
    before = place.path(BIG).read_bytes()
    scatter(place.path(BIG))
    result = place.hugeld("enable", BIG)
    if "image" in result.stdout:
        add(place, BIG)  # says why
    whole = expected(place)
    assert re.fullmatch(rf"{BIG}: in place, \d+\.\d % of its text, {whole // helpers.HUGE} huge pages\n{BIG}: enabled\n", result.stdout), result
    assert whole >= 14 << 20
    with running(place) as process:
        huge, text = huge_text(process)
        assert huge == whole
        [stored] = place.list()
        assert (stored["way"], stored["path"], stored["image"], stored["state"]) == ("in-place", BIG, None, "fresh")
        assert stored["huge_pages"] * helpers.HUGE == whole and stored["processes"] == 1
        assert 0 < stored["text_share"] - whole / text < 0.01
        status = json.loads(place.run("/run/bin/hugeld", "status", "--json", process.pid).stdout)["processes"][0]
        assert status["objects"][0]["backends"]["file_pages"] * helpers.HUGE == whole
    assert "FilePmdMapped" in place.run(BIG, 0, "where").stdout and "FilePmdMapped" not in plain
    assert place.path(BIG).read_bytes() == before
    assert "unchanged" in place.hugeld("enable", BIG).stdout
    folder = place.path(SYSTEM) / stored["key"]
    assert {p.name for p in folder.iterdir()} == {".origin", ".in-place"}


def test_dropped_since(place):
    """No text is on huge pages any more: strict=on refuses it, verbose=1 says so, and otherwise it runs as it is."""
    add(place, BIG)
    strict = ["/run/bin/hugeld", "run", "-o", "strict=on", "--", BIG, 0]
    assert place.run(*strict).returncode == 0
    scatter(place.path(BIG))
    assert huge_bytes(place) == 0
    assert "has dropped its huge pages since; hugeld apply" in place.run("/run/bin/hugeld", "list").stdout
    inspected = place.run("/run/bin/hugeld", "inspect", BIG).stdout
    assert "has dropped its huge pages since; hugeld apply" in inspected and "which is there" not in inspected, inspected
    with running(place) as process:
        assert "has dropped its huge pages since; hugeld apply" in place.run("/run/bin/hugeld", "status", process.pid).stdout
    result = place.run(*strict)
    assert result.returncode == 127 and result.stderr.count("\n") == 1 and "has dropped its huge pages" in result.stderr, result
    result = place.run("/run/bin/hugeld", "run", "-o", "verbose=1", "--", BIG, 0)
    assert result.returncode == 0 and "has dropped its huge pages" in result.stderr and "kept on huge pages" not in result.stderr, result
    result = place.run("/run/bin/hugeld", "run", "--", BIG, 0)
    assert (result.returncode, result.stderr) == (0, "")


def test_dropped(place):
    """check reports the pages that the kernel has dropped, and changes nothing; refresh brings it back."""
    add(place, BIG)
    whole = huge_bytes(place)
    assert place.hugeld("list", "--check").returncode == 0
    for how in (evict, scatter):
        how(place.path(BIG))
        before = cached(place.path(BIG))
        for _ in range(2):
            refused(place.hugeld("list", "--check"), BIG, f"{whole // helpers.HUGE} of its {whole // helpers.HUGE} pages are not huge any more",
                    "hugeld apply")
        assert place.list()[0]["huge_pages"] == 0 and place.list()[0]["text_share"] == 0
        assert cached(place.path(BIG)) <= before
        assert place.hugeld("apply").returncode == 0
        assert place.hugeld("list", "--check").returncode == 0 and huge_bytes(place) == whole
    with open(place.path(BIG), "rb") as file:
        os.posix_fadvise(file.fileno(), whole, 0, os.POSIX_FADV_DONTNEED)
    refused(place.hugeld("list", "--check"), BIG, f"1 of its {whole // helpers.HUGE} pages are not huge any more", "hugeld apply")
    assert place.hugeld("apply").returncode == 0 and huge_bytes(place) == whole


@pytest.mark.usefixtures("pool")  # takes pages where some are free
def test_run(pool, place):
    """Nothing of hugeld gets into a program that is in place; the first image measures the TLB."""
    add(place, BIG)
    shutil.copy(helpers.LIBRARY, place.path("/run/bin/libhugeld.so"))
    for options, said in (([], ""), (["-o", "verbose=1"], "started as it is")):
        process = helpers.start(place.command("/run/bin/hugeld", "run", *options, "--", BIG, 0, "wait"), stdin=subprocess.PIPE)
        try:
            assert process.stdout.readline()
            assert huge_text(process) == (expected(place), huge_text(process)[1])
            assert "libhugeld" not in open(f"/proc/{process.pid}/maps").read()
            _, stderr = process.communicate(timeout=helpers.PATIENCE)
            assert said in stderr and (said or not stderr)
        finally:
            helpers.end_process(process)
    process = helpers.start(place.command("/run/bin/hugeld", "run", "--via=preload", "--", BIG, 0, "wait"), stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline()
        assert "libhugeld" in open(f"/proc/{process.pid}/maps").read()  # asked for by name
    finally:
        helpers.end_process(process)


@pytest.mark.parametrize("how", ["reset", "list"])
def test_given_back(place, how):
    """reset gives the huge pages back, as does apply, once no list has named the file twice."""
    add(place, BIG)
    assert huge_bytes(place) > 0
    place.path("/etc/hugeld/enabled.d/local.list").unlink()
    for _ in range(2):
        assert place.hugeld("reset" if how == "reset" else "apply").returncode == 0
    assert huge_bytes(place) == 0


def test_disabled(place):
    """What is in place needs no image with --children, and bench says why it measures nothing; disable gives the huge pages back."""
    add(place, BIG)
    words = ["--children", "-o", "verbose=1", "--", "sh", "-c", f"{BIG} 1; exit"]
    result = place.run("/run/bin/hugeld", "run", *words)
    assert (result.returncode, result.stderr) == (0, ""), result
    refused(place.run("/run/bin/hugeld", "bench", *words), "its plain runs are on huge pages, too; to measure it: hugeld disable")
    place.hugeld("disable", BIG)
    assert huge_bytes(place) == 0
    assert "what it starts stays as it is: no store has an image" in place.run("/run/bin/hugeld", "run", *words).stderr


def test_library(place, builder, tmp_path):
    """A program whose library is in place needs no image of it, whether or not -p names it, nor does a script of that program, and
    enable of the program finds the library enabled."""
    folder = place.path("/run/programs")
    (tmp_path / "lib.c").write_text('__asm__(".text; .fill 6144 << 10, 1, 0x90"); int big(void) { return 0; }\n')
    (tmp_path / "main.c").write_text("int big(void); int main(void) { return big(); }\n")
    library = builder.compile(folder / "libbig.so", tmp_path / "lib.c", "-shared", "-fPIC", "-Wl,-soname,libbig.so,-z,max-page-size=0x200000")
    builder.compile(folder / "small", tmp_path / "main.c", library, "-Wl,-rpath,/run/programs")
    (folder / "script").write_text("#!/run/programs/small\n")
    (folder / "script").chmod(0o755)
    add(place, BIG)  # which is no library, whatever -p names
    for before in True, False:
        before or add(place, "/run/programs/libbig.so")
        for program in "/run/programs/small", "/run/programs/script":
            for patterns, reason in (("main", "text-in-library"), ("main:libbig*", "no-library-image")):
                result = place.run("/run/bin/hugeld", "run", "-p", patterns, "-o", "verbose=1", "--", program)
                assert result.returncode == 0 and result.stderr.count("\n") == 1, result
                assert f": started as it is: {reasons()[reason if before else 'in-place']}" in result.stderr, result
    place.enable("--way=image", APP)
    result = place.run("/run/bin/hugeld", "run", "-v", "-p", "main:libbig*", "--", APP)
    assert "no image of a library" not in result.stderr, result
    result = place.hugeld("enable", "--way=in-place", "/run/programs/small")
    assert (result.returncode, result.stderr) == (0, "hugeld: /run/programs/small: its text is in /run/programs/libbig.so\n"), result
    assert result.stdout == "/run/programs/libbig.so: unchanged, it is enabled already\n"


def test_mapped(place):
    """No page of a file that a process maps is dropped, whether hugeld enable succeeds or not."""
    with running(place) as process:
        result = place.hugeld("enable", "--way=in-place", BIG)
        if result.returncode == 0:  # a kernel that joins the pages
            assert huge_bytes(place) > 0
            return
        place.hugeld("disable", BIG)
        refused_untouched(place, "processes map the file", status=3)
        assert huge_text(process)[0] == 0 and place.left() == []
        refused_untouched(place, "processes map the file", f"--way=image {BIG}", arguments=("enable", BIG), status=3)  # and gets no image
        assert place.left() == []
        refused(place.hugeld("enable", "--way=in-place", BIG), "processes map the file", status=3)
        assert "processes map the file" in place.list()[0]["sentence"]
    assert [(i["state"], i["sentence"]) for i in place.list()] == [("pending", "no process runs it now; enable it again")]
    add(place, BIG)
    other = "/run/programs/other"  # which can have no image
    place.path(other).write_bytes(place.path(BIG).read_bytes() + b"data")
    place.path(other).chmod(0o755)
    scatter(place.path(other))
    with running(place, other):
        result = place.hugeld("enable", other)
        assert refused(result, "processes map the file", status=3) and "way=image" not in result.stderr


# --- as on a kernel that joins pages while processes map them ---

def join(place):
    """The result of an attempt, and the ms at which pages were to be joined."""
    library = place.path("/run/own/joins.so")
    library.parent.mkdir(exist_ok=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, pathlib.Path(__file__).with_name("joins.c")], check=True)
    cover(place, "/proc/1/maps", "", "nothing")  # in some containers root may not read it
    result = place.run("timeout", "-s", "KILL", "100", "env", "JOINS=/run/joins", "LD_PRELOAD=/run/own/joins.so",
                       "/run/bin/hugeld", "enable", "--way=in-place", BIG)
    joins = place.path("/run/joins")
    return result, [float(ms) for ms in joins.read_text().split()] if joins.exists() else []


def test_many_would_wait(place):
    """Its processes would wait for more than 2 ms for each huge page: nothing is joined."""
    with contextlib.ExitStack() as stack:
        for _ in range(13):
            stack.enter_context(running(place))
        result, joined = join(place)
    assert refused(result, "they would all wait for more than 2 ms", status=3) and joined == []


def test_rests_between_collapses(place):
    """It rests twenty times as long as the processes that map the file waited for each.  The first huge page, which is tried three times,
    takes them all of the 2 ms, so no other one is joined."""
    with running(place):
        _, joined = join(place)
    assert len(joined) == 3 and min(b - a for a, b in zip(joined, joined[1:])) >= 40, joined


def test_process_whose_maps_do_not_answer(place):
    """The processes that map the file cannot be counted: nothing is joined, and it ends."""
    with running(place) as process:
        assert place.run("sh", "-c", f"mkfifo /run/fifo && mount --bind /run/fifo /proc/{process.pid}/maps").returncode == 0
        result, joined = join(place)
    assert refused(result, "which processes map the file cannot be read", status=3) and joined == []


def test_mapped_without_a_page(place):
    """A process that maps the file without having touched it has none of its pages, so none is taken from it."""
    script = ("import mmap, sys\nf = open(sys.argv[1])\nm = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
              "print(1, flush=True)\nsys.stdin.read(1)\nsys.stdout.buffer.write(m[:])")
    process = subprocess.Popen([str(word) for word in place.command("/usr/bin/python3", "-c", script, BIG)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline()
        add(place, BIG)
        assert huge_bytes(place) == expected(place)
        assert process.communicate(b"x", timeout=helpers.PATIENCE)[0] == place.path(BIG).read_bytes()
    finally:
        helpers.end_process(process)


@pytest.mark.parametrize("size", ["all sizes", "this size"])
def test_never(place, size):
    """The administrator has switched transparent huge pages off."""
    if size == "this size":
        path = f"{ENABLED}/hugepages-{helpers.HUGE // 1024}kB/enabled"
        if not os.path.exists(path):
            pytest.skip("this kernel has no setting for each size")
        cover(place, path, "always inherit madvise [never]\n", "enabled")
    else:
        cover(place, f"{ENABLED}/enabled", "always madvise [never]\n", "enabled")
    refused_untouched(place, BIG, "switched off by the administrator")
    assert place.list() == []


@pytest.mark.parametrize("resource", ["memory", "io"])
def test_pressure(place, resource):
    if not os.path.exists("/proc/pressure"):
        pytest.skip("this kernel has no pressure information")
    with waiting(place.path(f"/run/{resource}")):
        refused_untouched(place, "programs have waited for memory or disks", "try again later", status=3)
        refused_untouched(place, "programs have waited", arguments=("enable", BIG), status=3)  # and gets no image
    assert place.left() == []
    place.path(f"/run/{resource}").write_text(CALM.replace("0.00", "4.90", 1))
    add(place, BIG)
    place.enable(BIG)
    with open(place.path(BIG), "rb") as file:  # all but the first huge page of the text
        os.posix_fadvise(file.fileno(), 2 * helpers.HUGE, 0, os.POSIX_FADV_DONTNEED)
    with waiting(place.path(f"/run/{resource}")):
        refused_untouched(place, "programs have waited", arguments=["apply"], status=3)


@pytest.mark.parametrize("resource", ["memory", "io"])
def test_pressure_at_boot(place, resource):
    """The boot unit waits for nothing but memory with a file that no process maps."""
    if not os.path.exists("/proc/pressure"):
        pytest.skip("this kernel has no pressure information")
    add(place, BIG)  # or is skipped
    place.hugeld("disable", BIG)
    scatter(place.path(BIG))
    place.lists("mine", BIG)
    with waiting(place.path(f"/run/{resource}")):
        assert place.hugeld("apply").returncode == 3 and huge_bytes(place) == 0
        place.path(f"{SYSTEM}/.records").unlink()
        result = place.hugeld("apply", "--boot")
    assert result.returncode == 0 and "in place" in result.stdout and huge_bytes(place) == expected(place), result


def test_no_store(place):
    """Where none can be mounted, as in a container, files are put in place all the same, and only others are pending."""
    add(place, BIG)  # or is skipped
    place.hugeld("disable", BIG)
    assert place.run("umount", SYSTEM).returncode == 0
    shutil.rmtree(place.path(SYSTEM))
    scatter(place.path(BIG))
    place.lists("mine", BIG, APP)
    result = place.hugeld("apply", "--json", strace=["-e", "inject=mount:error=EPERM"])
    told = {file["path"]: file for file in json.loads(result.stdout)["files"]}
    assert result.returncode == 3 and (told[BIG]["result"], told[BIG]["way"]) == ("made", "in-place"), result
    assert (told[APP]["reason"], told[APP]["sentence"]) == ("no-store", "there is no store in this container")
    assert huge_bytes(place) == expected(place)


@pytest.mark.parametrize("how", ["owner", "mode", "folder"])
def test_a_users_file(place, how):
    """No user makes root drop cached pages of a file of his, or puts another file into its place."""
    path = place.path(BIG)
    if how == "owner":
        os.chown(path, USER, USER)
    elif how == "mode":
        path.chmod(0o757)
    else:
        path.parent.chmod(0o1777)
    place.path("/run/own.list").write_text(f"{BIG} way=in-place\n")
    for store in ("/dev/shm/mine", SYSTEM):
        refused_untouched(place, "users other than root", arguments=["apply", "--list=/run/own.list", "--store", store])


def test_user_namespace(place):
    """Root of a user namespace does not see all processes."""
    if place.run("unshare", "-Urm", "true").returncode != 0:
        pytest.skip("no user namespaces here")
    place.path("/run/own.list").write_text(f"{BIG} way=in-place\n")
    apply = ["apply", "--any-disk", "--list=/run/own.list"]  # process 1's / is not seen from there
    refused_untouched(place, "root, outside of containers", prefix=["unshare", "-Urm"], arguments=[*apply, "--store=/dev/shm/mine"])
    refused_untouched(place, "root, outside of containers", prefix=["unshare", "-pf", "--mount-proc"], arguments=apply)
    # What can have no image either names both reasons.
    place.path("/run/own.list").write_text(f"{BIG}\n")
    with open(place.path(BIG), "ab") as file:
        file.write(b"PK")
    refused_untouched(place, "nor in place: only root, outside", prefix=["unshare", "-pf", "--mount-proc"], arguments=apply)
    place.path("/run/own.list").write_text(f"{BIG} way=in-place\n")
    # Processes may be hidden from it.
    refused_untouched(place, "root, outside of containers", prefix=["setpriv", "--bounding-set", "-sys_ptrace"], arguments=apply)


def test_user(place):
    """Another user can neither put the file in place nor look at its pages."""
    refused(place.hugeld("enable", "--way=in-place", BIG, user=USER), "root")
    add(place, BIG)
    evict(place.path(BIG))
    [stored] = place.list(user=USER)
    assert (stored["way"], stored["text_share"], stored["advice"]) == ("in-place", None, None)
    assert place.hugeld("list", "--check", user=USER).returncode == 0
    assert cached(place.path(BIG)) == set()


def test_pie(place):
    """The kernel puts a PIE anywhere, so it gets an image; also on request."""
    refused(place.hugeld("enable", "--way=in-place", APP), "not congruent")
    assert "image" in place.hugeld("enable", APP).stdout
    assert "image" in place.hugeld("enable", "--way=image", BIG).stdout
    assert {image["way"] for image in place.list()} == {"image"}
    add(place, BIG)  # instead of its image
    assert {i["path"]: i["way"] for i in place.list()} == {APP: "image", BIG: "in-place"}
    assert "image" in place.hugeld("enable", "--way=image", BIG).stdout
    assert {image["way"] for image in place.list()} == {"image"}


def test_path_that_cannot_be_followed(place):
    """A path that cannot be followed does not mean that the file is gone, so the record stays."""
    add(place, BIG)
    before = place.left()
    moved = place.path(BIG).rename(place.path("/run/programs/moved"))
    place.path(BIG).symlink_to("big")
    for _ in range(3):
        refused(place.hugeld("apply"), BIG, "cannot be read")
    assert place.left() == before
    place.path(BIG).unlink()
    moved.rename(place.path(BIG))
    assert place.hugeld("apply").returncode == 0 and place.list()[0]["state"] == "fresh"


def test_upgrade(place, big):
    """The file is replaced by rename, as packages do; the entry is for the path."""
    add(place, BIG)
    [old] = place.list()
    shutil.copy(big, place.path("/run/programs/new"))
    place.path("/run/programs/new").chmod(0o755)
    place.path("/run/programs/new").rename(place.path(BIG))
    scatter(place.path(BIG))
    refused(place.hugeld("list", "--check"), "have changed since")
    assert place.hugeld("apply").returncode == 0
    [new] = place.list()
    assert new["key"] != old["key"] and new["text_share"] == old["text_share"] and place.left() == [new["key"]]
    assert huge_bytes(place) > 0


def test_touched(place):
    """A hard link changes the key of a file whose pages stay huge: refresh gives the record the new one, by which a start finds it."""
    add(place, BIG)
    [old] = place.list()
    os.link(place.path(BIG), place.path("/run/programs/link"))
    refused(place.hugeld("list", "--check"), BIG, "have changed since", "hugeld apply")
    assert place.hugeld("apply").returncode == 0
    [new] = place.list()
    assert new["key"] != old["key"] and place.left() == [new["key"]] and place.hugeld("list", "--check").returncode == 0
    result = place.run("/run/bin/hugeld", "run", "-o", "strict=on,verbose=1", BIG)
    assert result.returncode == 0 and "in place" in result.stderr, result


def test_one_moment_without_a_huge_page(place):
    """One huge page missing says nothing about the file system: the rest of the file is put in place, and the missing part
    later."""
    add(place, BIG)
    place.hugeld("disable", BIG)
    whole = expected(place)
    scatter(place.path(BIG))
    # Two calls for each chunk that is looked at, also for its mappers, and fourteen for the first one: it is joined, and read twice.
    first = 2 * (whole // helpers.HUGE) + 14
    result = place.hugeld("enable", "--way=in-place", BIG, strace=["-e", f"inject=madvise:error=ENOMEM:when=1..{first}"])
    assert result.returncode == 0 and "the rest is not: the kernel had no huge page for it" in result.stdout, result
    assert 0 < huge_bytes(place) < whole
    assert place.hugeld("apply").returncode == 0 and huge_bytes(place) < whole  # not before its delay
    place.enable("--way=in-place", BIG)
    assert huge_bytes(place) == whole
