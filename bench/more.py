# SPDX-License-Identifier: LGPL-2.1-or-later
"""More programs, as people run them: servers under load, a JVM with its classes archived and not, a tree that is compiled, a
large repository, and Python's own benchmarks."""

import os
import shutil
import signal
import subprocess

import groups
from alternatives import CACHE
from groups import STORE, Variant, at_once, hugeld, image_of, mapped, paired_experiment, share, time_run, watch
from helpers import HUGELD, ROOT
from installed import find_node
from measure import EXECUTED, OUT

# --- servers ---

NODE_SERVER = """
const http = require('http'), fs = require('fs');
const items = [...Array(40)].map((_, i) => ({id: i, name: 'item ' + i, price: i * 7 % 23}));
const server = http.createServer((request, response) => {
  const query = new URL(request.url, 'http://localhost').searchParams, most = Number(query.get('most') || 9);
  const found = JSON.parse(JSON.stringify(items)).filter(item => item.price < most && /[1-9]$/.test(item.name));
  response.setHeader('Content-Type', 'text/html');
  response.end('<ul>' + found.map(item => `<li>${item.name}: ${item.price.toFixed(2)}`).join('') + '</ul>');
});
server.listen(0, '127.0.0.1', () => fs.writeFileSync(process.argv[2], String(server.address().port)));
"""


def server_ways(program):
    """PROGRAM's image is executed too, since the preloader can't use one for a PIE."""
    private = hugeld("hugetlb", [], f"backend=hugetlb,exe={os.path.basename(program)}")
    ways = [Variant("plain", []), Variant("plain-again", []), private]
    try:
        share(program)
    except RuntimeError:  # too little text
        return ways
    return ways + [mapped("mapped", []), Variant("executed", [])]


def measure_server(plan, name, title, program, words, is_ready, work, transactions):
    """PROGRAM with words(folder), for clients that are called by work(folder) and want so many TRANSACTIONS."""

    def make(parent, name):
        folder = parent / name
        folder.mkdir()
        executed = name.startswith("executed-")
        run = [*EXECUTED, HUGELD, "run", "--via=image", "-o", f"backend=image,store={STORE}"] if executed else []
        return folder, [*run, program, *map(str, words(folder))]

    ways = server_ways(program)

    def measure_generation(rounds, generation):
        parent = groups.data_folder(f"{name}-{generation}")
        try:
            yield from groups.measure_servers(
                [groups.Load(name, title, work, transactions)], ways,
                lambda pair: groups.two_servers(lambda name: make(parent, name), pair, is_ready, signal.SIGTERM, generation),
                rounds, os.path.realpath(program))
        finally:
            shutil.rmtree(parent.parent, ignore_errors=True)

    yield from groups.in_generations(plan, measure_generation)


def redis(plan):
    program = shutil.which("redis-server")
    if not program or os.getuid() != 0:
        return
    half = 20000  # and the program is called by its own name, since the file behind it has others

    def words(folder):
        return ["--port", "0", "--unixsocket", folder / "socket", "--dir", folder, "--save", "", "--daemonize", "no"]

    def work(folder):
        return ["redis-benchmark", "-s", folder / "socket", "-t", "set,get", "-n", half, "-c", "8", "-q"]

    title = "redis, SET and GET by redis-benchmark, each server with its client on one processor"
    yield from measure_server(plan, "redis", title, program, words,
                              lambda folder: (folder / "socket").exists(), work, 2 * half)


def node_server(plan):
    if not find_node() or not shutil.which("ab") or os.getuid() != 0:
        return
    script, requests = OUT / "server.js", 2000
    script.write_text(NODE_SERVER)

    def port(folder):
        return (folder / "port").exists() and (folder / "port").read_text()

    def work(folder):
        return ["ab", "-q", "-k", "-c", "4", "-n", requests, f"http://127.0.0.1:{port(folder)}/?most=12"]

    title = "node, an HTTP server under ab, each server with its client on one processor"
    yield from measure_server(plan, "node-server", title, os.path.realpath(find_node()),
                              lambda folder: [script, folder / "port"], port, work, requests)


# --- runs of some tenths of a second ---

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
    """Classes from the archive of Java's own ones and the program's (AppCDS), and without any."""
    if not groups.find_jvm() or not shutil.which("javac") or not shutil.which("jar"):
        return
    java, jvm = groups.find_jvm()
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
    """A tree that is here in any case: this one."""
    if not shutil.which("clang"):
        return
    clang = os.path.realpath(shutil.which("clang"))
    sources = sorted((ROOT / "elf").glob("*.c"))[::4]  # a second's work
    files = groups.libraries_of(clang, "libLLVM", "libclang") or [clang]
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
    seconds = time_run(ways[0]) / 1000  # and what is only done the first time is done
    files = how[1]
    groups.put_large(ways, files)
    watched = {way.name: watch(way) for way in ways}
    values = at_once(ways, groups.pairs_for(plan, seconds), files=files)
    yield paired_experiment(f"more-{name}", f"{title}, a run of {seconds:.1f} s", "ms", ways, values, program=name,
                            memory={way: memory for way, (memory, _) in watched.items()},
                            huge={way: huge for way, (_, huge) in watched.items()},
                            start=groups.measure_starts(plan, run_ways(start, *how)))


def measure_servers(plan):
    yield from redis(plan)
    if not plan.quick:
        yield from node_server(plan)


def measure_runs(plan):
    for runs in (java_runs,) if plan.quick else (java_runs, clang_runs, git_runs, python_runs):
        for run in runs():
            yield from measure_run(plan, *run)
