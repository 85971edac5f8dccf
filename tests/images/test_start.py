# SPDX-License-Identifier: LGPL-2.1-or-later
"""A start from an image costs next to nothing: the system calls that it takes, the same with any other mappings of the
process; the state that it leaves unchanged; and where it is refused, because a mapping over the old one would lose settings
of the old one."""

import fcntl
import re
import shutil
import struct
import subprocess

import pytest

import helpers
from objects import PF_X, read_headers
from smaps import read_smaps
from stores import make_images


@pytest.fixture
def app(images, builder):
    app = builder.executable("nopie")
    images.add(app)
    return app


# --- its cost ---

# Ours read the status first; at startup the program goes on by one of these, and after dlopen by putting its mask back.
OURS = re.compile(r'^openat\([^\n]*"/proc/(?:thread-)?self/status".*?(?=^(?:getrandom|brk|newfstatat|write|exit_group|rt_sigprocmask)\()',
                  re.M | re.S)

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")


def trace(argv, tmp_path, *words, prefix=(), **variables):
    """The calls of libhugeld.so in ARGV, a line each."""
    log = tmp_path / "strace"
    settings = [f"-E{name}={value}" for name, value in variables.items()]
    result = helpers.run([*prefix, "strace", "-y", "-o", log, *words, *settings, *argv], helpers.environment(), timeout=helpers.PATIENCE)
    assert result.returncode < 126, result.stderr
    found = OURS.search(log.read_text())
    return found[0].splitlines() if found else []


def start_traced(app, tmp_path, options, *words, **more):
    return trace([app], tmp_path, *words, **{"LD_PRELOAD": helpers.LIBRARY, "LD_HUGEPAGES_OPTIONS": options, **more})


def need_query():
    """Whether the kernel answers for an address (PROCMAP_QUERY, Linux 6.11)."""
    query = struct.pack("QQQ", 104, 16, 0).ljust(104, b"\0")
    with open("/proc/self/maps") as maps:
        try:
            fcntl.ioctl(maps, 0xc0686611, bytearray(query))
        except OSError as error:
            pytest.skip(f"the kernel does not answer for an address: {error}")


def reads_of_maps(lines):
    return [line for line in lines if re.search(r"^read\(\d+<[^>]*/maps>", line)]


@needs_strace
def test_few_calls(images, app, tmp_path):
    need_query()
    lines = start_traced(app, tmp_path, images.options("data=off"))
    assert len([line for line in lines if "MAP_FIXED" in line]) in (2, 3), lines
    assert len(reads_of_maps(lines)) == 1 and not any(line.startswith(("mremap", "mprotect", "getcpu", "readlink")) for line in lines)
    assert len([line for line in lines if line.startswith("ioctl") and "pagemap" in line]) == 1
    assert len([line for line in lines if "/.image" in line]) == 1
    assert len(lines) <= 21, "\n".join(lines)


@needs_strace
@pytest.mark.parametrize("variant", ["nopie", "pie"])
def test_nothing_is_there(builder, tmp_path, variant):
    """Four calls, and one for the stack, find out that there is no store; and none for a program that could not be mapped from one."""
    prefix = ["unshare", "--mount", "sh", "-euc", 'mount -t tmpfs none /run; exec "$@"', "sh"]
    for _ in range(2):  # at one start in 512 it lies on a boundary
        lines = start_traced(builder.executable(variant), tmp_path, "backend=image,data=off", prefix=prefix)
        if variant == "nopie" or not lines:
            break
    assert len(lines) <= (5 if variant == "nopie" else 0), "\n".join(lines)


OPENER = """
import ctypes, sys
print("ready", flush=True)
sys.stdin.readline()
ctypes.CDLL(sys.argv[1])
print(open("/proc/self/maps").read())
"""


def test_store_that_was_made_since(own_store, builder, library):
    """A process that found no store at its start finds it when it loads a library."""
    _, [dso] = builder.with_library("dso-aligned")
    store = own_store / "since"
    env = helpers.preload(library, patterns="main:libbig*", options=f"backend=image,store={store}")
    process = helpers.start(["/usr/bin/python3", "-c", OPENER, dso], env, stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        store.mkdir(mode=0o700)
        added = make_images(store, dso, way="image")
        assert added.returncode == 0, added
        said, _ = process.communicate("\n", timeout=helpers.PATIENCE)
        assert f"{store}/" in said, said
    finally:
        helpers.end_process(process)
        shutil.rmtree(store, ignore_errors=True)


# --- unchanged state ---


@pytest.mark.parametrize("variant", ["nopie", "aligned-pie"])
def test_headers_are_the_originals(images, builder, library, variant):
    """Debuggers compare the program headers in memory with the file's."""
    app = builder.executable(variant)
    image = images.add(app)
    process = helpers.start([app, "wait", "x"], helpers.preload(library, patterns="main", options=images.options()))
    try:
        helpers.wait_until(lambda: "break" in process.stdout.readline(), what="its last line")
        mappings = read_smaps(process.pid)
        start = min(m.start for m in mappings if m.name in (str(app), str(image)))
        # Some images have the huge page with the headers twice, once with the original's.
        assert any(m.name == str(image) and m.start in (start, start + helpers.PAGE) for m in mappings), mappings
        with open(f"/proc/{process.pid}/mem", "rb") as memory, open(app, "rb") as file:
            memory.seek(start)
            assert memory.read(helpers.PAGE) == file.read(helpers.PAGE)
    finally:
        helpers.end_process(process)


# --- where it is refused ---

SPECIAL = r"""
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
__attribute__((constructor)) static void set(void) {
    if (%s)
        _exit(77);
}
"""

SET = {  # each of the kernel's flags is a row of tests/unit/test-maps.c
    "nothing": "0",
    "all mergeable": "prctl(67 /* PR_SET_MEMORY_MERGE */, 1, 0, 0, 0)",
    "not for children": "madvise((char *)%#x, 2 << 20, MADV_DONTFORK)",
    "all locked": "mlockall(MCL_CURRENT)",
    "all that comes is locked": "mlockall(MCL_FUTURE)",
}


@pytest.mark.parametrize("what", SET)
def test_what_would_be_lost(images, builder, app, library, tmp_path, what):
    """A constructor that runs before ours has changed settings of the mapping."""
    text = next(h for h in read_headers(app) if h.flags & PF_X and h.file_bytes > helpers.HUGE)
    change = SET[what].replace("%#x", hex(-(-text.vaddr // helpers.HUGE) * helpers.HUGE))
    (tmp_path / "special.c").write_text(SPECIAL % change)
    special = builder.compile(tmp_path / "special.so", tmp_path / "special.c", "-shared", "-fPIC", "-Wl,-z,initfirst")
    env = helpers.preload(library, special, patterns="main", options=images.options("verbose=1", "data=off"))
    result = helpers.run([app], env)
    if result.returncode == 77:
        pytest.skip("not on this machine")
    assert result.stdout == helpers.run([app], helpers.preload(special, patterns="!*")).stdout
    refused = "text stays: it is locked or mapped in a special way" in result.stderr
    assert refused == (what not in ("nothing", "all mergeable")), result.stderr


def test_file_that_may_not_be_mapped_again(images, builder, app, library, tmp_path):
    """The file's mount became noexec meanwhile: there would be no way back."""
    (tmp_path / "again.c").write_text("""
        #include <sys/mount.h>
        #include <unistd.h>
        __attribute__((constructor)) static void set(void) {
            if (mount(0, "%s", 0, MS_REMOUNT | MS_BIND | MS_NOEXEC, 0) != 0)
                _exit(77);
        }""" % app)
    special = builder.compile(tmp_path / "again.so", tmp_path / "again.c", "-shared", "-fPIC", "-Wl,-z,initfirst")
    options = images.options(f"exe=*{app.name}", "verbose=1", "data=off")
    script = f'mount --bind {app} {app}; LD_PRELOAD="{library} {special}" exec {app}'
    result = helpers.run(["unshare", "--mount", "sh", "-euc", script], helpers.environment(LD_HUGEPAGES_OPTIONS=options))
    if result.returncode == 77:
        pytest.skip("cannot be remounted here")
    assert "text stays: its file cannot be mapped again" in result.stderr, result.stderr
    assert result.stdout == helpers.run([app]).stdout


def change_last_of_text(file):
    """Changes a byte of FILE that is mapped with its text."""
    text = next(h for h in read_headers(file) if h.flags & PF_X and h.file_bytes > helpers.HUGE)
    with open(file, "r+b") as opened:
        opened.seek(text.offset + text.file_bytes - 1)
        opened.write(b"\xcc")
    return text


def test_another_file_at_its_text(images, builder, app, library, tmp_path):
    """A constructor has mapped another file over the text, at the same offset and with the same protection, without writing
    to it."""
    other = tmp_path / "other"
    shutil.copy(app, other)
    text = change_last_of_text(other)
    at = -(-text.vaddr // helpers.HUGE) * helpers.HUGE
    (tmp_path / "map.c").write_text("""
        #include <fcntl.h>
        #include <sys/mman.h>
        #include <unistd.h>
        __attribute__((constructor)) static void set(void) {
            char *at = (char *)%#xUL;
            if (mmap(at, %#x, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, open("%s", O_RDONLY), %#x) != at)
                _exit(77);
        }""" % (at, helpers.HUGE, other, text.offset + at - text.vaddr))
    special = builder.compile(tmp_path / "map.so", tmp_path / "map.c", "-shared", "-fPIC", "-Wl,-z,initfirst")
    env = helpers.preload(library, special, patterns="main", options=images.options("verbose=2", "data=off"))
    result = helpers.run([app], env)
    assert result.stdout == helpers.run([app]).stdout
    assert "text stays: its mappings do not match its program headers" in result.stderr and "pages image" not in result.stderr, result.stderr


def test_another_file_at_its_path(images, builder, library, tmp_path):
    """Another file was mounted over the library's when that was mapped already, and has an image of its own."""
    program, [built] = builder.with_library("dso-aligned")
    mapped, other = tmp_path / f"{built.name}.1", tmp_path / "other"
    for path in mapped, other:
        shutil.copy(built, path)
    change_last_of_text(other)
    images.add(other)
    (tmp_path / "over.c").write_text("""
        #include <sys/mount.h>
        #include <unistd.h>
        __attribute__((constructor)) static void set(void) {
            if (mount("%s", "%s", 0, MS_BIND, 0) != 0)
                _exit(77);
        }""" % (other, mapped))
    special = builder.compile(tmp_path / "over.so", tmp_path / "over.c", "-shared", "-fPIC", "-Wl,-z,initfirst")
    env = helpers.environment(LD_HUGEPAGES="libbig*", LD_HUGEPAGES_OPTIONS=images.options("verbose=2", "data=off"),
                              LD_LIBRARY_PATH=tmp_path)
    result = helpers.run(["unshare", "--mount", "sh", "-c", f'LD_PRELOAD="{library} {special}" exec {program}'], env)
    assert result.stdout == helpers.run([program]).stdout
    assert "text stays: there is no image of it" in result.stderr and "pages image" not in result.stderr, result.stderr
