# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects that come later or elsewhere (dlopen, threads, namespaces, auditors), how they are linked, and the dynamic
linker's other work with them: the same results as without hugeld, on huge pages, and dlclose gives everything back."""

import os
import pathlib
import re
import subprocess

import pytest

import helpers
import programs
from linked import by_command, by_run
from linkers import BY_ROOT, LINKED, over_interpreter
from smaps import read_smaps

HERE = pathlib.Path(__file__).resolve().parent
ON_HUGE_PAGES = re.compile(r"^hugeld: libbig[\w-]*\.so: text 5 pages hugetlb", re.M)

@pytest.fixture(scope="module")
def library(features):
    return features


def same_on_huge_pages(linked, argv, wanted=ON_HUGE_PAGES, **changes):
    """ARGV does the same with everything on huge pages as without hugeld, and hugeld says WANTED."""
    plain = helpers.run(argv, helpers.environment(**changes))
    assert plain.returncode == 0, plain.stderr
    done = linked.run(argv, "*", "backend=hugetlb,verbose=2", **changes)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
    assert wanted.search(done.stderr), done.stderr
    return plain, done


@pytest.mark.parametrize("link", LINKED)
def test_linked(linked, library, loads, pool, link):
    pool(64)
    argv = [loads, "once", library(link)]
    plain = helpers.run(argv)
    if link == "execstack" and plain.returncode != 0:  # dlopen refuses it since glibc 2.41
        assert "cannot enable executable stack" in plain.stderr
        done = linked.run(argv, "*", "backend=hugetlb")
        assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
        return
    same_on_huge_pages(linked, argv)


@pytest.mark.parametrize("how", ["once", "new", "thread", "threads"])
def test_loaded(linked, library, loads, pool, how):
    pool(64)
    _, done = same_on_huge_pages(linked, [loads, how, library(), "8"])
    if how == "new":
        assert len(ON_HUGE_PAGES.findall(done.stderr)) == 2


def test_forked_while_it_is_loaded(linked, builder, loads, thp, tmp_path):
    """A child loads something while its parent's other thread is in the middle of that."""
    _, [library] = builder.with_library("dso")
    (tmp_path / "small.c").write_text("int small = 1;")
    small = builder.compile(tmp_path / "small.so", tmp_path / "small.c", "-shared", "-fPIC")
    done = linked.run([loads, "forks", library, "20", small], "*", "backend=thp")
    assert (done.returncode, done.stdout) == (0, ""), done


@pytest.mark.parametrize("variables", [{"LD_BIND_NOW": "1"}, {"GLIBC_TUNABLES": "glibc.malloc.perturb=85"},
                                       {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=1024"}, {"LD_BIND_NOT": "1"},
                                       {"GLIBC_TUNABLES": "glibc.elf.thp=1"},  # since 2.44
                                       {"LD_DYNAMIC_WEAK": "1"},
                                       {"LD_DEBUG": "bindings,libs,reloc,scopes,statistics,symbols,versions"}], ids=lambda v: "-".join(v))
def test_other_variables(linked, library, loads, pool, variables):
    pool(64)
    same_on_huge_pages(linked, [loads, "once", library("lazy")], **variables)


def test_profiled(linked, library, loads, pool, tmp_path):
    """LD_PROFILE counts calls between objects, also from and to moved ones."""
    pool(64)
    variables = {"LD_PROFILE": "libc.so.6", "LD_PROFILE_OUTPUT": tmp_path}
    same_on_huge_pages(linked, [loads, "once", library("lazy")], **variables)
    assert (tmp_path / "libc.so.6.profile").stat().st_size > 0


# The first code of a program: an array that runs before all constructors, and of a library: its constructor.
FIRST = """
#include <unistd.h>
static void first(void) { if (write(2, "first\\n", 6) != 6) _exit(9); }
#ifdef LIBRARY
__attribute__((constructor)) static void construct(void) { first(); }
#else
__attribute__((section(".preinit_array"), used)) static void (*entry)(void) = first;
#endif
"""


@pytest.mark.parametrize("way", [by_run, by_command])
@pytest.mark.parametrize("what", ["executable", "library"])
def test_before_any_constructor(linked, builder, pool, way, what):
    pool(64)

    def build(folder):
        first, main = builder.write("first.c", FIRST), builder.write("main.c", programs.MAIN)
        if what == "executable":
            return builder.compile(folder / "first", first, main, "-no-pie", "-fPIE", "-rdynamic", *builder.object())
        library = builder.compile(folder / "libfirst.so", "-shared", "-fPIC", "-DLIBRARY", first, *builder.object(),
                                  "-Wl,-z,initfirst")
        return builder.compile(folder / "first", main, "-Wl,--no-as-needed", library, "-Wl,-rpath,$ORIGIN")

    app = builder.once(f"first-{what}", build)
    done = linked.run([app], "main:libfirst*", "backend=hugetlb,verbose=2,segments=text", way)
    assert done.returncode == 3
    moved = "first" if what == "executable" else "libfirst.so"
    assert re.search(rf"^hugeld: {moved}: text \d pages hugetlb\nfirst$", done.stderr, re.M), done.stderr


@pytest.mark.parametrize("patterns", ["main", "*", "app-*:!main", "nothing"])
@pytest.mark.parametrize("options", ["verbose=2", "verbose=3,data=hugetlb,bss=thp", "backend=huge,reserve_pages=x,verbose=3",
                                     "verbose=1,reserve_pages=1000000", "exe=other,verbose=3"])
def test_same_lines_as_the_preloader(linked, builder, pool, thp, root, ldso, installed, patterns, options):
    """The lines about an executable at its own address are the same; those about other objects are not."""
    pool(64)
    app = builder.executable("nopie")
    by_ldso = helpers.run([*over_interpreter(BY_ROOT, ldso, installed), app], linked.environment(patterns, options))
    said = [[line for line in done.stderr.splitlines() if "app-nopie: " in line or "LD_HUGEPAGES" in line]
            for done in (helpers.run_preloaded([app], patterns, options), by_ldso)]
    assert said[0] == said[1]
    if (patterns, options) == ("main", "verbose=2"):
        assert said[0] == ["hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb"]


def test_preloaded(linked, library, loads, pool):
    pool(64)
    env = linked.environment("libbig*", "verbose=2", [library()])
    done = helpers.run([linked.ldso, loads, "once", library()], env)
    plain = helpers.run([loads, "once", library()])
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert len(ON_HUGE_PAGES.findall(done.stderr)) == 1


def test_auditor(linked, builder, loads, library, pool):
    """The auditor itself, in its own namespace, and the objects that it audits."""
    pool(64)

    def build(folder):
        return builder.compile(folder / "libbig-auditor.so", "-shared", "-fPIC", HERE / "auditor.c", *builder.object())

    auditor = builder.once("auditor", build)
    plain, done = same_on_huge_pages(linked, [loads, "once", library()], LD_AUDIT=auditor)
    assert len(ON_HUGE_PAGES.findall(done.stderr)) == 2
    assert plain.stderr in done.stderr and plain.stderr.startswith("audited 1")


@pytest.mark.parametrize("how", ["small", "coroutine", "inside", "handler"])
def test_small_stack(linked, library, loads, pool, how):
    """dlopen works on a stack that hardly has room for glibc's own work."""
    pool(64)
    same_on_huge_pages(linked, [loads, how, library()])


@pytest.mark.parametrize("way", [by_run, by_command])
@pytest.mark.parametrize("opened", [False, True], ids=["needed", "opened"])
def test_uprobe(linked, builder, library, loads, pool, probe, way, opened):
    """The uprobe is set on the file before it is loaded. Text is read from the file, which has no breakpoint: the object
    would lose the probe, so it stays, and the probe is hit as often as without hugeld."""
    pool(64)
    app, [probed] = builder.with_library("dso")
    argv, probed = ([loads, "once", library()], library()) if opened else ([app], probed)
    probe = probe(probed)
    probe.set()
    plain = helpers.run(argv)
    hits = probe.hits()
    assert hits >= 2
    done = linked.run(argv, "*", "backend=hugetlb,verbose=1", way)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert re.search(r"^hugeld: libbig.*: text stays: it was changed in memory", done.stderr, re.M), done.stderr
    assert probe.hits() == 2 * hits


@pytest.mark.check_all
@pytest.mark.parametrize("options", ["backend=hugetlb", "backend=thp", "backend=hugetlb,data=thp,bss=thp"])
def test_thousand_rounds(linked, library, loads, pool, thp, options):
    """dlopen and dlclose: mappings, descriptors, memory and the pool are the same after 1000 rounds as after 10."""
    pool(16)
    large = "bss" in options
    argv = [loads, "rounds", library(words=6 * 2**17) if large else library(), "200" if large or "thp" in options else "1000"]
    done = linked.run(argv, "*", options, timeout=300)
    assert (done.returncode, done.stdout) == (0, "maps 0, descriptors 0, grown 0\n"), done.stderr


def test_strict_is_for_the_start(linked, library, loads, pool, tmp_path):
    """A library that dlopen loads ends no program, and no line says that it does; a small library of the same name is
    there at startup."""
    pool(0)
    same = tmp_path / library().name
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", same], check=True)
    argv = [loads, "once", library()]
    plain = helpers.run(argv)
    done = linked.run(argv, library().name, "backend=hugetlb,strict=on,exe=loads*", preloaded=[same])
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.parametrize("way", [by_run, by_command])
@pytest.mark.parametrize("patterns", ["nod", "main,libc*"])
def test_names_that_nothing_has(linked, builder, way, patterns):
    """A name that no object has is silent by default, gets a line at verbose=1, and ends the program with strict=on."""
    app, plain = builder.tiny(), (4, "tiny\n")
    runs = [linked.run([app], f"libc.so.6:{patterns}:ld-linux*", options, way)
            for options in ("", "verbose=1,exe=tiny", "strict=on,exe=tiny")]
    assert [(done.returncode, done.stdout) for done in runs] == [plain, plain, (127, "")]
    told = f"hugeld: LD_HUGEPAGES: {patterns}: no object that is loaded at startup has this name"
    assert [done.stderr.count(told) for done in runs] == [0, 1, 1] and runs[0].stderr == ""
    assert [done.stderr.count("hugeld: LD_HUGEPAGES") for done in runs] == [0, 1, 1]


@pytest.mark.parametrize("way", [by_run, by_command])
def test_small_objects_are_counted(linked, builder, way):
    app = builder.tiny()
    each = linked.run([app], "*", "verbose=3,exe=tiny", way).stderr.count(" text stays: no whole huge page lies inside\n")
    told = linked.run([app], "*", "verbose=2,exe=tiny", way).stderr.splitlines()
    assert each > 1 and f"hugeld: {each} objects stay: no whole huge page lies inside; verbose=3 names each" in told
    assert not any("text stays" in line for line in told)


def test_pool_after_each_round(linked, library, loads, pool):
    """The pool serves one copy only: if a single page stayed behind, the second round would say so."""
    pool(6)
    done = linked.run([loads, "calm-rounds", library(), "20"], "libbig*", "backend=hugetlb,verbose=2")
    assert len(ON_HUGE_PAGES.findall(done.stderr)) == 20, done.stderr
    assert "stays" not in done.stderr


def test_debug_output(linked, library, loads, pool):
    """LD_DEBUG=files gives the lines of verbose=3, also where verbose is 0."""
    pool(64)
    plain = helpers.run([loads, "once", library()])
    done = linked.run([loads, "once", library()], "*", "verbose=0", LD_DEBUG="files")
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    lines = [line.split("\t", 1)[1] for line in done.stderr.splitlines() if "\t" in line]
    assert any(re.match(r"hugeld: libbig-now.so: 0x\w+-0x\w+ r-x text 5 pages hugetlb$", line) for line in lines)
    assert "hugeld: libc.so.6: text stays: no whole huge page lies inside" in lines
    assert not any(line.startswith("hugeld:") for line in done.stderr.splitlines())


def test_debugger(linked, library, loads, pool, root):
    """gdb attaches, and finds and reads the functions of the moved library."""
    pool(64)
    with linked.paused([loads, "pause", library()], "*") as process:
        process.resume()
        helpers.wait_until(lambda: "libbig" in pathlib.Path(f"/proc/{process.pid}/maps").read_text() and
                           helpers.state_of(process.pid) == "T", what="the second stop")
        assert any(m.is_hugetlb for m in read_smaps(process.pid))
        gdb = ["gdb", "-nx", "-batch", "-p", str(process.pid), "-ex", "info sharedlibrary", "-ex",
               "info symbol use_features", "-ex", "x/2i use_features"]
        result = subprocess.run(gdb, capture_output=True, text=True, timeout=120, env=helpers.environment())
        assert "use_features in section .text" in result.stdout, result.stdout + result.stderr
        assert "libbig-now.so" in result.stdout and "<use_features>:" in result.stdout
        assert process.finish()[0] == 0


def test_unset_does_nothing(linked, library, loads, strace, ldso, installed):
    """Without LD_HUGEPAGES ours makes the same system calls as the installed one."""
    calls = []
    for linker in (installed, ldso):
        command = ["strace", "-f", "-o", "/dev/stderr", "-e", "trace=!read,execve", linker, loads, "once", library()]
        done = helpers.run(command, helpers.environment(LD_HUGEPAGES_OPTIONS="verbose=3"))
        assert done.returncode == 0, done.stderr
        calls.append(re.findall(r"^\d+ +(\w+)\(", done.stderr, re.M))
    assert calls[0] == calls[1] and len(calls[0]) > 20


@pytest.mark.parametrize("mode", ["--list", "--verify"])
def test_listing_moves_nothing(linked, library, loads, pool, ldso, mode):
    pool(64)
    done = helpers.run([ldso, mode, loads], linked.environment("*", "verbose=3"))
    assert done.returncode == 0 and done.stderr == ""
    done = helpers.run([ldso, loads], linked.environment("*", "verbose=3", LD_TRACE_LOADED_OBJECTS="1"))
    assert done.returncode == 0 and done.stderr == "" and "libc.so.6" in done.stdout


def test_perf_map(linked, builder, library, pool):
    """perf_map=on: functions of the executable and of objects that came after it."""
    pool(64)
    app = builder.executable("nopie")
    with linked.paused([app], "*", "perf_map=on") as process:
        path = pathlib.Path(f"/tmp/perf-{process.pid}.map")
        before = path.read_text()
        process.finish()
        path.unlink()
    env = linked.environment("*", "perf_map=on", [linked.pause, library()])
    with helpers.paused([linked.ldso, app], env, os.path.basename(linked.ldso)) as process:
        path = pathlib.Path(f"/tmp/perf-{process.pid}.map")
        after = path.read_text()
        process.finish()
        path.unlink()
    names = re.findall(r"^[0-9a-f]+ [0-9a-f]+ (.*)$", after, re.M)
    assert names.count("text_c") == 2 and "use_features" in names and "main" in names
    assert re.findall(r" text_c$", before, re.M) == [" text_c"]


def test_static_pie_is_untouched(linked, builder, pool):
    pool(64)
    app = builder.tiny("-static-pie")
    done = linked.run([app], "*", "verbose=3")
    assert (done.returncode, done.stdout) == (4, "tiny\n")
    assert "static, the dynamic linker never runs" in done.stderr


def test_command_and_arguments(linked, builder, pool):
    """`ld.so PROGRAM`: main is PROGRAM, under its own name, and exe= means it."""
    pool(64)
    app = builder.executable("nopie")
    done = linked.run([app], "main", "verbose=2,exe=app-*", way=by_command)
    assert done.stderr.startswith("hugeld: app-nopie: text 5 pages hugetlb")
    assert linked.run([app], "main", "verbose=2,exe=other", way=by_command).stderr == ""




# --- libraries that are not selected ---

SHOW = "import ctypes, sys\nfor path in sys.argv[1:]: ctypes.CDLL(path)\nprint(open('/proc/self/maps').read())"


def read_layout(linked, library, patterns, opened_later):
    """The addresses of LIBRARY's mappings: the first one modulo the size of a huge page, and the others from there."""
    if opened_later:
        argv, variables = ["/usr/bin/python3", "-c", SHOW, library], {}
    else:
        argv, variables = ["/bin/cat", "/proc/self/maps"], {"LD_PRELOAD": library}
    env = dict(helpers.preload(patterns=patterns, options="backend=thp"), **variables)
    result = helpers.run(["setarch", "-R", linked.ldso, *argv], {k: str(v) for k, v in env.items()})
    assert result.returncode == 0, result.stderr
    found = [line.split() for line in result.stdout.splitlines() if line.endswith(f" {library}")]
    starts = [int(words[0].split("-")[0], 16) for words in found]
    assert starts, result.stdout
    return starts[0] % helpers.HUGE, [(int(words[0].split("-")[1], 16) - starts[0], words[1], words[2]) for words in found]


@pytest.mark.parametrize("opened_later", [False, True], ids=["preloaded", "dlopen"])
def test_unselected_object_stays_where_it_was(linked, library, thp, opened_later):
    """Naming one object changes nothing for the others: they lie where the kernel puts them, where offsets and addresses
    are congruent. An exclusion is no selection either, by file name or by soname."""
    unset = read_layout(linked, library(), None, opened_later)
    for patterns in ("no-such-object", "libbig*:!libbig*", "!libbig*:no-such-object"):
        assert read_layout(linked, library(), patterns, opened_later) == unset, patterns
    assert read_layout(linked, library(), "libbig*", opened_later) != unset
