# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long a program takes to start, from the page cache and from the disk; and the time that is added by each object that it
loads, by the patched linker, by a perf map, and by `hugeld run`."""

import contextlib
import glob
import os
import pathlib
import shutil
import subprocess

import helpers
import pagecache
from helpers import BUILD, HUGELD, LIBRARY, ROOT
from installed import find_cc1plus, find_mysqld_with_symbols, find_node
from measure import LINKER, OUT, Variant, at_once, compile_c, experiment, hugeld, paired_experiment, pairs, take_turns, time_run
from workloads import (STORE, calls, calls_ways, find_rustc, image_of, libraries_of, put_large, share, small_libraries, where,
                       with_own_output, write_nothing, write_short_source)

# --- the start ---


def group_start(plan):
    nothing, empty = OUT / "nothing", OUT / "empty.so"
    (OUT / "empty.c").write_text("typedef int nothing;\n")
    compile_c(nothing, write_nothing())
    compile_c(empty, "-shared", "-fPIC", OUT / "empty.c")
    ways = [Variant("empty", [nothing], LD_PRELOAD=empty), hugeld("hugeld", [nothing], base="empty")]
    yield experiment("start-nothing", "Start of a small program, nothing to move, over an empty preloaded library", "ms",
                     ways, pairs(ways, plan.tiny), note="The limit for the difference is 0.10 ms.")
    for size, place in plan.texts:
        ways = calls_ways(size, place, ["0"])
        put_large(ways)
        huge = where(ways)
        next(way for way in ways if way.name == "linked").base = None  # another program: it is no faster start
        floor, stock = compile_c(OUT / "floor", "-pthread", ROOT / "bench/floor.c"), calls(size, place)
        ways += [Variant("floor-nothing", [floor], None), Variant("floor", [floor, stock], "floor-nothing"),
                 Variant("floor-copy", [floor, "-u", stock], "floor-nothing"),
                 Variant("floor-copy-2", [floor, "-2", stock], "floor-nothing"),
                 Variant("linked-floor-copy", [floor, "-u", calls(size, place, True)], "floor-nothing")]
        values = pairs(ways, plan.short if size <= 128 else max(plan.short // 3, 5))
        yield experiment(f"start-{size}-{place}", f"Start with {size} MiB of text in the page cache, {place}", "ms", ways,
                         values, note="What counts is the difference to the base; the ratio is of whole starts.",
                         huge=huge, size=size, place=place)


@contextlib.contextmanager
def read_ahead(kib):
    """The disk reads KIB ahead inside the block; or its present setting, if that is None."""
    device = os.stat(OUT).st_dev
    setting = pathlib.Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    before = int(setting.read_text())
    with helpers.at_end('printf %s "$2" > "$1"', setting, before):
        if kib:
            setting.write_text(str(kib))
        yield kib or before


def copy_cold(source):
    """A copy of SOURCE that no other process runs, so that it can be evicted."""
    copy = OUT / f"cold-{os.path.basename(source)}"
    if not copy.exists() or copy.stat().st_mtime < os.stat(source).st_mtime:
        shutil.copy(source, copy)
    return copy


def cold_programs():
    """(name, what, argv): text that is all touched, and programs that touch only the pages that they need."""
    stock, linked = calls(128), calls(128, aligned=True)
    yield "", "until 128 MiB of text, stock, were all touched, in no order", [stock, "0", "scatter"]
    yield "-ordered", "until 128 MiB of text, stock, were all touched, in order", [stock, "0", "touch"]
    yield "-linked", "until 128 MiB of text, linked at 2 MiB, were all touched, in no order", [linked, "0", "scatter"]
    if find_cc1plus():
        argv = [copy_cold(find_cc1plus()), "-quiet", "-o", "/dev/null", write_short_source()]
        yield "-cc1plus", "cc1plus, a whole run", argv
    if find_node():
        yield "-node", "node, which only starts", [copy_cold(find_node()), "-e", "0"]


def group_cold(plan):
    """Starts from an empty page cache; with the disk's read-ahead as it is, and as it is by default."""
    for kib, suffix, rounds in (None, "", 15), (128, "-128", 7):
        for name, what, argv in cold_programs():
            share(argv[0])
            ways = [Variant("plain", argv), hugeld("hugetlb", argv, "backend=hugetlb"), hugeld("auto", argv),
                    hugeld("thp", argv, "backend=thp"), Variant("executed", [image_of(argv[0]), *argv[1:]])]

            def run(way, program=argv[0]):
                pagecache.evict(program)
                return time_run(way)

            with read_ahead(kib) as kib_ahead:
                values = take_turns(ways, 5 if plan.quick else rounds, run)
            pagecache.make(argv[0], "large")
            title = f"Cold page cache, read-ahead of {kib_ahead} KiB: {what}"
            yield experiment(f"cold{name}{suffix}", title, "ms", ways, values,
                             note="The image is in memory already: it stays there from when it was made.")


# --- objects, and the patched linker ---


def group_dsos(plan):
    """The cost of each loaded object: nothing moves, all are looked at."""
    for n in (1, 10, 100) if plan.quick else (1, 10, 100, 1000):
        program = compile_c(OUT / f"dsos-{n}", write_nothing(), "-Wl,--no-as-needed", *small_libraries(n))
        ways = [Variant("plain", [program]), hugeld("main", [program]), hugeld("all", [program], objects="*")]
        yield experiment(f"dsos-{n}", f"Start with {n} small DSOs, nothing to move", "ms", ways,
                         pairs(ways, plan.short if n < 1000 else max(plan.short // 3, 5)), dsos=n)


def group_later(plan):
    """The cost of watching for later objects to programs that have nothing to gain."""
    compile_c(OUT / "audit.so", "-shared", "-fPIC", ROOT / "bench/audit.c")
    opened = compile_c(OUT / "libopened.so", "-shared", "-fPIC", "-DDSO=opened", ROOT / "bench/later.c")
    folder = OUT / "later-dsos"
    folder.mkdir(exist_ok=True)
    libraries = [compile_c(folder / f"libf{i}.so", "-shared", "-fPIC", f"-DDSO=f{i}", ROOT / "bench/later.c")
                 for i in range(100)]
    program = compile_c(OUT / "later", ROOT / "bench/later.c", "-Wl,--no-as-needed,-z,lazy", *libraries)
    for name, title, unit, words in (("start", "Start of a program with 100 DSOs", "ms", []),
                                     ("call", "A call through the PLT", "ns", ["calls", "100000000"]),
                                     ("open", "dlopen and dlclose of a DSO that isn't meant", "ns", ["opens", "5000", opened])):
        argv = [program, *words]
        ways = [hugeld("unwatched", argv, objects="main:"), hugeld("watched", argv, objects="main:none*", base="unwatched"),
                hugeld("audit", argv, objects="main:", base="unwatched", LD_AUDIT=OUT / "audit.so")]
        rounds = (31 if plan.quick else 201) if name == "start" else 5 if plan.quick else 15
        yield experiment(f"later-{name}", title, unit, ways, pairs(ways, rounds, prints=bool(words)))


def group_ldso(plan):
    """The cost of the series to programs that don't ask for it, over the same ld.so without it.  The place of a file in
    memory makes more of a difference, so there are four copies of each under paths of one length: those of "without" differ
    by noise."""
    if plan.quick or not LINKER.exists():
        return
    subprocess.run([ROOT / "glibc-patches/build", "-u", "-d", OUT / "unpatched"], check=True, stdout=subprocess.DEVNULL)
    libraries = small_libraries(100)
    for name, title, rounds in (("true", "Start of /bin/true", 1001), ("many", "Start of a program with 100 DSOs", 201)):
        ways = []
        for kind, linker in (("without", OUT / "unpatched/ld.so"), ("patched", LINKER)):
            for i in range(1, 5):
                copy, program = OUT / f"ld.so-{kind}{i}", OUT / f"{name}-{kind}{i}"
                shutil.copy(linker, copy)
                if name == "true":
                    shutil.copy("/bin/true", program)
                    subprocess.run(["patchelf", "--set-interpreter", copy, program], check=True)
                else:
                    compile_c(program, write_nothing(), "-Wl,--no-as-needed", f"-Wl,--dynamic-linker={copy}", *libraries)
                ways.append(Variant(f"{kind}{i}", [program], "without1"))
        yield experiment(f"ldso-{name}", f"{title}, the ld.so with the series and without, LD_HUGEPAGES unset", "ms", ways,
                         pairs(ways, rounds))


# --- perf maps ---

WAIT = "#include <unistd.h>\n__attribute__((constructor)) static void wait_for_input(void) { char c; (void)!read(0, &c, 1); }\n"


@contextlib.contextmanager
def waiting_with(way):
    """The ID of WAY's process, whose preloaded objects are on huge pages, and which waits before its main."""
    (OUT / "wait.c").write_text(WAIT)
    waits = compile_c(OUT / "wait.so", "-shared", "-fPIC", OUT / "wait.c")
    env = dict(way.env, LD_PRELOAD=f"{way.env['LD_PRELOAD']}:{waits}")
    process = subprocess.Popen(way.argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        helpers.wait_until(lambda: subprocess.run([HUGELD, "perf-map", "--output", OUT / "check.map", str(process.pid)],
                                                  stderr=subprocess.DEVNULL).returncode == 0, 60, f"{way.argv} moved")
        yield process.pid
    finally:
        process.kill()
        process.wait()


NM_AWK = """\
nm {table} -n -S --defined-only --without-symbol-versions "$1" |
    gawk -v base="$2" '$3 ~ /^[tTwWi]$/ {{ printf "%x %s %s\\n", base + strtonum("0x" $1), $2, substr($0, 37) }}' > "$3"
"""
NM_AWK_SHORT = """nm {table} -n -S --defined-only "$1" | awk '$3 ~ /[tTwWi]/ {{ print $1, $2, $4 }}' > "$3"\n"""


def nm_awk(name, line, table, file, base=None):
    script = OUT / f"{name}-{os.path.basename(file)}.sh"
    script.write_text(line.format(table=table))
    return Variant(name, ["/bin/sh", script, file, str(0x7f1234567000), OUT / "nm.map"], base)


def check_line(file, table):
    """The line that it is compared with names the same functions."""
    subprocess.run(["/bin/sh", nm_awk("check", NM_AWK, table, file).argv[1], file, "0", OUT / "nm.map"], check=True)
    subprocess.run([OUT / "perf-map", "-f", file, "1", OUT / "inside.map"], check=True, stdout=subprocess.DEVNULL)
    nm, inside = [{(int(start, 16), int(size, 16), name) for start, size, name in
                   (line.split(maxsplit=2) for line in (OUT / f"{which}.map").read_text(errors="replace").splitlines())
                   if not name.endswith("@plt")} for which in ("nm", "inside")]
    assert len(inside & nm) > 0.97 * len(inside), f"{file}: nm and awk find {len(inside & nm)} of {len(inside)} functions"


def map_ways(file, table, pid):
    """A map of FILE, inside a process that has just begun and from outside, against a map made by nm and awk."""
    check_line(file, table)
    inside = [Variant("inside", [OUT / "perf-map", file, "1", OUT / "inside.map"], "nm-awk"),
              Variant("inside-text", [OUT / "perf-map", "-f", file, "1", OUT / "inside.map"], "nm-awk")]
    for way in inside:
        way.prints = True  # as the process itself sees it: its start is no part of it
    outside = [HUGELD, "perf-map", "--output", OUT / "outside.map", str(pid)]
    return [nm_awk("nm-awk", NM_AWK, table, file), *inside, nm_awk("nm-awk-short", NM_AWK_SHORT, table, file, "nm-awk"),
            Variant("command-mangled", outside, "nm-awk"),
            nm_awk("nm-C-awk", NM_AWK, table + "C", file, "nm-awk"), Variant("command", [*outside, "--demangle"], "nm-C-awk")]


def mapped_files():
    """(name, file, nm's word for its symbol table, a program that loads it and ends)."""
    def loaded(pattern, table):
        for file in glob.glob(os.path.expanduser(pattern))[:1]:
            yield os.path.basename(file), file, table, ["/bin/true"]

    yield from loaded("/usr/lib/*/libLLVM-*.so.1", "-D")
    if find_node():
        yield "node", find_node(), "-a", [find_node(), "-e", "0"]
    yield from loaded("/usr/lib/jvm/*/lib/server/libjvm.so", "-a")
    yield from loaded("~/.rustup/toolchains/*/lib/librustc_driver-*.so", "-a")
    servers = [("mariadbd", shutil.which("mariadbd", path=os.environ["PATH"] + ":/usr/sbin"), "-D"),
               ("mysqld (MariaDB 10.2, with its debug symbols)", find_mysqld_with_symbols(), "-a")]
    for name, server, table in servers:
        if server:
            yield name, server, table, [server, "--version"]


def group_perf_map(plan):
    """perf_map=on, over the move alone; and against nm and awk."""
    compile_c(OUT / "perf-map", "-iquote", ROOT, "-iquote", ROOT / "elf", ROOT / "bench/perf-map.c",
              *BUILD.glob("elf/*.o"), *BUILD.glob("perf-maps/*.o"))
    for name, file, table, argv in mapped_files():
        only = f"backend=hugetlb,segments=text+rodata,exe={os.path.basename(argv[0])}"
        objects = "main" if argv[0] == file else os.path.basename(file)
        library = f"{LIBRARY}:{file}" if argv[0] != file else LIBRARY
        moved = Variant("moved", argv, LD_PRELOAD=library, LD_HUGEPAGES=objects, LD_HUGEPAGES_OPTIONS=only)
        with waiting_with(moved) as pid:
            ways = map_ways(file, table, pid)
            values = pairs(ways, plan.short)
        yield experiment(f"map-{name}", f"A perf map of {name}", "ms", ways, values)
        ways = [moved, Variant("map", argv, "moved", LD_PRELOAD=library, LD_HUGEPAGES=objects,
                               LD_HUGEPAGES_OPTIONS=only + ",perf_map=on")]
        yield experiment(f"map-move-{name}", f"{name} on huge pages, and perf_map=on", "ms", ways, pairs(ways, plan.short))
        for path in glob.glob("/tmp/perf-*.map"):
            if not os.path.exists(f"/proc/{path[len('/tmp/perf-'):-len('.map')]}"):
                os.unlink(path)


# --- hugeld run ---


def build_launcher():
    """A program that does nothing but execute another one, linked as `hugeld run` is."""
    launcher, source = OUT / "execute", OUT / "execute.c"
    source.write_text("#include <unistd.h>\nint main(int argc, char **argv) { return argc > 1 ? execv(argv[1], argv + 1) : 1; }\n")
    subprocess.run([shutil.which("musl-gcc") or "gcc", "-O2", "-static", "-o", launcher, source], check=True)
    return launcher


def run_programs():
    """(name, argv, files whose text counts, the options of run) of real programs, in very short runs."""
    source = OUT / "two-lines.cc"
    source.write_text("int f(int x) { return x; }\nint main() { return f(3); }\n")
    if find_cc1plus():
        cc1plus = os.path.realpath(find_cc1plus())
        yield "cc1plus", [cc1plus, "-quiet", "-O2", source, "-o", "/dev/null"], [cc1plus], []
    rust = OUT / "one.rs"
    rust.write_text("pub fn f(x: u32) -> u32 { x + 1 }\n")
    rustc = "/usr/bin/rustc" if os.path.exists("/usr/bin/rustc") else find_rustc()
    if rustc:
        files = libraries_of(rustc, "librustc_driver", "libLLVM")
        yield ("rustc", [rustc, "--crate-type=lib", "--emit=obj", "-o", OUT / "@.o", rust], files,
               ["-p", "main:librustc_driver*:libLLVM*"])


def run_git(plan):
    """No image is shared: the time of `hugeld run` before it executes a program as it is."""
    git, empty = [os.path.realpath(shutil.which("git")), "--version"], OUT / "empty.so"
    subprocess.run(["gcc", "-shared", "-nostdlib", "-x", "c", "-o", empty, "/dev/null"], check=True)
    ways = [Variant("empty", git, "empty", LD_PRELOAD=empty), Variant("plain", git, "empty"), Variant("launcher", [build_launcher(), *git], "empty"),
            Variant("run", [HUGELD, "run", *git], "empty")]
    return paired_experiment("run-git", "git --version by hugeld run, beside an empty library that is preloaded", "ms", ways,
                             at_once(ways, plan.short * 8), note="No store has an image of git.")


def run_in_both_states(plan):
    """The second run of a program with an image, for both states of the page cache in which the plain program may find its
    file."""
    for name, argv, files, words in run_programs():
        share(*files)
        run = [HUGELD, "run", "-o", f"store={STORE}", *words, *argv]
        ways = with_own_output([Variant("plain", argv), Variant("plain-again", argv), Variant("run", run)])
        for state in pagecache.STATES:
            found = pagecache.measure_in(state, files, lambda ways=ways: at_once(ways, max(12, plan.short * 4), files=files))
            yield paired_experiment(f"run-{name}-{state}", f"{name} by hugeld run, its file {state} in the page cache", "ms", ways, found)


def group_run(plan):
    """The time that `hugeld run` adds to a start."""
    if shutil.which("git"):
        yield run_git(plan)
    yield from run_in_both_states(plan)
    for kind, pie in (("fixed", False), ("pie", True)):
        stock = [calls(32, pie=pie), "0"]
        share(stock[0])
        run = [HUGELD, "run", "-o", f"store={STORE},data=off"]
        ways = [Variant("plain", stock), Variant("plain-again", stock), Variant("launcher", [build_launcher(), *stock]),
                Variant("exec-stop", [*run, *stock], "launcher"), Variant("run-preload", [*run, "--via=preload", *stock], "launcher")]
        yield paired_experiment(f"run-{kind}", f"Start by hugeld run, {'position-independent' if pie else 'at a fixed address'}", "ms",
                                ways, at_once(ways, max(12, plan.short * 8)),
                                note="What counts is the difference to a launcher that only executes; at the exec stop the goal is 0.3 ms.")
