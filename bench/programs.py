# SPDX-License-Identifier: LGPL-2.1-or-later
"""Real programs, in runs of some tenths of a second, and beside other projects."""

import contextlib
import os
import pathlib
import shutil
import subprocess

import alternatives
from alternatives import CACHE
from helpers import ROOT
from installed import find_cc1plus
from measure import OUT, Variant, at_once, at_once_precisely, experiment, hugeld, pages_moved, time_run, watch
from workloads import (calls, find_jvm, image_of, libraries_of, mapped, pairs_for, programs, put_large, share,
                       with_own_output, write_short_source)

# --- programs that all users have ---

STARTS = {"cc1plus": ["--version"], "clang": ["--version"], "rustc": ["--version"], "node": ["-e", "0"],
          "python3": ["-S", "-c", "0"], "perl": ["-e", "0"]}  # programs that end at once


def measure_starts(plan, ways):
    """The results of at_once for these, in a few seconds each."""
    return at_once(ways, max(12, pairs_for(plan, time_run(ways[0]) / 1000) // 4))


def program_ways(argv, objects, files):
    ways = [Variant("plain", argv), Variant("plain-again", argv), hugeld("hugetlb", argv, "backend=hugetlb", objects)]
    with contextlib.suppress(RuntimeError):  # too little text
        share(*files)
        ways.append(mapped("mapped", argv, objects))
    return with_own_output(ways)


def group_programs(plan):
    """Both runs of a pair at the same time."""
    measure_pairs = at_once if plan.quick else at_once_precisely
    for name, argv, objects, files in programs():
        if plan.quick and name not in ("cc1plus", "node", "python3"):
            continue
        ways = program_ways(argv, objects, files)
        put_large(ways, files)
        watched = {way.name: watch(way) for way in ways}
        huge = {way.name: pages_moved(way) or watched[way.name][1] for way in ways}
        seconds = time_run(ways[0]) / 1000
        start = measure_starts(plan, program_ways([argv[0], *STARTS[name]], objects, files))
        yield experiment(f"program-{name}", f"{name}, a run of {seconds:.1f} s", "ms", ways,
                         measure_pairs(ways, pairs_for(plan, seconds), files=files), huge=huge, program=name, watched=watched,
                         start=start)


# --- more of them, as people run them ---

JAVA = """
import java.util.*;
import java.util.stream.*;
public class Work {
    public static void main(String[] words) {
        if (words.length == 0) return;
        Map<String, List<Integer>> found = IntStream.range(0, 60000).boxed()
            .collect(Collectors.groupingBy(i -> "w" + i * 7919 % 1009));
        System.out.println(found.entrySet().stream().filter(e -> e.getKey().matches("w[1-7].*[02468]"))
            .mapToLong(e -> e.getValue().stream().mapToLong(i -> i % 97).sum()).sum());
    }
}
"""


def java_runs():
    """A JVM with classes from the archive of Java's own ones and the program's (AppCDS), and without any archive."""
    if not find_jvm() or not shutil.which("javac") or not shutil.which("jar"):
        return
    java, jvm = find_jvm()
    folder = OUT / "java"
    folder.mkdir(exist_ok=True)
    (folder / "Work.java").write_text(JAVA)
    jar, classes, archive = folder / "work.jar", folder / "classes", folder / "work.jsa"

    def run(*words):
        subprocess.run(words, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    run("javac", "Work.java")
    run("jar", "cf", jar, *(file.name for file in folder.glob("*.class")))
    run(java, "-Xshare:off", f"-XX:DumpLoadedClassList={classes}", "-cp", jar, "Work", "run")
    run(java, "-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}", "-cp", jar)
    for name, what, options in (("java", "java, AppCDS off", ["-Xshare:off"]),
                                ("java-cds", "java, AppCDS on", ["-Xshare:on", f"-XX:SharedArchiveFile={archive}"])):
        argv = [java, *options, "-cp", jar, "Work"]
        yield name, what, [*argv, "run"], argv, "main:libjvm.so", [jvm], False, {}


COMPILE = 'for file; do "$CLANG" -std=gnu11 -D_GNU_SOURCE -iquote "$ROOT" -iquote "$ROOT/elf" -O1 -c -o /dev/null "$file"; done'


def clang_runs():
    """The compiled tree is this one, which is here in any case."""
    if not shutil.which("clang"):
        return
    clang = os.path.realpath(shutil.which("clang"))
    sources = sorted((ROOT / "elf").glob("*.c"))[::4]  # a second's work
    files = libraries_of(clang, "libLLVM", "libclang") or [clang]
    yield ("clang-tree", f"clang on {len(sources)} files of elf/, one after the other",
           ["/bin/sh", "-ec", COMPILE, "sh", *sources], [clang, "--version"], "main:libLLVM*:libclang*", files, False,
           {"CLANG": clang, "ROOT": ROOT})


def git_runs():
    git = shutil.which("git")
    if not git:
        return
    tree, files = OUT / "large-repository", 50000
    if not (tree / ".git/refs/heads/bench").exists():
        shutil.rmtree(tree, ignore_errors=True)
        for i in range(files // 250):
            folder = tree / f"part{i % 20}/folder{i}"
            folder.mkdir(parents=True)
            for j in range(250):
                (folder / f"file{j}.txt").write_text(f"{i} {j}\n")
        for words in (["init", "-q", "-b", "bench"], ["add", "."],
                      ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "files"]):
            subprocess.run([git, "-C", tree, *words], check=True)
    git = os.path.realpath(git)
    status = [git, "--no-optional-locks", "-C", tree, "status", "--porcelain"]
    yield ("git-status", f"git status in a repository of {files} files", status, [git, "--version"], None, [git], True, {})


BENCHMARKS = {"deltablue": 60, "json_loads": 500}  # how often: 0.3 s


def python_runs():
    """Python's own benchmarks, each in one process: not in pyperf's many, since pairs are made here."""
    folder, python = CACHE / "pyperformance", os.path.realpath("/usr/bin/python3")
    for name, loops in BENCHMARKS.items():
        script = folder / f"pyperformance/data-files/benchmarks/bm_{name}/run_benchmark.py"
        if script.exists():
            once = [python, script, "--worker", "--warmups=0", "--values=1", f"--loops={loops}"]
            yield (f"python-{name}", f"pyperformance's {name}", once, [python, "-S", "-c", "0"], None, [python], False,
                   {"PYTHONPATH": folder})


def run_ways(argv, objects, files, executed, variables):
    ways = [Variant("plain", argv), Variant("plain-again", argv), hugeld("hugetlb", argv, "backend=hugetlb", objects)]
    share(*files)
    if executed:
        ways.append(Variant("executed", [image_of(files[0]), *argv[1:]]))
    else:
        ways.append(mapped("mapped", argv, objects))
    for way in ways:
        way.variables |= {key: str(value) for key, value in variables.items()}
    return ways


def measure_run(plan, name, title, argv, start, *how):
    ways = run_ways(argv, *how)
    seconds = time_run(ways[0]) / 1000  # and work that is only done the first time is done
    files = how[1]
    put_large(ways, files)
    watched = {way.name: watch(way) for way in ways}
    values = at_once(ways, pairs_for(plan, seconds), files=files)
    yield experiment(f"more-{name}", f"{title}, a run of {seconds:.1f} s", "ms", ways, values, program=name,
                     watched=watched, start=measure_starts(plan, run_ways(start, *how)))


def group_more(plan):
    """More of them."""
    for runs in (java_runs,) if plan.quick else (java_runs, clang_runs, git_runs, python_runs):
        for run in runs():
            yield from measure_run(plan, *run)


# --- other projects ---


def alternative_programs(plan):
    """(name, title, the stock program, words, words for a start, linked at 2 MiB, rewritten by BOLT)."""
    yield ("calls", "A million random calls over 32 MiB of text", calls(32, pie=False), ["1000000"], ["0"],
           calls(32, aligned=True), None)
    if plan.quick:
        return
    stock = alternatives.link_compiler("compile-ir")
    if stock and shutil.which("clang"):
        words = [alternatives.write_module()]
        linked = alternatives.link_compiler("compile-ir-2m", *alternatives.ALIGNED)
        related = alternatives.link_compiler("compile-ir-relocations", "-no-pie", "-Wl,--emit-relocs")
        rewritten = alternatives.rewrite(related, words) if alternatives.find_bolt() else None
        yield "compile-ir", "LLVM at -O2, linked statically", stock, words, [], linked, rewritten
    if find_cc1plus():
        cc1plus = pathlib.Path(os.path.realpath(find_cc1plus()))
        yield ("cc1plus", "cc1plus as Debian has it", cc1plus, ["-quiet", "-O2", write_short_source(), "-o", "/dev/null"],
               STARTS["cc1plus"], None, None)


def group_alternatives(plan):
    """Other projects beside hugeld, each at the same time as the plain program."""
    for name, title, stock, words, start, linked, rewritten in alternative_programs(plan):
        share(stock)

        def ways_with(words, stock=stock, linked=linked, rewritten=rewritten):
            argv = [stock, *words]
            others, absent = alternatives.ways_of_others(stock, words, linked, rewritten)
            return [Variant("plain", argv), Variant("plain-again", argv), hugeld("private", argv, "backend=hugetlb"),
                    mapped("mapped", argv), Variant("executed", [image_of(stock), *words]), *others], absent

        ways, absent = ways_with(words)
        put_large(ways)
        watched = {way.name: watch(way) for way in ways}
        values = at_once(ways, pairs_for(plan, time_run(ways[0]) / 1000))
        yield experiment(f"alternatives-{name}", title, "ms", ways, values, program=name, absent=absent,
                         note=alternatives.missing_in_kernel(), watched=watched,
                         start=measure_starts(plan, ways_with(start)[0]))
