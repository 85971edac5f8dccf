# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that are restricted, by their parents or by themselves, by a filter that kills for every call that the
program does not need (or by PR_SET_MDWE, Landlock): the program lives and does the same, and all text that can move moves.

The filter is made from a trace of the plain program, so that any other call of hugeld's is the end, but for the lists below.
doc/limits.md has them for users."""

import contextlib
import os
import pathlib
import re
import sys

import pytest

import helpers
from smaps import read_smaps

sys.path.append(str(helpers.ROOT / "tests/dlopen"))

from tables import compile_c, link_table  # noqa: E402  (its folder has just been added)

# The calls of a program's memory allocator.
ALLOCATOR = {"mmap", "munmap", "mprotect", "mremap", "madvise"}
# hugeld's other calls, under a filter that was inherited. Of these only readlinkat, rt_sigprocmask and the dynamic linker's
# own calls (openat, read, close, mmap) come before the filter is known.
INHERITED = ALLOCATOR | {"readlinkat", "rt_sigprocmask", "pread64", "prlimit64"}
LATER = {"pwrite64"}  # for objects that come later, in the preloader
LINES = {"fstat"}  # before a line is written
STORE = {"fstat", "fstatfs"}  # for a store of images,
OWN_STORE = STORE | {"getegid"}  # and for one that is the user's own
if pathlib.Path("/run/hugeld").exists():
    INHERITED |= STORE
CONTAINS_TEXT = helpers.HUGE  # 4 MiB of text or read-only data have a whole huge page at any address
MEMFD = "/memfd:hugeld"
USER = 12345
STRICT = ("strict=on", "verbose=1")


@pytest.fixture(scope="module")
def table(shared_folder):
    return link_table(shared_folder / "libtable.so", 3)


def compile_sandbox(output, *arguments):
    compile_c(helpers.ROOT / "tests/surroundings/sandbox.c", output, "-DNUMBER=7", helpers.ROOT / "tests/dlopen/table.S",
              *arguments, "-l:libseccomp.a")
    return output


@pytest.fixture(scope="module")
def sandbox(shared_folder, confine):
    """sandbox.c with a large table of its own.  (confine says what is missing.)"""
    return compile_sandbox(shared_folder / "sandbox")


@pytest.fixture(scope="module")
def aligned_sandbox(shared_folder, confine):
    """The sandbox linked at the size of a huge page: hugeld asks whether the page cache has it on huge pages."""
    return compile_sandbox(shared_folder / "aligned-sandbox", "-Wl,-z,max-page-size=0x200000")


class Way:
    """A way by which hugeld comes into a program, or none: COMMAND becomes it."""

    def __init__(self, command, library):
        self.command, self.library = command, library

    def environment(self, patterns, options):
        libraries = [self.library] if self.library and patterns else []
        return helpers.preload(*libraries, patterns=patterns, options=f"backend=hugetlb,{options}" if patterns else None)

    @contextlib.contextmanager
    def started(self, argv, patterns=None, options="", prefix=()):
        """ARGV, which has printed its first sum or has ended."""
        argv = [*prefix, *self.command, *argv]
        process = helpers.start(argv, self.environment(patterns, options), stdin=-1)
        try:
            process.first = process.stdout.readline() + process.stdout.readline()
            yield process
        finally:
            helpers.end_process(process)

    def finish(self, process):
        stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
        return process.returncode, process.first + stdout, stderr

    def run(self, *arguments, **options):
        with self.started(*arguments, **options) as process:
            return self.finish(process)

    def calls(self, argv, folder, since=""):
        """The names of the calls of ARGV without hugeld, after it has written SINCE."""
        log = folder / "calls"
        code, _, stderr = self.run(argv, prefix=["strace", "-o", log])
        assert code == 3, stderr
        return set(re.findall(r"^(\w+)\(", log.read_text().partition(since)[2] if since else log.read_text(), re.M))


@pytest.fixture(params=["preload", "ldso"])
def way(request, library, strace):
    if request.param == "preload":
        return Way([], library)
    linker = helpers.BUILD / "ldso" / "ld.so"
    if not linker.exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")
    return Way([linker], None)


def huge_bytes(process, flag=""):
    """The bytes on hugetlb pages, by the file that they are mapped from."""
    found = {}
    for m in read_smaps(process.pid):
        if m.is_hugetlb and flag in m.permissions:
            found[m.name.split(" ")[0]] = found.get(m.name.split(" ")[0], 0) + m.hugetlb_bytes
    return found


def only(calls):
    return "only=" + ",".join(sorted(calls))


def check_huge(process):
    """Text and read-only data are on huge pages."""
    assert process.first.count("\n") == 2, helpers.state_of(process.pid)
    assert sum(huge_bytes(process, "x").values()) >= CONTAINS_TEXT
    assert sum(huge_bytes(process).values()) >= 2 * CONTAINS_TEXT


# --- inherited ---


@pytest.mark.parametrize("options, more", [("", set()), ("data=thp,bss=thp", set()), ("verbose=3,strict=on", LINES)],
                         ids=["default", "data", "lines"])
def test_inherited(way, sandbox, confine, pool, tmp_path, options, more):
    pool(64)
    argv = [sandbox, "none"]
    prefix = confine(only(way.calls(argv, tmp_path) | INHERITED | more))
    plain = way.run(argv, prefix=prefix)
    assert plain[0] == 3
    with way.started(argv, "main", options, prefix) as process:
        check_huge(process)
        assert way.finish(process)[:2] == plain[:2]


def test_unshare_kills(builder, surround, confine, pool, thp):
    """Whether another process shares the memory is not asked under a filter, which may kill for that.  So data stays, which others
    could write to; text moves."""
    pool(64)
    app = builder.executable("nopie", words=6 * 2**17)
    outcome = surround([app], {app.name: ("text", "rodata")}, prefix=confine("kill=unshare"),
                       options="backend=hugetlb,data=thp,verbose=1")
    assert f"{app.name}: data stays: another process may share its memory" in outcome.stderr


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_no_copy_in_vain(library, strace, sandbox, confine, pool, thp, tmp_path, backend):
    """Where mremap does not keep text in its place (Linux 5.12 and before, valgrind, a filter), no copy is made first."""
    pool(64)
    log = tmp_path / "moved"
    prefix = [*confine("deny=mremap"), "/usr/bin/env", "strace", "-o", log]
    code, _, stderr = Way([], library).run([sandbox, "none"], "main", f"backend={backend},verbose=1", prefix)
    assert code == 3 and "text stays: the kernel refuses to move huge pages to its address" in stderr
    assert not re.search("MADV_HUGEPAGE|MAP_HUGETLB|mremap.*MREMAP_FIXED", log.read_text())


def test_inherited_by_aligned(way, aligned_sandbox, confine, pool, tmp_path):
    pool(64)
    argv = [aligned_sandbox, "none"]
    prefix = confine(only(way.calls(argv, tmp_path) | INHERITED))
    plain = way.run(argv, prefix=prefix)
    with way.started(argv, "main", prefix=prefix) as process:
        assert process.first == plain[1][:len(process.first)] and process.first.count("\n") == 2
        assert way.finish(process) == plain


def test_inherited_with_an_own_store(way, aligned_sandbox, confine, images, tmp_path):
    """The image is the user's own."""
    argv, image = [aligned_sandbox, "none"], images.add(aligned_sandbox)
    os.chown(image, USER, USER)
    prefix = [*helpers.become(USER), *confine(only(way.calls(argv, tmp_path) | INHERITED | OWN_STORE))]
    plain = way.run(argv, prefix=prefix)
    assert plain[0] == 3
    with way.started(argv, "main", images.options(), prefix) as process:
        assert process.first == plain[1][:len(process.first)] and process.first.count("\n") == 2, helpers.state_of(process.pid)
        assert sum(m.kb["ShmemPmdMapped"] for m in read_smaps(process.pid) if m.name == str(image)) > 0
        assert way.finish(process) == plain


def test_inherited_and_nothing_more(way, sandbox, confine, pool, tmp_path):
    """The tests here rely on the filter: it kills for one call that is missing."""
    pool(64)
    argv = [sandbox, "none"]
    prefix = confine(only((way.calls(argv, tmp_path) | INHERITED) - {"mremap"}))
    assert way.run(argv, prefix=prefix)[0] == 3
    assert way.run(argv, "main", prefix=prefix)[0] == -31, "SIGSYS"


def test_before_the_filter_is_known(way, sandbox, pool, tmp_path):
    """Nothing beyond the list is called until the process's status has been read, by its first thread's name at the start."""
    pool(64)
    argv, log = [sandbox, "none"], tmp_path / "moved"
    known = way.calls(argv, tmp_path) | {"readlinkat", "rt_sigprocmask"}
    with way.started(argv, "main", prefix=["strace", "-o", log]) as process:
        assert way.finish(process)[0] == 3
    before, found, _ = log.read_text().partition("self/status")
    assert found and set(re.findall(r"^(\w+)\(", before, re.M)) <= known


@pytest.mark.parametrize("options, more", [("", set()), ("verbose=1", LINES)], ids=["default", "lines"])
def test_later_under_what_was_inherited(way, sandbox, table, confine, pool, tmp_path, options, more):
    """The filter has not changed: the object moves."""
    pool(64)
    argv = [sandbox, "none", table]
    calls = way.calls(argv, tmp_path) | INHERITED | (LATER if way.library else set()) | more
    plain = way.run(argv, prefix=confine(only(calls)))
    with way.started(argv, f"{table.name}*", options, confine(only(calls))) as process:
        check_huge(process)
        assert way.finish(process) == plain


# --- by the program itself ---

RESTRICTED = "the process has restricted itself since it started (seccomp, or a sandbox without /proc); load it earlier: " \
             "link the program against it, or preload it"


@pytest.mark.parametrize("inherited", [False, True], ids=["", "on top"])
@pytest.mark.parametrize("options", ["", *STRICT])
def test_own_filter(way, sandbox, table, confine, pool, tmp_path, options, inherited):
    """It allows the calls of dlopen without hugeld."""
    pool(64)
    calls = way.calls([sandbox, "none", table], tmp_path, since='write(1, "start')
    assert "munmap" not in calls and "rt_sigprocmask" not in calls, "what is to be found would not be"
    argv = [sandbox, only(calls | (LINES if "verbose" in options else set())), table]
    prefix = confine("deny=reboot") if inherited else []
    plain = way.run(argv, prefix=prefix)
    with way.started(argv, f"{table.name}*", options, prefix) as process:
        assert huge_bytes(process) == {}
        code, stdout, stderr = way.finish(process)
    assert (code, stdout) == plain[:2] and code == 3
    assert stderr == (f"hugeld: {table.name}: text stays: {RESTRICTED}\n" if "verbose" in options else "")


@pytest.mark.parametrize("backend", ["auto", "thp"])
def test_mdwe(way, sandbox, table, pool, thp, backend):
    pool(64)
    argv = [sandbox, "mdwe", table]
    plain = way.run(argv)
    if plain[0] == 77:
        pytest.skip("the kernel has no PR_SET_MDWE (Linux 6.3)")
    with way.started(argv, f"main:{table.name}*", f"backend={backend},verbose=1") as process:
        found = huge_bytes(process, "x")
        code, stdout, stderr = way.finish(process)
    assert (code, stdout) == plain[:2] and code == 3
    if backend == "auto":
        assert found.pop("/anon_hugepage") >= CONTAINS_TEXT, "the executable, before"
        assert list(found) == [MEMFD] and found[MEMFD] >= CONTAINS_TEXT and stderr == ""
    else:
        assert "a policy forbids making written memory executable" in stderr and found == {}


@pytest.mark.parametrize("options", ["", *STRICT])
def test_landlock(way, sandbox, table, pool, options):
    """Neither /proc nor /sys can be opened any more."""
    pool(64)
    argv = [sandbox, "landlock", table]
    plain = way.run(argv)
    if plain[0] == 77:
        pytest.skip("Landlock is not switched on (Linux 5.13, lsm=landlock)")
    with way.started(argv, f"{table.name}*", options) as process:
        assert huge_bytes(process) == {}
        code, stdout, stderr = way.finish(process)
    assert (code, stdout) == plain[:2] and code == 3
    assert stderr == (f"hugeld: {table.name}: text stays: {RESTRICTED}\n" if "verbose" in options else "")


# --- a limit ---


@pytest.mark.parametrize("kib", [0, 9 << 10, 10 << 10])
def test_limit_of_files(builder, confine, library, pool, kib):
    """RLIMIT_FSIZE limits a memfd, too: beyond it the kernel sends SIGXFSZ."""
    pool(64)
    app = builder.executable("nopie")  # five pages of text
    limited = ["sh", "-c", 'ulimit -f $1; shift; exec "$@"', "sh", kib * 1024 // 512, *confine("mdwe")]
    result = helpers.run([*limited, app], helpers.preload(library, options="backend=hugetlb,verbose=2,data=off"))
    plain = helpers.run([app])
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), result
    assert ("text 5 pages hugetlb" in result.stderr) == (kib == 10 << 10), result.stderr
    assert "rodata 1 page hugetlb" in result.stderr
