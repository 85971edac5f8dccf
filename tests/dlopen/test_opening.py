# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects that come by dlopen and dlmopen move, and dlopen answers as without hugeld."""

import collections
import errno
import fcntl
import os
import re
import shutil
import signal
import struct

import pytest
from elftools.elf.elffile import ELFFile

import helpers
from smaps import read_smaps
from tables import HERE, compile_c, link_table

DT_DEBUG = 21
MOVED = re.compile(r"^hugeld: (\S+): (text \d pages (?:hugetlb|thp).*)$", re.M)


def host(workshop, command=(), env=None, check=lambda pid: None):
    """The output of host, and hugeld's moves; CHECK looks at it while its DSOs are open."""
    process = helpers.start([*command, workshop / "host", workshop], env)
    try:
        helpers.wait_until(lambda: helpers.state_of(process.pid) in ("T", "Z"), what="host stopping")
        check(process.pid)
        os.kill(process.pid, signal.SIGCONT)
        stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(process)
    assert process.returncode == 0, stderr
    return stdout, stderr


def need_scan():
    """Whether the kernel looks for pages in an address range (PAGEMAP_SCAN, Linux 6.7)."""
    with open("/proc/self/pagemap") as pagemap:
        try:
            fcntl.ioctl(pagemap, 0xc0606610, bytearray(struct.pack("Q", 0x60).ljust(0x60, b"\0")))
        except OSError as error:
            if error.errno == errno.ENOTTY:
                pytest.skip("the kernel has no PAGEMAP_SCAN")


def hugetlb_bytes(pid):
    return sum(m.hugetlb_bytes for m in read_smaps(pid))


def thp_text_bytes(pid):
    return sum(m.thp_bytes for m in read_smaps(pid) if "x" in m.permissions)


@pytest.mark.parametrize("backend, measure", [pytest.param("hugetlb", hugetlb_bytes, marks=pytest.mark.check_all(ci=True)), ("thp", thp_text_bytes)])
def test_answers(workshop, library, way, pool, thp, backend, measure):
    """The caller's RUNPATH and namespace, RTLD_NOLOAD, RTLD_NEXT, dlerror, a failing relocation, an open in an open."""
    pool(64)
    plain, _ = host(workshop)
    found = []
    moved, told = host(workshop, *way(library, "lib*", f"backend={backend},verbose=2,data=off"), lambda pid: found.append(measure(pid)))
    assert moved == plain
    assert re.search(r"another, sum [0-9a-f]{16}", plain)
    assert "undefined symbol: nobody_defines_this; then (none)" in plain
    assert "the caller's RUNPATH: /caller/libother.so" in plain and "not main's: error: libonly-main.so" in plain
    counted = collections.Counter(name for name, _ in MOVED.findall(told))
    once = ("libtable3.so", "libmissing.so", "libpick.so", "libother.so", "libown.so")
    assert counted == {"libtable1.so": 3, "libtable2.so": 2, **dict.fromkeys(once, 1)}, told
    # Eight are open at the stop, with at least two whole huge pages of text each.
    assert found[0] >= 8 * 2 * helpers.HUGE


def test_exactly_the_plan(workshop, later, check_plans, pool):
    """Exactly the plan moves, also where segments begin at 2 MiB, and where the base name in LD_HUGEPAGES is one of several."""
    pool(64)
    script = (f"import ctypes, os, signal\n"
              f"a = [ctypes.CDLL('{workshop}/lib' + n + '.so') for n in ('table1', 'aligned', 'table2')]\n"
              f"os.kill(os.getpid(), signal.SIGSTOP)\n")
    process = later(["/usr/bin/python3", "-c", script], "libtable1.so:*/libaligned.so:!libtable2.so")
    try:
        helpers.wait_until(lambda: helpers.state_of(process.pid) in ("T", "Z"), what="python3 stopping")
        pages = check_plans(process.pid, [workshop / "libtable1.so", workshop / "libaligned.so"])
        assert pages >= 6
        os.kill(process.pid, signal.SIGCONT)
        _, stderr = process.communicate(timeout=helpers.PATIENCE)
        assert process.returncode == 0 and stderr == ""
    finally:
        helpers.end_process(process)


@pytest.mark.parametrize("name", ["libaddressed.so", "libnamed.so.6"])
@pytest.mark.parametrize("address", [0x10000000, 0x7ffff0000000])
def test_linked_for_an_address(workshop, library, pool, tmp_path, address, name):
    """A library that does not begin at its bias, which is negative where it was linked above its place; by its path and its
    DT_SONAME."""
    pool(64)
    addressed = link_table(tmp_path / "libaddressed.so", 6, f"-Wl,-Ttext-segment={address:#x},-soname,libnamed.so.6")
    result = helpers.run_preloaded([workshop / "open-close", "calm", 1, addressed], patterns=name,
                                   options="verbose=2,backend=hugetlb", library=library)
    assert result.returncode == 0 and [moved for moved, _ in MOVED.findall(result.stderr)] == ["libaddressed.so"], result


def test_no_place_for_debuggers(workshop, library, pool, tmp_path):
    """A program without DT_DEBUG: lld writes none with -z rodynamic."""
    if not shutil.which("ld.lld"):
        pytest.skip("lld is not installed")
    pool(64)
    app = compile_c(HERE / "open-close.c", tmp_path / "open-close", "-fuse-ld=lld", "-Wl,-z,rodynamic")
    result = helpers.run_preloaded([app, "calm", 1, workshop / "libtable1.so"], patterns="libtable*",
                                   options="verbose=2,backend=hugetlb", library=library)
    assert result.returncode == 0 and [name for name, _ in MOVED.findall(result.stderr)] == ["libtable1.so"], result


def test_two_places_for_debuggers(workshop, library, pool, tmp_path):
    """glibc fills in the last DT_DEBUG.  What the file has in another one is no address."""
    pool(64)
    app = tmp_path / "open-close"
    content = bytearray((workshop / "open-close").read_bytes())
    with open(workshop / "open-close", "rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        start, tags = dynamic["sh_offset"], [tag.entry.d_tag for tag in dynamic.iter_tags()]
    assert tags.index("DT_INIT") < tags.index("DT_DEBUG")
    struct.pack_into("<QQ", content, start + 16 * tags.index("DT_INIT"), DT_DEBUG, 0x1234000)
    app.write_bytes(content)
    app.chmod(0o755)
    result = helpers.run_preloaded([app, "calm", 1, workshop / "libtable1.so"], patterns="libtable*",
                                   options="verbose=2,backend=hugetlb", library=library)
    assert result.returncode == 0 and [name for name, _ in MOVED.findall(result.stderr)] == ["libtable1.so"], result


def test_default_watches_nothing(workshop, later, library, pool):
    """LD_HUGEPAGES=main, or unset: ld.so's page stays the file's, nothing is moved."""
    pool(64)
    for patterns, watched in ((None, False), ("main:!libtable1.so", False), ("main:libtable1.so", True)):
        process = later(["/usr/bin/python3", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"], patterns)
        try:
            helpers.wait_until(lambda: helpers.state_of(process.pid) in ("T", "Z"), what="python3 stopping")
            loader = [m for m in read_smaps(process.pid)
                      if os.path.basename(m.name).startswith("ld-linux") and "x" in m.permissions]
            assert sum(m.kb["Anonymous"] for m in loader) == (4 if watched else 0)
        finally:
            helpers.end_process(process)


@pytest.mark.parametrize("short", [True, False], ids=["pool short", "no memory file"])
def test_what_cannot_be_done_is_told(workshop, later, strace, pool, short):
    """A line gives the reason for each open; or one at the start says that none will move."""
    pool(0)
    argv = [workshop / "open-close", 2, workshop / "libtable1.so"]
    if short:
        process = later(argv, "libtable*", "verbose=1,backend=hugetlb")
        expected = ["libtable1.so: text stays: the huge page pool cannot serve it; "] * 2
    else:
        process = later([*strace("pwrite64", "EPERM", "1+"), *argv], "libtable*", "verbose=1,exe=open-close")
        expected = ["everything that dlopen loads stays: /proc/self/mem cannot be written"]
    stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    assert process.returncode == 0 and "least 0, most 0" in stdout
    told = [line for line in stderr.splitlines() if "stays" in line and "rodata" not in line]
    assert len(told) == len(expected) and all(f"hugeld: {e}" in t for e, t in zip(expected, told)), stderr


LIMITED = "import ctypes, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)); ctypes.CDLL(sys.argv[1])"


@pytest.mark.parametrize("backend", ["thp", "auto"])
def test_no_descriptor(workshop, later, pool, backend):
    """dlopen needs one descriptor and gives it back; hugeld finds no second one, and no fault with the machine's settings."""
    pool(0)
    process = later(["/usr/bin/python3", "-c", LIMITED, workshop / "libtable1.so"], "libtable*", f"backend={backend},verbose=1")
    _, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    assert process.returncode == 0 and "libtable1.so: text stays: no file can be opened (RLIMIT_NOFILE" in stderr, stderr
    assert "transparent" not in stderr and "/proc" not in stderr, stderr


def test_long_list(workshop, later, pool):
    """The names are kept, however many there are."""
    pool(64)
    names = ":".join([*["lib-of-no-program*"] * 5000, "libtable*"])
    process = later([workshop / "open-close", 2, workshop / "libtable1.so"], names, "verbose=2,backend=hugetlb")
    _, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    assert process.returncode == 0 and "libtable1.so: text" in stderr and "stays" not in stderr, stderr


@pytest.fixture
def opened(workshop, library, thp, tmp_path):
    """opened(backend, ...): the files that a program opens which opens and closes two libraries twice, and hugeld's lines."""

    def run(backend, *words):
        log = tmp_path / "strace"
        env = helpers.preload(library, patterns="libtable*:libaligned*", options=f"backend={backend},verbose=3,segments=text+rodata")
        preload = env.pop("LD_PRELOAD")
        result = helpers.run(["strace", "-f", "-o", log, "-e", "trace=openat,ioctl", *words, "-E", f"LD_PRELOAD={preload}",
                              workshop / "open-close", "calm", "2", workshop / "libtable1.so", workshop / "libaligned.so"], env)
        assert result.returncode == 0 and len(MOVED.findall(result.stderr)) == 4, result.stderr
        return re.findall(r'openat\(AT_FDCWD, "(.*?)"', log.read_text()), result.stderr

    return run


@pytest.mark.parametrize("backend, free", [("thp", 0), ("auto", 0), ("auto", 64)])
def test_no_smaps(pool, opened, backend, free):
    """The kernel walks all memory of the program for smaps, with every signal blocked: it is asked for the new mappings alone."""
    need_scan()
    pool(free)
    files, _ = opened(backend)
    assert "/proc/self/pagemap" in files and "/proc/self/smaps" not in files, files


def test_no_descriptor_of_the_memory(opened):
    """A child that another thread forks meanwhile would have it, with all rights, for as long as it lives: only the start opens it."""
    files, _ = opened("thp")
    assert files.count("/proc/self/mem") == 1, files


def test_smaps_once(opened):
    """A kernel before Linux 6.7: smaps is read once for each span."""
    files, told = opened("thp", "-einject=ioctl:error=ENOTTY")
    spans = re.findall(r"^hugeld: .* (?:text|rodata) \d+ pages? thp$", told, re.M)
    assert files.count("/proc/self/smaps") == len([s for s in spans if ": 0x" in s]) >= 4, (files, told)


def test_stderr_that_became_something_else(workshop, later, pool, tmp_path):
    """A daemon's descriptor 2 may be a file of its own by then: nothing is written to it."""
    pool(64)
    script = (f"import ctypes, os\n"
              f"os.dup2(os.open('{tmp_path}/data', os.O_CREAT | os.O_RDWR), 2)\n"
              f"ctypes.CDLL('{workshop}/libtable1.so')\n"
              f"print(open('/proc/self/smaps_rollup').read())\n")
    process = later(["/usr/bin/python3", "-c", script], "libtable1.so", "verbose=3")
    stdout, _ = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    assert process.returncode == 0 and re.search(r"Private_Hugetlb: +[1-9]", stdout)
    assert (tmp_path / "data").read_text() == ""


def open_after_overwriting(later, library, options=""):
    """smaps of a program that writes over its environment's bytes, as setproctitle and its like do, and then opens LIBRARY."""
    script = (f"import ctypes\n"
              f"words = open('/proc/self/stat').read().rpartition(')')[2].split()\n"
              f"start, end = int(words[47]), int(words[48])\n"
              f"ctypes.memset(start, ord('x'), end - start - 1)\n"
              f"ctypes.CDLL('{library}')\n"
              f"print(open('/proc/self/environ').read()[:4], open('/proc/self/smaps').read())\n")
    process = later(["/usr/bin/python3", "-c", script], library.name, options)
    stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    assert process.returncode == 0 and stdout.startswith("xxxx"), stderr
    return stdout


def test_environment_that_was_overwritten(workshop, later, pool):
    pool(64)
    assert re.search(r"Private_Hugetlb: +[1-9]", open_after_overwriting(later, workshop / "libtable1.so"))


def test_store_in_an_environment_that_was_overwritten(workshop, later, images):
    library = workshop / "libaligned.so"
    image = images.add(library)
    assert f" {image}\n" in open_after_overwriting(later, library, images.options())


def test_filter_that_came_after_start(workshop, later, pool):
    """A sandbox that forbids the calls of a move, and kills for them: hugeld asks first."""
    pool(64)
    script = (helpers.forbid_calls("process_vm_readv", "userfaultfd", "mremap", "madvise", "memfd_create") +
              f"ctypes.CDLL('{workshop}/libtable1.so')\n"
              f"print(open('/proc/self/smaps_rollup').read())\n")
    process = later(["/usr/bin/python3", "-c", script], "libtable1.so")
    stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    assert process.returncode == 0, (process.returncode, stderr)
    assert re.search(r"Private_Hugetlb: +0 kB", stdout)


def test_data_beside_threads(library, later, thp, tmp_path):
    """Writable data of objects that a program with threads opens stay, and preloading hugeld as the last object is no help.  Data
    that are zero are only advised."""
    source = tmp_path / "data.s"
    source.write_text('.data\n.fill 1048576,8,7\n.bss\n.skip 8388608\n.section .note.GNU-stack,"",@progbits\n')
    compile_c(source, tmp_path / "libdata.so", "-shared")
    script = ("import ctypes, threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); "
              f"ctypes.CDLL({str(tmp_path / 'libdata.so')!r})")
    _, stderr = later(["/usr/bin/python3", "-c", script], "libdata*", "verbose=2,backend=thp,data=thp,bss=thp").communicate(timeout=helpers.PATIENCE)
    assert re.fullmatch(r"hugeld: libdata\.so: data stays: threads that could write to it are already running; preload hugeld as "
                        r"the last object, or use hugeld run --via=ldso\n"
                        r"hugeld: libdata\.so: bss \d pages thp \(advised\)\n", stderr), stderr


def test_small_stack(workshop, library, empty_library, pool, thp):
    """A coroutine's stack on which dlopen works without hugeld: its size cannot be found out, and nothing is below it."""
    pool(0)
    argv = [workshop / "small-stack", workshop / "libtable1.so"]
    plain = helpers.run(argv, helpers.preload(empty_library))
    moved = helpers.run(argv, helpers.preload(library, patterns="libtable1*", options="backend=thp,verbose=2"))
    assert plain.returncode == moved.returncode == 0, moved
    assert MOVED.search(moved.stderr), moved.stderr
    assert int(moved.stdout) <= int(plain.stdout), f"{moved.stdout} bytes, {plain.stdout} without hugeld"
