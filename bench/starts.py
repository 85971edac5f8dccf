# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long a program takes to start, from the page cache and from the disk; and the time that is added by the patched linker and by
`hugeld run`."""

import contextlib
import os
import pathlib
import shutil
import subprocess

import helpers
import pagecache
from helpers import HUGELD, ROOT
from installed import find_cc1plus, find_node
from measure import LINKER, OUT, Variant, at_once, compile_c, copy_of, experiment, hugeld, pairs, take_turns, time_run
from workloads import (STORE, calls, calls_ways, image_of, make_empty_library, put_large, share, small_libraries, where,
                       write_nothing, write_short_source)

# --- the start ---


def group_start(plan):
    for size, place in plan.texts:
        ways = calls_ways(size, place, ["0"])
        put_large(ways)
        huge = where(ways)
        next(way for way in ways if way.name == "linked").base = None  # another program: it is no faster start
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


def cold_programs():
    """(name, what, argv): text that is all touched, and programs that touch only the pages that they need."""
    stock, linked = calls(128), calls(128, aligned=True)
    yield "", "until 128 MiB of text, stock, were all touched, in no order", [stock, "0", "scatter"]
    yield "-ordered", "until 128 MiB of text, stock, were all touched, in order", [stock, "0", "touch"]
    yield "-linked", "until 128 MiB of text, linked at 2 MiB, were all touched, in no order", [linked, "0", "scatter"]
    if find_cc1plus():
        argv = [copy_of(find_cc1plus(), "cold"), "-quiet", "-o", "/dev/null", write_short_source()]
        yield "-cc1plus", "cc1plus, a whole run", argv
    if find_node():
        yield "-node", "node, which only starts", [copy_of(find_node(), "cold"), "-e", "0"]


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


# --- the patched linker ---


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


# --- hugeld run ---


def build_launcher():
    """A program that does nothing but execute another one, linked as `hugeld run` is."""
    launcher, source = OUT / "execute", OUT / "execute.c"
    source.write_text("#include <unistd.h>\nint main(int argc, char **argv) { return argc > 1 ? execv(argv[1], argv + 1) : 1; }\n")
    subprocess.run([shutil.which("musl-gcc") or "gcc", "-O2", "-static", "-o", launcher, source], check=True)
    return launcher


def run_short(plan):
    """No store has images of these: the time of `hugeld run` before it executes a program as it is."""
    empty = make_empty_library()
    for name, argv in ("git", ["/usr/bin/git", "--version"]), ("true", ["/bin/true"]):
        if not os.path.exists(argv[0]):
            continue
        ways = [Variant("empty", argv, "empty", LD_PRELOAD=empty), Variant("plain", argv, "empty"),
                Variant("launcher", [build_launcher(), *argv], "empty"), Variant("run", [HUGELD, "run", *argv], "empty")]
        yield experiment(f"run-{name}", f"{' '.join(argv)} by hugeld run, beside an empty library that is preloaded", "ms", ways,
                         at_once(ways, plan.short * 8), note=f"No store has an image of {name}.")


def run_compiler(plan):
    """A copy of the compiler, which no other process maps, from its image, beside each state in which its plain file may lie."""
    if not find_cc1plus():
        return
    source, compiler = OUT / "two-lines.cc", copy_of(os.path.realpath(find_cc1plus()), "short")
    source.write_text("int f(int x) { return x; }\nint main() { return f(3); }\n")
    share(compiler)
    argv = [compiler, "-quiet", "-O2", source, "-o", "/dev/null"]
    ways = [Variant("plain", argv), Variant("plain-again", argv), Variant("run", [HUGELD, "run", "-o", f"store={STORE}", *argv])]
    for state in pagecache.STATES:
        found = pagecache.measure_in(state, [compiler], lambda: at_once(ways, max(12, plan.short * 4), files=[compiler]))
        yield experiment(f"run-cc1plus-{state}", f"cc1plus by hugeld run, its file {state} in the page cache", "ms", ways, found)


def group_run(plan):
    """The time that `hugeld run` adds to a start."""
    yield from run_short(plan)
    yield from run_compiler(plan)
    for kind, pie in (("fixed", False), ("pie", True)):
        stock = [calls(32, pie=pie), "0"]
        share(stock[0])
        run = [HUGELD, "run", "-o", f"store={STORE},data=off"]
        ways = [Variant("plain", stock), Variant("plain-again", stock), Variant("launcher", [build_launcher(), *stock]),
                Variant("exec-stop", [*run, *stock], "launcher"), Variant("run-preload", [*run, "--via=preload", *stock], "launcher")]
        yield experiment(f"run-{kind}", f"Start by hugeld run, {'position-independent' if pie else 'at a fixed address'}", "ms",
                         ways, at_once(ways, max(12, plan.short * 8)),
                         note="What counts is the difference to a launcher that only executes; at the exec stop the goal is 0.3 ms.")
