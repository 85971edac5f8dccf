# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is measured.  Each group is a function of a Plan that yields experiments (measure.experiment)."""

import collections
import contextlib
import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import alternatives
import databases
import helpers
import misses
import pagecache
from helpers import BUILD, HUGELD, LIBRARY, ROOT
from installed import find_cc1plus, find_mysqld_with_symbols, find_node
from measure import (LINKER, OUT, Measured, Variant, at_once, at_once_precisely, compare, compile_c, environment,
                     experiment, find_libhugetlbfs, hugeld, libhugetlbfs, pages_moved, paired_experiment, pairs, pairs_missing,
                     plain_files, plain_pages, take_turns, time_run, watch)

Skipped = databases.pytest.skip.Exception

TMPFS = OUT / "tmpfs"


class Plan:
    """How much: rounds for what takes ms, tenths of a second, and seconds; the sizes of text, and from where."""

    def __init__(self, quick):
        self.quick = quick
        self.tiny, self.many, self.short, self.long = (201, 21, 7, 3) if quick else (2001, 41, 31, 7)
        self.sizes = [2, 32, 128] if quick else [2, 8, 32, 128, 512]
        self.texts = [(size, "disk") for size in self.sizes] + ([] if quick else [(128, "tmpfs")])


# --- generated programs ---


def calls(size, place="disk", aligned=False, pie=True, source="harness/calls.c"):
    """SOURCE with SIZE MiB of text, linked as any (or as no PIE), or at 2 MiB."""
    source = ROOT / source
    name = f"{source.stem}-{size}" + ("-2m" if aligned else "" if pie else "-nopie")
    program = OUT / name
    sources = [source, ROOT / "harness/text.S"]
    if not program.exists() or program.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        compile_c(program, "-pthread", f"-DTEXT_MIB={size}", *(alternatives.ALIGNED if aligned else [] if pie else ["-no-pie"]),
                  *sources)
        pagecache.make(program, "large")
    if place == "tmpfs" and not (TMPFS / name).exists():
        shutil.copy(program, TMPFS / name)
    return TMPFS / name if place == "tmpfs" else program


def calls_ways(size, place, words, thp=True):
    """Every way to run the program of SIZE with WORDS."""
    stock, aligned = [calls(size, place), *words], [calls(size, place, True), *words]
    ways = [Variant("plain", stock), hugeld("hugetlb", stock, "backend=hugetlb"),
            hugeld("edges=small", stock, "backend=hugetlb,edges=small")]
    ways += [hugeld("thp", stock, "backend=thp")] if thp else []
    ways += [Variant("linked", aligned), hugeld("linked-auto", aligned, base="linked"),
             hugeld("linked-hugetlb", aligned, "backend=hugetlb", base="linked")]
    if find_libhugetlbfs():
        ways.append(libhugetlbfs("linked-libhugetlbfs", aligned, base="linked"))
    return ways


def put_large(ways, files=None):
    """The files of the plain one of WAYS into large folios of the page cache, as a program's file lies that was read in order: what is
    said of a plain program is of that, where a row does not say otherwise."""
    pagecache.put("large", *(plain_files(ways) if files is None else files))


def where(ways):
    """What the kernel says of each, after all of the text was called."""
    found = {}
    for way in ways:
        result = subprocess.run([way.argv[0], "0", "where"], env=way.env, capture_output=True, text=True, check=True)
        found[way.name] = result.stdout.rpartition("of ")[0].rpartition("of ")[0].strip().replace(":", "")
    return found


def group_calls(plan):
    for size, place in plan.texts:
        ways = calls_ways(size, place, ["1000000" if plan.quick else "2000000"])
        put_large(ways)
        huge = where(ways)
        if LINKER.exists():
            ways.append(Variant("ldso", [HUGELD, "run", "--via=ldso", "-o", "backend=hugetlb", *ways[0].argv]))
        yield experiment(f"calls-{size}-{place}", f"Random calls over {size} MiB of text, {place}", "ns", ways,
                         pairs(ways, 5 if plan.quick else 9, prints=True), base="plain", huge=huge, size=size, place=place)


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
    """The disk reads KIB ahead inside the block; or what it is set to, where that is None."""
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
    """(name, what, argv): text that is all touched, and programs that touch what they need."""
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
    """From an empty page cache; with the disk's read-ahead as it is, and as it is by default."""
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


# --- programs that all users have ---


def write_sources():
    """A C++ file, preprocessed, a C file and a Rust file."""
    cxx, rust = OUT / "source.cc", OUT / "source.rs"
    cxx.write_text("#include <algorithm>\n#include <map>\n#include <string>\n#include <vector>\n"
                   "int main(int n, char **v) { std::map<std::string, std::vector<int>> m;\n"
                   "while (n-- > 0) m[v[n]].push_back(n);\n"
                   "for (auto &i : m) std::sort(i.second.begin(), i.second.end()); return m.size(); }\n")
    rust.write_text("use std::collections::BTreeMap;\nfn main() { let mut m: BTreeMap<String, Vec<u64>> = BTreeMap::new();\n"
                    "for i in 0..100u64 { m.entry(format!(\"{}\", i % 7)).or_default().push(i * i); }\n"
                    "for (k, v) in &m { println!(\"{} {}\", k, v.iter().sum::<u64>()); } }\n")
    subprocess.run(["g++", "-E", cxx, "-o", OUT / "source.ii"], check=True)
    return OUT / "source.ii", rust


def find_rustc():
    rustc = shutil.which("rustc")
    if not rustc:
        return None
    root = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True).stdout.strip()
    return os.path.join(root, "bin/rustc") if root else None


JAVASCRIPT = """
const words = []; for (let i = 0; i < 60000; i++) words.push("w" + (i * 7919 % 10007).toString(36));
let s = 0; for (let k = 0; k < 6; k++) { const o = JSON.parse(JSON.stringify(words.map((w, i) => ({w, i}))));
o.sort((a, b) => a.w < b.w ? -1 : 1); s += o.filter(x => /^w[a-m].*\\d$/.test(x.w)).length; } console.log(s);
"""
PYTHON = """
import ast, json, re
source = open(ast.__file__).read()
for i in range(6):
    tree = ast.dump(ast.parse(source)); names = re.findall(r"id='(\\w+)'", tree)
    text = json.dumps({str(i): n for i, n in enumerate(names)}); json.loads(text); sorted(names)
"""
PERL = """
my %h; for my $i (1 .. 250000) { my $w = join("-", map { $_ * $i % 97 } 1 .. 4); $h{$w}++ if $w =~ /^(\\d+)-\\d*[13579]/; }
print scalar(keys %h), "\n";
"""


def programs():
    """(name, argv, LD_HUGEPAGES, files that get an image); rounds of tenths of a second."""
    source, rust = write_sources()
    cc1plus = os.path.realpath(find_cc1plus())
    yield "cc1plus", [cc1plus, "-quiet", "-O1", source, "-o", "/dev/null"], None, [cc1plus]
    if shutil.which("clang"):
        clang = os.path.realpath(shutil.which("clang"))
        yield ("clang", [clang, "-O1", "-c", OUT / "source.cc", "-o", "/dev/null"], "main:libLLVM*:libclang*",
               libraries_of(clang, "libLLVM", "libclang") or [clang])
    if find_rustc():
        rustc = find_rustc()
        yield ("rustc", [rustc, "-O", "--emit=obj", "-o", OUT / "@.o", rust], "main:librustc_driver*:libLLVM*",
               libraries_of(rustc, "librustc_driver", "libLLVM"))
    if find_node():
        node = os.path.realpath(find_node())
        yield "node", [node, "-e", JAVASCRIPT], None, [node]
    for name, words in ("python3", ["-S", "-c", PYTHON]), ("perl", ["-e", PERL]):
        program = os.path.realpath(shutil.which(name, path="/usr/bin"))
        yield name, [program, *words], None, [program]


def with_own_output(ways):
    """What runs at the same time must not write one file: @ in a word becomes the way's name."""
    for way in ways:
        way.argv = [word.replace("@", way.name) for word in way.argv]
    return ways


STARTS = {"cc1plus": ["--version"], "clang": ["--version"], "rustc": ["--version"], "node": ["-e", "0"],
          "python3": ["-S", "-c", "0"], "perl": ["-e", "0"]}  # what ends at once


def measure_starts(plan, ways):
    """What at_once finds of these, in a few seconds each."""
    return at_once(ways, max(12, pairs_for(plan, time_run(ways[0]) / 1000) // 4))


def program_ways(argv, objects, files):
    ways = [Variant("plain", argv), Variant("plain-again", argv), hugeld("hugetlb", argv, "backend=hugetlb", objects)]
    with contextlib.suppress(RuntimeError):  # too little text
        share(*files)
        ways.append(mapped("mapped", argv, objects))
    return with_own_output(ways)


def group_programs(plan):
    """Both of a pair at the same time."""
    measure_pairs = at_once if plan.quick else at_once_precisely
    for name, argv, objects, files in programs():
        if plan.quick and name not in ("cc1plus", "node", "python3"):
            continue
        ways = program_ways(argv, objects, files)
        put_large(ways, files)
        memory = {way.name: watch(way)[0] for way in ways}
        huge = {way.name: pages_moved(way) for way in ways}
        huge["plain-again"] = plain_pages(ways[0])
        seconds = time_run(ways[0]) / 1000
        start = measure_starts(plan, program_ways([argv[0], *STARTS[name]], objects, files))
        yield paired_experiment(f"program-{name}", f"{name}, a run of {seconds:.1f} s", "ms", ways,
                                measure_pairs(ways, pairs_for(plan, seconds), files=files), huge=huge, program=name, memory=memory,
                                start=start)


def group_more(plan):
    """More of them."""
    import more
    yield from more.measure_runs(plan)


def group_servers(plan):
    """Servers under load, beside databases."""
    import more
    yield from more.measure_servers(plan)


def group_defaults(plan):
    """The defaults against what they could be, in many short runs: of programs whose read-only data is large.  What touches few
    of its pages has the start's cost in it."""
    if plan.quick:
        return
    source = write_short_source()
    for name, argv, objects, files in programs():
        if name == "cc1plus":
            argv = [argv[0], "-quiet", "-fsyntax-only", source]
        if name not in ("cc1plus", "rustc", "node", "python3"):
            continue
        ways = [hugeld("default", argv, "backend=hugetlb", objects),
                hugeld("rodata", argv, "backend=hugetlb,segments=text+rodata", objects),
                hugeld("edges=small", argv, "backend=hugetlb,edges=small", objects),
                hugeld("data-off", argv, "backend=hugetlb,data=off", objects)]
        with_own_output(ways)
        huge = {way.name: pages_moved(way) for way in ways}
        put_large(ways, files)
        yield experiment(f"defaults-{name}", f"The defaults and others: {name}, many short runs", "ms", ways,
                         pairs(ways, plan.short, files=files), base="default", huge=huge, program=name)


def write_short_source():
    """A C++ file, preprocessed, for some tenths of a second."""
    source = OUT / "short.ii"
    subprocess.run(["g++", "-E", "-x", "c++", "-o", source, "-"], input=b"#include <string>\n#include <map>\n", check=True)
    return source


def several(n, argv):
    """N runs of ARGV at the same time."""
    numbers = " ".join(map(str, range(n)))
    return ["/bin/sh", "-c", f'for i in {numbers}; do "$@" & done; wait', "sh", *argv]


def group_many(plan, only_plain=False):
    """More processes than processors: each has a copy of its own, where plain ones share theirs.  Four on each of two processors:
    those of one way here, those of the other there."""
    if plan.quick or not find_cc1plus():
        return
    source, cc1plus = write_short_source(), os.path.realpath(find_cc1plus())
    share(cc1plus)
    four = several(4, [cc1plus, "-quiet", "-O2", source, "-o", "/dev/null"])
    ways = [Variant("plain", four), Variant("plain-again", four), hugeld("hugetlb", four, "backend=hugetlb,exe=cc1plus"),
            hugeld("thp", four, "backend=thp,exe=cc1plus"), mapped("mapped", four)][:2 if only_plain else None]
    put_large(ways)
    yield paired_experiment("many", "Four cc1plus at once on one processor", "ms", ways,
                            at_once_precisely(ways, pairs_for(plan, time_run(ways[0]) * 2 / 1000)),
                            huge={way.name: pages_moved(way) for way in ways})


# --- databases ---


class Server:
    """A server with files of its own, in a control group that counts its processor time in nanoseconds."""

    def __init__(self, way, folder):
        root = pathlib.Path("/sys/fs/cgroup")
        self.first = (root / "cpuacct").is_dir()  # version 1
        self.group = (root / "cpuacct" if self.first else root) / f"hugeld-bench-{os.getpid()}-{way.name}"
        self.group.mkdir()
        self.folder = folder
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", f'echo $$ > {self.group}/cgroup.procs && exec "$@"', "sh", *map(str, way.argv)],
                env=way.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def end(self, signal_):
        self.process.send_signal(signal_)
        self.process.wait(timeout=120)
        self.group.rmdir()

    def cpu_us(self):
        if self.first:
            return int((self.group / "cpuacct.usage").read_text()) / 1e3
        return int((self.group / "cpu.stat").read_text().split()[1])

    def move_to(self, processor):
        for pid in (self.group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), [processor])


# How often servers are started, and so many rounds with each: what a process has of its own is then drawn anew too.
GENERATIONS, ROUNDS = 8, 9
# As often where plain ones alone are measured until the interval is narrow enough: that takes five minutes.
GENERATIONS_MOST = 48


@contextlib.contextmanager
def two_servers(make, ways, is_ready, stop, generation):
    """{name: Server} of the two WAYS; in every second GENERATION the other one starts first."""
    started = {}
    try:
        for way in ways if generation % 2 else ways[::-1]:
            folder, way.argv = make(f"{way.name}-in-{ways[1].name}")
            started[way.name] = Server(way, folder)
            helpers.wait_until(lambda folder=folder: is_ready(folder), 60, f"{way.name} answering")
        yield started
    finally:
        for server in started.values():
            server.end(stop)


def server_ways(only):
    """Each is a PIE, of which the preloader can't map an image."""
    return [Variant("plain", []), Variant("plain-again", []), hugeld("hugetlb", [], f"backend=hugetlb,exe={only}"), Variant("executed", []),
            hugeld("thp", [], f"backend=thp,exe={only}")]


def among(inside, name, argv):
    """ARGV for the server called NAME by two_servers: INSIDE a mount namespace with its image where that is to be executed."""
    return [*inside, *argv] if name.startswith("executed-in-") else argv


def server_pages(started):
    """Huge pages that hugeld's status sees in each."""
    found = {}
    for name, server in started.items():
        result = subprocess.run([HUGELD, "status", "--json", str(server.process.pid)], capture_output=True, text=True)
        rows = json.loads(result.stdout or "{}").get("processes", [])
        sums = {}
        for object_ in rows[0]["objects"] if rows else []:
            for backend, pages in object_["backends"].items():
                sums[backend] = sums.get(backend, 0) + pages
        found[name] = ", ".join(f"{pages} {backend.partition('_')[0]}" for backend, pages in sums.items() if pages)
    return found


def serve_at_once(pair, processors, first, work, transactions):
    """[(time, the server's processor time)] for one transaction, in us, of a PAIR of servers that work at the same time, each
    with its client on one of PROCESSORS; FIRST: whose client is started first."""
    before = []
    for server, processor in zip(pair, processors):
        server.move_to(processor)
        before.append(server.cpu_us())
    start = time.monotonic()
    clients = {}
    for i in first, 1 - first:
        words = ["taskset", "-c", str(processors[i]), *map(str, work(pair[i].folder))]
        client = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        clients[client.pid] = i, client
    ended = [0.0, 0.0]
    for _ in pair:
        pid, status = os.wait()
        i, client = clients[pid]
        ended[i], client.returncode = time.monotonic(), status
        if status != 0:
            raise RuntimeError("a client of the server failed")
    time.sleep(0.05)  # postgres counts a backend when it has ended
    return [((end - start) * 1e6 / transactions, (server.cpu_us() - cpu) / transactions)
            for server, end, cpu in zip(pair, ended, before)]


def serve_in_turns(pair, work, transactions, rounds):
    """{values, pair, cpu, pair_cpu} of a PAIR of servers, the plain one first."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    found = {"values": [], "pair": [], "cpu": [], "pair_cpu": []}
    for i in range(-1, rounds):  # the first doesn't count
        results = serve_at_once(pair, processors if i % 2 else processors[::-1], i // 2 % 2, work, transactions)
        for key, value in zip(("pair", "pair_cpu", "values", "cpu"), [*results[0], *results[1]]):
            found[key] += [value] if i >= 0 else []
    return found


Load = collections.namedtuple("Load", "name title work transactions")  # what clients want of a server, and how often


def measure_servers(loads, ways, start, rounds, program):
    """Time and the server's processor time for one transaction of each load, of each way beside a plain server of its own, both of
    PROGRAM: both of start([plain, way]) have then done as much.  This process sleeps until a client ends, and must notice at once: it
    has real-time priority, which its children don't inherit."""
    found, huge = {load: Measured() for load in loads}, {}

    def measure(way):
        with start([ways[0], way]) as started:
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            try:
                for load in loads:
                    found[load][way.name] = serve_in_turns((started["plain"], started[way.name]), load.work, load.transactions,
                                                           rounds)
            finally:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            huge.update(server_pages(started))

    pagecache.put("large", program)
    for way in ways[1:]:
        _, kib = pagecache.measure_unchanged([program], lambda way=way: measure(way))
        for load in loads:
            found[load].folio_kib = kib
    for load in loads:
        yield paired_experiment(load.name, f"{load.title}: time, and the server's processor time, for one", "us", ways,
                                found[load], huge=huge)


def add_generation(first, found, rounds):
    """Adds what was FOUND to what the FIRST generation has found."""
    for a, b in zip(first["ways"], found["ways"]):
        a["block"] = rounds
        for key in ("values", "pair", "cpu", "pair_cpu"):
            a[key] += b[key]
        if b["huge"] not in a["huge"].split("; "):
            a["huge"] += "; " + b["huge"]


def in_generations(plan, measure, only_plain=False):
    """Of several generations of the same servers one experiment: the rounds of measure(ROUNDS, generation) one after the
    other.  ONLY_PLAIN: as many as plain against plain takes."""
    first = {}
    generations, rounds = (1, 6) if plan.quick else (GENERATIONS, ROUNDS)
    done = 0
    while done < generations:
        for found in measure(rounds, done):
            if first.setdefault(found["id"], found) is not found:
                add_generation(first[found["id"]], found, rounds)
        done += 1
        if only_plain and done == GENERATIONS:
            missing = max(pairs_missing(way["pair"], way["values"], rounds) for found in first.values() for way in found["ways"])
            generations = min(GENERATIONS_MOST, done + -(-missing // rounds))
    return list(first.values())


def has_pgbench():
    return glob.glob("/usr/lib/postgresql/*/bin/pgbench") and os.getuid() == 0


def group_databases(plan, only_plain=False):
    if shutil.which("mariadbd") and shutil.which("mariadb-slap") and os.getuid() == 0:
        yield from in_generations(plan, lambda rounds, i: measure_mariadb(rounds, i, only_plain), only_plain)
    if has_pgbench():
        yield from in_generations(plan, lambda rounds, i: measure_postgres(rounds, i, only_plain), only_plain)


def data_folder(name):
    folder = pathlib.Path("/var/tmp") / f"hugeld-bench-{os.getpid()}" / name
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    return folder


MARIADB_ROWS = 3000
# As sysbench's read-only transactions have them: a row by its key, and four questions about a hundred rows.
POINT = "SELECT word FROM d.t WHERE id = {first}"
RANGES = [f"SELECT {what} FROM d.t WHERE id BETWEEN {{first}} AND {{first}} + 99{order}"
          for what, order in (("word", ""), ("SUM(id)", ""), ("word", " ORDER BY word"), ("DISTINCT word", " ORDER BY word"))]


def write_queries(name, questions):
    """A file with a thousand of these, each about other rows."""
    path = OUT / f"queries-{name}.sql"
    rows = [i * 7919 % (MARIADB_ROWS - 100) + 1 for i in range(1000)]
    path.write_text(";".join(questions[i % len(questions)].format(first=row) for i, row in enumerate(rows)))
    path.chmod(0o644)
    return path


def measure_mariadb(rounds, generation, only_plain):
    parent = data_folder(f"mariadb-{generation}")

    def client(folder):
        return ["mariadb", "--no-defaults", f"--socket={folder}/socket", "-e"]

    def ready(folder):
        return subprocess.run([*client(folder), "SELECT 1"], capture_output=True).returncode == 0

    def load(name, title, questions, transactions):
        queries = write_queries(name, questions)

        def work(folder):
            return ["mariadb-slap", "--no-defaults", f"--socket={folder}/socket", "--concurrency=2", f"--query={queries}",
                    "--delimiter=;", f"--number-of-queries={transactions}", "--no-drop", "--create-schema=d"]

        return Load(name, f"MariaDB, {title}, each server with its clients on one processor", work, transactions)

    loads = [load("mariadb", "point selects", [POINT], 4000), load("mariadb-range", "selects of ranges", RANGES, 1500)]
    program = os.path.realpath(shutil.which("mariadbd"))
    share(program)
    ways = server_ways("mariadbd")[:2 if only_plain else None]

    def make(name):
        folder, argv = databases.make_mariadb(parent, name)
        return folder, among(inside, name, argv)

    @contextlib.contextmanager
    def start(pair):
        with two_servers(make, pair, ready, signal.SIGTERM, generation) as started:
            for server in started.values():
                subprocess.run([*client(server.folder), "CREATE DATABASE d; USE d; CREATE TABLE d.t (id INT PRIMARY KEY, word "
                                f"VARCHAR(40)); INSERT INTO d.t SELECT seq, MD5(seq) FROM seq_1_to_{MARIADB_ROWS}"], check=True)
            yield started

    try:
        with namespace_with(program) as inside:
            yield from measure_servers(loads, ways, start, rounds, program)
    finally:
        shutil.rmtree(parent.parent, ignore_errors=True)


def measure_postgres(rounds, generation, only_plain):
    parent, transactions, binaries = data_folder(f"postgres-{generation}"), 4000, []

    def make(name):
        folder, found, argv = databases.make_postgres(parent, name)
        binaries.append(found)
        return folder, among(inside, name, argv)

    def call(folder, program, *words):
        return [f"{binaries[0]}/{program}", "-h", folder, "-U", "postgres", *words]

    def ready(folder):
        return subprocess.run(list(map(str, call(folder, "psql", "-c", "SELECT 1"))), capture_output=True).returncode == 0

    def work(folder):
        return call(folder, "pgbench", "-n", "-S", "-c", "2", "-t", str(transactions // 2), "postgres")

    program = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))[-1]
    share(program)
    ways = server_ways("postgres")[:2 if only_plain else None]

    @contextlib.contextmanager
    def start(pair):
        with two_servers(make, pair, ready, signal.SIGINT, generation) as started:
            for server in started.values():
                subprocess.run(list(map(str, call(server.folder, "pgbench", "-q", "-i", "-s", "1", "postgres"))), check=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            yield started

    try:
        with namespace_with(program) as inside:
            load = Load("postgres", "PostgreSQL, pgbench -S, each server with its clients on one processor", work, transactions)
            yield from measure_servers([load], ways, start, rounds, program)
    finally:
        shutil.rmtree(parent.parent, ignore_errors=True)


# --- large static arrays ---


def group_arrays(plan):
    arrays, linked = OUT / "arrays", OUT / "arrays-2m"
    compile_c(arrays, ROOT / "bench/arrays.c")
    # libhugetlbfs remaps three segments at most.
    compile_c(linked, *alternatives.ALIGNED, "-Wl,-z,noseparate-code", ROOT / "bench/arrays.c")
    for what, unit, title in (("walk", "ns", "Random walk over 1 GiB of .bss, one read"),
                              ("data", "ns", "Random walk over 64 MiB of .data, one read"),
                              ("triad", "ms", "Triad over 1 GiB of .bss, one pass"), ("start", "ms", "Start, nothing touched"))[:1 if plan.quick else 4]:
        ways = [Variant("plain", [arrays, what]), hugeld("data-thp", [arrays, what]), hugeld("bss-thp", [arrays, what], "bss=thp")]
        if find_libhugetlbfs():
            ways.append(libhugetlbfs("linked-libhugetlbfs", [linked, what], "RW"))
        yield experiment(f"arrays-{what}", title, unit, ways, pairs(ways, 3 if plan.quick else 6, prints=what != "start"))


# --- costs ---


def group_dsos(plan):
    """What each loaded object costs: nothing moves, all are looked at."""
    for n in (1, 10, 100) if plan.quick else (1, 10, 100, 1000):
        program = compile_c(OUT / f"dsos-{n}", write_nothing(), "-Wl,--no-as-needed", *small_libraries(n))
        ways = [Variant("plain", [program]), hugeld("main", [program]), hugeld("all", [program], objects="*")]
        yield experiment(f"dsos-{n}", f"Start with {n} small DSOs, nothing to move", "ms", ways,
                         pairs(ways, plan.short if n < 1000 else max(plan.short // 3, 5)), dsos=n)


def small_libraries(n):
    """N copies of one DSO."""
    folder = OUT / "dsos"
    folder.mkdir(exist_ok=True)
    one = compile_c(OUT / "libone.so", "-shared", "-fPIC", "-DDSO=one", ROOT / "bench/later.c")
    for i in range(n):
        if not (folder / f"libf{i}.so").exists():
            shutil.copy(one, folder / f"libf{i}.so")
    return [folder / f"libf{i}.so" for i in range(n)]


def write_nothing():
    (OUT / "nothing.c").write_text("int main(void) { return 0; }\n")
    return OUT / "nothing.c"


def group_later(plan):
    """Watching for objects that come later, for those who have nothing to gain."""
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


WAIT = "#include <unistd.h>\n__attribute__((constructor)) static void wait_for_input(void) { char c; (void)!read(0, &c, 1); }\n"


@contextlib.contextmanager
def waiting_with(way):
    """The number of WAY's process, whose preloaded objects are on huge pages, and which waits before its main."""
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
    """A map of FILE, inside a process that has just begun and from outside, against what nm and awk make of it."""
    check_line(file, table)
    inside = [Variant("inside", [OUT / "perf-map", file, "1", OUT / "inside.map"], "nm-awk"),
              Variant("inside-text", [OUT / "perf-map", "-f", file, "1", OUT / "inside.map"], "nm-awk")]
    for way in inside:
        way.prints = True  # what the process itself sees: its start is no part of it
    outside = [HUGELD, "perf-map", "--output", OUT / "outside.map", str(pid)]
    return [nm_awk("nm-awk", NM_AWK, table, file), *inside, nm_awk("nm-awk-short", NM_AWK_SHORT, table, file, "nm-awk"),
            Variant("command-mangled", [*outside, "--no-demangle"], "nm-awk"),
            nm_awk("nm-C-awk", NM_AWK, table + "C", file, "nm-awk"), Variant("command", outside, "nm-C-awk")]


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
        subprocess.run([HUGELD, "perf-map", "--clean"], check=False, stdout=subprocess.DEVNULL)


def group_ldso(plan):
    """What the series costs programs that don't ask for it, over the same ld.so without it.  Where in memory a file lies makes
    more of a difference, so there are four copies of each under paths of one length: those of "without" differ by noise."""
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


def memory_kib(pid):
    """What PID takes of the machine: its share of what is shared, and its huge pages."""
    rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) for line in rollup[1:]}
    return fields["Pss"] + fields["Private_Hugetlb"] + fields["Shared_Hugetlb"]


def group_memory(plan):
    """Memory of one process and of ten of the same program with 32 MiB of text, all touched."""
    program = calls(32)
    ways = [Variant("plain", [program, "0", "wait"]), hugeld("hugetlb", [program, "0", "wait"], "backend=hugetlb"),
            hugeld("thp", [program, "0", "wait"], "backend=thp")]
    for n in (1, 10):
        values = {}
        for way in ways:
            running = [subprocess.Popen(way.argv, env=way.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                       for _ in range(n)]
            try:
                for process in running:
                    process.stdout.readline()
                values[way.name] = [sum(memory_kib(p.pid) for p in running) / 1024]
            finally:
                for process in running:
                    process.stdin.close()
                    process.wait(timeout=60)
                    process.stdout.close()
        yield experiment(f"memory-{n}", f"Memory of {n} process{'es' if n > 1 else ''} with 32 MiB of text, all touched", "MiB",
                         ways, values, note="One reading each: what smaps counts, shared pages by their share.")


# --- images: one copy for all processes ---

STORE = OUT / "store"


def share(*files):
    """Makes images of FILES in a store of the bench's own, a tmpfs that goes with its mount namespace (bench/run)."""
    result = subprocess.run([HUGELD, "share", f"--store={STORE}", "--way=image", "add", *map(str, files)], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"hugeld share add: {result.stderr.strip()}")


def image_of(file):
    """The path of FILE's image, under the key that elf/store.c gives it."""
    state = os.stat(file)
    seconds, nanoseconds = divmod(state.st_ctime_ns, 10**9)
    return (STORE / f"{state.st_dev:#x}-{state.st_ino:#x}-{state.st_size:#x}-{seconds:#x}.{nanoseconds:#x}/.image").resolve(True)


def mapped(name, argv, objects=None, base="plain"):
    return hugeld(name, argv, f"backend=image,store={STORE}", objects, base)


def libraries_of(program, *patterns):
    """Those libraries that PROGRAM is linked with whose names begin with one of PATTERNS."""
    lines = subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines()
    paths = [line.split("=>")[1].split()[0] for line in lines if "=>" in line and "/" in line]
    return [os.path.realpath(path) for path in paths if os.path.basename(path).startswith(patterns)]


def find_jvm():
    java = shutil.which("java")
    found = java and sorted(pathlib.Path(os.path.realpath(java)).parents[1].glob("**/libjvm.so"))
    return (os.path.realpath(java), str(found[0])) if found else None


def short_programs():
    """(name, what, argv, LD_HUGEPAGES, files that get an image, whether the program itself is executed from one, seconds)."""
    two_lines, small = OUT / "two-lines.cc", OUT / "small.cc"
    two_lines.write_text("int f(int x) { return x; }\nint main() { return f(3); }\n")
    small.write_text("#include <string>\nint main(int n, char **v) { return std::string(v[0]).size() + n; }\n")
    function = OUT / "function.rs"
    function.write_text("pub fn f(x: u32) -> u32 { x + 1 }\n")
    if find_cc1plus():
        cc1plus = os.path.realpath(find_cc1plus())
        yield "cc1plus", "of two lines", [cc1plus, "-quiet", "-O2", two_lines, "-o", "/dev/null"], None, [cc1plus], True, 0.012
    if find_node():
        node = os.path.realpath(find_node())
        yield "node", "`-e 0`", [node, "-e", "0"], None, [node], True, 0.04
    if shutil.which("clang"):
        clang = os.path.realpath(shutil.which("clang"))
        files = libraries_of(clang, "libLLVM", "libclang")
        yield ("clang", "`-c` of a small file", [clang, "-O2", "-c", small, "-o", "/dev/null"], "main:libLLVM*:libclang*",
               files or [clang], False, 0.2)
    if find_jvm():
        java, jvm = find_jvm()
        yield "java", "`-version`", [java, "-version"], "main:libjvm.so", [jvm], False, 0.06
    if find_rustc():
        rustc = find_rustc()
        files = libraries_of(rustc, "librustc_driver", "libLLVM")
        yield ("rustc", "of one function", [rustc, "--crate-type=lib", "--emit=obj", "-o", OUT / "@.o", function],
               "main:librustc_driver*:libLLVM*", files, False, 0.06)
    if shutil.which("git"):
        git = os.path.realpath(shutil.which("git"))
        yield "git", "`--version`", [git, "--version"], None, [git], True, 0.002


def pairs_for(plan, seconds):
    """How many pairs: some 10 seconds', 30 where one takes long, or a second's."""
    if plan.quick:
        return max(12, min(30, int(1 / seconds)))
    return max(20, min(60, int(30 / seconds)), min(600, int(10 / seconds)))


def image_programs(plan):
    for name, what, argv, objects, files, executed, seconds in short_programs():
        share(*files)
        ways = [Variant("plain", argv), Variant("plain-again", argv), mapped("mapped", argv, objects)]
        if executed:
            ways.append(Variant("executed", [image_of(argv[0]), *argv[1:]]))
        ways.append(hugeld("private", argv, "backend=hugetlb", objects))
        with_own_output(ways)
        memory = {way.name: watch(way)[0] for way in ways}
        huge = {way.name: pages_moved(way) for way in ways}
        for state in pagecache.STATES:
            found = pagecache.measure_in(state, files, lambda ways=ways: at_once(ways, pairs_for(plan, seconds), files=files))
            suffix = "" if state == "large" else f"-{state}"
            yield paired_experiment(f"image-{name}{suffix}", f"{name} {what}", "ms", ways, found, huge=huge,
                                    program=name, memory=memory)


@contextlib.contextmanager
def namespace_with(program=None):
    """The words that run a command in a mount namespace of its own, where PROGRAM is its image."""
    script = 'if [ -n "$1" ]; then mount --bind "$1" "$2"; fi; echo ready; read -r _'
    words = [str(image_of(program)), program] if program else ["", ""]
    process = subprocess.Popen(["unshare", "--mount", "sh", "-ec", script, "sh", *words], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    try:
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError("image: no mount namespace")
        yield [shutil.which("nsenter"), f"--mount=/proc/{process.pid}/ns/mnt"]
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


def image_chromium(plan):
    """The browser finds its files by /proc/self/exe, and is a PIE: so its image is mounted over it."""
    chromium = "/usr/lib/chromium/chromium"
    if not os.path.exists(chromium) or os.getuid() != 0:
        return
    share(chromium)
    document = OUT / "document.html"
    document.write_text("<p id=p></p><script>p.textContent = 6 * 7</script>")
    argv = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=/nonexistent", "--dump-dom", f"file://{document}"]
    with namespace_with() as inside, namespace_with(chromium) as inside_with:
        ways = [Variant("plain", [*inside, *argv]), Variant("plain-again", [*inside, *argv]), Variant("executed", [*inside_with, *argv])]
        for way, name in zip(ways, ("a", "b", "c")):
            folder = OUT / f"chromium-{name}"
            way.argv = [word.replace("/nonexistent", str(folder)) for word in way.argv]
        put_large(ways)
        huge = {way.name: plain_pages(way) for way in ways}
        yield paired_experiment("image-chromium", "Chromium `--dump-dom`", "ms", ways, at_once(ways, 6 if plan.quick else 40),
                                huge=huge)


def image_starts(plan):
    nothing, empty = OUT / "nothing", OUT / "empty.so"
    (OUT / "empty.c").write_text("typedef int nothing;\n")
    compile_c(nothing, write_nothing())
    compile_c(empty, "-shared", "-fPIC", OUT / "empty.c")
    ways = [Variant("empty", [nothing], LD_PRELOAD=empty), Variant("empty-again", [nothing], "empty", LD_PRELOAD=empty),
            hugeld("hugeld", [nothing], base="empty")]
    yield paired_experiment("image-nothing", "Start of a small program, nothing to move, over an empty preloaded library",
                            "ms", ways, at_once(ways, plan.tiny), note="The goal for the difference is 0.03 ms.")
    for size in [128] if plan.quick else [128, 512]:
        stock, linked = [calls(size, pie=False), "0"], [calls(size, aligned=True), "0"]
        share(stock[0])
        ways = [Variant("plain", stock), Variant("plain-again", stock), mapped("mapped", stock), Variant("executed", [image_of(stock[0]), "0"]),
                hugeld("private", stock, "backend=hugetlb"), Variant("linked", linked, None)]
        put_large(ways)
        if find_libhugetlbfs():
            ways.append(libhugetlbfs("linked-libhugetlbfs", linked, base="linked"))
        yield paired_experiment(f"image-start-{size}", f"Start with {size} MiB of text", "ms", ways,
                                at_once(ways, max(12, plan.short * (8 if size == 128 else 1))), huge=where(ways),
                                note="What counts is the difference; the goal is 0.5 ms.")


def image_calls(plan):
    stock, linked = [calls(128, pie=False), "1000000"], [calls(128, aligned=True), "1000000"]
    share(stock[0])
    rounds = 12 if plan.quick else 100
    ways = [Variant("plain", stock), Variant("plain-again", stock), mapped("mapped", stock), hugeld("private", stock, "backend=hugetlb"),
            Variant("linked", linked)]
    put_large(ways)
    yield paired_experiment("image-calls", "Random calls over 128 MiB of text", "ns", ways, at_once(ways, rounds, prints=True),
                            huge=where(ways))
    ways = [hugeld("private", stock, "backend=hugetlb"), mapped("mapped", stock, base="private"), Variant("linked", linked, "private")]
    yield paired_experiment("image-calls-private", "Random calls over 128 MiB of text, over private copies", "ns", ways,
                            at_once(ways, rounds, prints=True), huge=where(ways))


def image_many(plan):
    """Both processors are taken, so these take turns."""
    if not find_cc1plus():
        return
    source, cc1plus = write_short_source(), os.path.realpath(find_cc1plus())
    share(cc1plus)

    def eight(program):
        return several(8, [program, "-quiet", "-O2", source, "-o", "/dev/null"])

    ways = [Variant("plain", eight(cc1plus)), mapped("mapped", eight(cc1plus)), Variant("executed", eight(image_of(cc1plus))),
            hugeld("private", eight(cc1plus), "backend=hugetlb,exe=cc1plus")]
    put_large(ways)
    yield experiment("image-many", f"Eight cc1plus at once on {os.cpu_count()} processors", "ms", ways,
                     pairs(ways, 6 if plan.quick else 31), huge={way.name: pages_moved(way) for way in ways})


def pss_outside(pid, folder):
    """KiB that PID takes of the machine, without what it has mapped from FOLDER."""
    kib, counts = 0, True
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            counts = str(folder) not in line
        elif counts and words[0] in ("Pss:", "Private_Hugetlb:", "Shared_Hugetlb:"):
            kib += int(words[1])
    return kib


def image_memory(plan):
    program, values = calls(32, pie=False), {}
    share(program)
    store_kib = os.stat(image_of(program)).st_blocks / 2
    ways = [Variant("plain", [program, "0", "wait"]), mapped("mapped", [program, "0", "wait"]),
            Variant("executed", [image_of(program), "0", "wait"]), hugeld("private", [program, "0", "wait"], "backend=hugetlb")]
    for way in ways:
        running = [subprocess.Popen(way.argv, env=way.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(10)]
        try:
            for process in running:
                process.stdout.readline()
            kib = sum(pss_outside(p.pid, STORE) for p in running)
            values[way.name] = [(kib + (store_kib if way.name in ("mapped", "executed") else 0)) / 1024]
        finally:
            for process in running:
                process.stdin.close()
                process.wait(timeout=60)
                process.stdout.close()
    yield experiment("image-memory", "Memory of ten processes with 32 MiB of text, all touched", "MiB", ways, values,
                     note="One reading each, with the whole image in the store; shared pages count by their share.")


def image_making(plan):
    """An image is made, or the file copied, onto the same tmpfs, and removed."""
    program, folder = calls(128, pie=False), OUT / "huge-tmpfs"
    def make(name, *words):
        return Variant(name, ["/bin/sh", "-ec", '"$@"; rm "$0"', folder / name, *words, program, folder / name], "cp")

    cp = shutil.which("cp")
    ways = [make("cp", cp), make("cp-again", cp), make("image", HUGELD, "image")]
    ways[0].base = None
    yield paired_experiment("image-making", "An image of 128 MiB, and `cp` to the same tmpfs", "ms", ways,
                            at_once(ways, 8 if plan.quick else 60))


def group_image(plan):
    """Text from an image, of which there is one for all processes; the same pair of rounds at the same time.  "plain-again" is
    what the method sees where there is nothing to see."""
    for part in (image_programs, image_chromium, image_starts, image_calls, image_many, image_memory, image_making):
        yield from part(plan)


# --- what others do ---


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
    """What others do, beside what hugeld does, each at the same time as the plain program."""
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
        yield paired_experiment(f"alternatives-{name}", title, "ms", ways, values, program=name, absent=absent,
                                note=alternatives.missing_in_kernel(),
                                memory={way: memory for way, (memory, _) in watched.items()},
                                huge={way: huge for way, (_, huge) in watched.items()},
                                start=measure_starts(plan, ways_with(start)[0]))


# --- what hugeld survey estimates ---


def survey_programs():
    """(name, argv, LD_HUGEPAGES, files that get an image): ten real programs, those of group programs first."""
    yield from programs()
    recursion = ("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<1000000) "
                 "SELECT count(*), sum(x*x%7) FROM c")
    more = [("git", ["git", "-C", ROOT, "log", "--stat", "--oneline"]), ("sqlite3", ["sqlite3", ":memory:", recursion]),
            ("gdb", ["gdb", "-nx", "-batch", "-ex", "python print(sum(i * i % 7 for i in range(2000000)))"]),
            ("php", ["php", "-r", "for ($i = $s = 0; $i < 5000000; $i++) $s += strlen($i) * $i % 7; echo $s;"])]
    for name, argv in more:
        if shutil.which(name):
            program = os.path.realpath(shutil.which(name))
            yield name, [program, *argv[1:]], None, [program]
    if find_jvm():
        java, jvm = find_jvm()
        yield "java", [java, "-version"], "main:libjvm.so", [jvm]


def ask_survey(argv, seconds):
    """What hugeld survey says of the program ARGV, which is run again and again meanwhile."""
    again = ["sh", "-c", 'while :; do "$@" > /dev/null 2>&1 || exit; done', "sh", *map(str, argv)]
    result = subprocess.run([HUGELD, "survey", "--json", "--seconds", str(seconds), "--program", argv[0], "--", *again],
                            env=environment(), capture_output=True, text=True)
    found = json.loads(result.stdout or "{}").get("programs", [])
    return found[0] if found else None


def group_survey(plan):
    """The estimate of hugeld survey, calibrated on this machine, against the ratio that is measured, from an image."""
    if os.getuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "none", "/var/cache"], check=True)  # bench/run's namespace
    subprocess.run([HUGELD, "survey", "--calibrate"], check=True, stdout=subprocess.DEVNULL)
    for name, argv, objects, files in survey_programs():
        if plan.quick and name not in ("cc1plus", "node", "python3"):
            continue
        try:
            share(*files)
        except RuntimeError as error:  # too little text
            print(f" {error};", end="", flush=True)
            continue
        surveyed = ask_survey(argv, 3 if plan.quick else 10)
        if surveyed is None:
            raise RuntimeError(f"survey: nothing was seen of {name}")
        image = mapped("image", argv, objects) if objects else Variant("image", [HUGELD, "run", "-o", f"store={STORE}", *argv])
        ways = with_own_output([Variant("plain", argv), image])
        put_large(ways, files)
        huge = {"plain": plain_pages(ways[0]), "image": pages_moved(image) if objects else "at the exec stop"}
        note = (f"hugeld survey estimates {1 - surveyed['gain']:.3f} of the time: of {surveyed['samples']} samples "
                f"{100 * surveyed['huge_samples'] / max(surveyed['samples'], 1):.0f} % are on huge pages already; at least "
                f"{surveyed['hot_bytes'] / 2**20:.1f} MiB of text on small pages are hot, and likely "
                f"{surveyed['likely_hot_bytes'] / 2**20:.1f}, of which the plan covers "
                f"{100 * surveyed['advice']['hot_share']:.0f} %.")
        yield paired_experiment(f"survey-{name}", f"{name}, the estimate and what is measured", "ms", ways,
                                at_once(ways, 12 if plan.quick else min(60, pairs_for(plan, time_run(ways[0]) / 1000)), files=files),
                                note=note, huge=huge, program=name,
                                estimate=round(1 - surveyed["gain"], 4))


# --- memory pressure ---


@contextlib.contextmanager
def memory_limit(megabytes):
    """A memory cgroup's folder with this limit, version 1 or 2."""
    root = pathlib.Path("/sys/fs/cgroup")
    first = (root / "memory").is_dir()
    group = (root / "memory" if first else root) / f"hugeld-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(megabytes << 20))
        yield group
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


HOG = """
import mmap, sys, time
memory = mmap.mmap(-1, int(sys.argv[1]) << 20)
while True:
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    time.sleep(0.05)
"""


def group_pressure(plan):
    """A server's requests while something else in its group wants the memory: text that was dropped comes back by a major
    fault; text on hugetlb is never dropped."""
    if os.getuid() != 0:
        return
    program, requests = calls(64), 1000 if plan.quick else 2000
    argv = [program, str(requests), "requests"]
    share(program)
    ways = [Variant("plain", argv), hugeld("hugetlb", argv, "backend=hugetlb"), Variant("executed", [image_of(program), *argv[1:]])]
    rows = {way.name: [] for way in ways}
    with memory_limit(128) as group:
        join = ["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]

        def run(way):
            pagecache.evict(program)
            hog = subprocess.Popen([*join, "/usr/bin/python3", "-c", HOG, "80"])
            try:
                time.sleep(1)
                result = subprocess.run([*join, *map(str, way.argv)], env=way.env, capture_output=True, text=True)
            finally:
                hog.kill()
                hog.wait()
            if result.returncode != 0:
                raise RuntimeError(f"pressure: {way.name} ended with {result.returncode}: {result.stderr}")
            longest, tail, middle, faults = map(float, result.stdout.split())
            rows[way.name].append((longest, tail, middle, faults))
            return tail

        take_turns(ways, 2 if plan.quick else 7, run)
    pagecache.make(program, "large")
    for i, name, title, unit in ((1, "tail", "99.9th percentile of a request's time", "us"), (2, "median", "its median", "us"),
                                 (3, "faults", "major faults of the program while it serves", "")):
        yield experiment(f"pressure-{name}", f"Memory pressure (64 MiB of text, 80 MiB of another's, a limit of 128 MiB): {title}",
                         unit, ways, {way: [row[i] for row in found[1:]] for way, found in rows.items()})


def measure_self(plan):
    """(what, method, pairs, seconds, result) of plain runs against plain runs: what each method cannot see."""
    for name, argv, *_ in programs():
        ways = with_own_output([Variant("plain", argv), Variant("plain-again", argv)])
        rounds = pairs_for(plan, time_run(ways[0]) / 1000)
        start = time.monotonic()
        found = at_once_precisely(ways, rounds)["plain-again"]
        middle = time.monotonic()
        turns = pairs(ways, rounds)
        yield name, "at once", len(found["values"]), middle - start, compare(found["pair"], found["values"])
        yield name, "in turns", rounds, time.monotonic() - middle, compare(turns["plain"], turns["plain-again"])
    for group in group_many, group_databases:
        start = time.monotonic()
        for found in group(plan, only_plain=True):
            [way] = found["ways"]
            for what, base, values in ("", "pair", "values"), (", processor time", "pair_cpu", "cpu"):
                yield (found["id"] + what, "at once", len(way["values"]), time.monotonic() - start,
                       compare(way[base], way[values], way.get("block", 1)))


# --- faults, stalls and threads ---


def count_faults(way):
    """Page faults of WAY and its children."""
    process = subprocess.Popen(way.argv, env=way.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{way.name}: {way.argv[0]} ended with {process.returncode}")
    return usage.ru_minflt + usage.ru_majflt


def group_faults(plan):
    """Page faults of the short programs of group image."""
    for name, what, argv, objects, files, executed, _ in short_programs():
        share(*files)
        ways = [Variant("plain", argv), hugeld("hugetlb", argv, "backend=hugetlb", objects), mapped("mapped", argv, objects)]
        if executed:
            ways.append(Variant("executed", [image_of(argv[0]), *argv[1:]]))
        with_own_output(ways)
        values = take_turns(ways, 3 if plan.quick else 7, count_faults)
        yield experiment(f"faults-{name}", f"Page faults of {name} {what}", "", ways, values, program=name)


STALL = """
const library = process.argv[2]; let last = performance.now(), longest = 0, turns = 0;
function turn() {
  const now = performance.now(); longest = Math.max(longest, now - last); last = now;
  if (++turns == 200) { longest = 0; try { process.dlopen({exports: {}}, library); } catch { /* it is no addon */ } }
  if (turns < 400) setImmediate(turn); else console.log(longest.toFixed(3));
}
setImmediate(turn);
"""


def group_stalls(plan):
    """How long an event loop stands still while a large library is loaded into it."""
    libraries = sorted(glob.glob("/usr/lib/*/libLLVM-*.so.1"))
    if not find_node() or not libraries:
        return
    script, library = OUT / "stall.js", os.path.realpath(libraries[-1])
    script.write_text(STALL)
    share(library)
    argv, objects = [os.path.realpath(find_node()), script, library], "libLLVM*"
    ways = [Variant("plain", argv), Variant("plain-again", argv), hugeld("private", argv, "backend=hugetlb", objects),
            mapped("mapped", argv, objects), hugeld("thp", argv, "backend=thp", objects)]
    title = f"The longest turn of node's event loop while it loads {os.path.basename(library)}"
    yield paired_experiment("stall-node", title, "ms", ways, at_once(ways, 12 if plan.quick else 60, prints=True),
                            huge={way.name: pages_moved(way) for way in ways})


def remote_flushes():
    """How often processors were told to empty their TLBs; None where the kernel was built without CONFIG_DEBUG_TLBFLUSH."""
    counts = dict(line.split() for line in pathlib.Path("/proc/vmstat").read_text().splitlines())
    return int(counts["nr_tlb_remote_flush"]) if "nr_tlb_remote_flush" in counts else None


def flushes_in_words(ways):
    """What one run of each way adds to the counter, others' included."""
    if remote_flushes() is None:
        return "This kernel does not count TLB flushes (nr_tlb_remote_flush of /proc/vmstat)."
    said = []
    for way in ways:
        before = remote_flushes()
        time_run(way)
        said.append(f"{way.name} {remote_flushes() - before:,}")
    return f"TLB flushes that one run asked other processors for: {', '.join(said)}."


def group_threads(plan):
    """Text on small pages, private huge ones and an image while other threads fault and unmap.  Ways take turns: each takes all
    processors."""
    stock, linked = calls(32, pie=False, source="bench/threads.c"), calls(32, aligned=True, source="bench/threads.c")
    share(stock)
    for what, unit, title, count in (("calls", "ns", "a call over 32 MiB of text, while four threads fault and unmap", 1000000),
                                     ("unmaps", "us", "mapping, touching and unmapping 256 KiB, while two threads call", 500)):
        words = [what, str(count // 10 if plan.quick else count)]
        argv = [stock, *words]
        ways = [Variant("plain", argv), Variant("plain-again", argv), hugeld("private", argv, "backend=hugetlb"),
                hugeld("thp", argv, "backend=thp"), mapped("mapped", argv), Variant("executed", [image_of(stock), *words]),
                Variant("linked", [linked, *words])]
        values = pairs(ways, plan.short, prints=True)
        yield experiment(f"threads-{what}", f"Six threads: {title}", unit, ways, values, base="plain",
                         huge={way.name: watch(way)[1] for way in ways}, note=flushes_in_words(ways))


# --- what no virtual machine counts ---


def group_misses(plan):
    """Modelled, not measured: what the runs of `image` miss in instruction TLBs, and of `programs` those that have no short run
    there; QEMU takes too long for the rest.  Without java, whose threads compile whenever they like, so that no two runs are
    alike."""
    runs = {name: (f"{name} {what}", argv, objects) for name, what, argv, objects, *_ in short_programs()}
    for name, argv, objects, *_ in programs():
        if not plan.quick:
            runs.setdefault(name, (f"{name}, the run of `programs`", argv, objects))
    for name, title, stock, words, *_ in [] if plan.quick else alternative_programs(plan):
        runs.setdefault(name, (title, [stock, *words], None))
    plugin = misses.build(OUT)[1]
    for name, (title, argv, objects) in runs.items():
        if name != "java":
            found = misses.trace([str(word).replace("@", "misses") for word in argv], objects, OUT, plugin)
            yield experiment(f"misses-{name}", title, "", [], {}, program=name, **found)


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
    """Nothing of it is shared: what `hugeld run` takes before it executes a program as it is."""
    git, empty = [os.path.realpath(shutil.which("git")), "--version"], OUT / "empty.so"
    subprocess.run(["gcc", "-shared", "-nostdlib", "-x", "c", "-o", empty, "/dev/null"], check=True)
    ways = [Variant("empty", git, "empty", LD_PRELOAD=empty), Variant("plain", git, "empty"), Variant("launcher", [build_launcher(), *git], "empty"),
            Variant("run", [HUGELD, "run", *git], "empty")]
    return paired_experiment("run-git", "git --version by hugeld run, beside an empty library that is preloaded", "ms", ways,
                             at_once(ways, plan.short * 8), note="No store has an image of git.")


def run_in_both_states(plan):
    """The second run of what has an image, for both states of the page cache in which the plain program may find its file."""
    for name, argv, files, words in run_programs():
        share(*files)
        run = [HUGELD, "run", "-o", f"store={STORE}", *words, *argv]
        ways = with_own_output([Variant("plain", argv), Variant("plain-again", argv), Variant("run", run)])
        for state in pagecache.STATES:
            found = pagecache.measure_in(state, files, lambda ways=ways: at_once(ways, max(12, plan.short * 4), files=files))
            yield paired_experiment(f"run-{name}-{state}", f"{name} by hugeld run, its file {state} in the page cache", "ms", ways, found)


def group_run(plan):
    """What `hugeld run` adds to a start."""
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


def group_attach(plan):
    """hugeld attach and detach."""
    import attached
    yield from attached.measure(plan)


def group_service(plan):
    """What hugeld.service brings, and what it costs."""
    import service
    yield from service.measure(plan)


def group_upstream(plan):
    """The series for glibc's list."""
    import upstream
    yield from upstream.measure(plan)


GROUPS = {
    "image": group_image, "start": group_start, "calls": group_calls, "cold": group_cold, "programs": group_programs,
    "more": group_more, "alternatives": group_alternatives, "defaults": group_defaults, "many": group_many,
    "servers": group_servers, "databases": group_databases, "arrays": group_arrays, "memory": group_memory, "pressure": group_pressure,
    "faults": group_faults, "stalls": group_stalls, "threads": group_threads,
    "survey": group_survey, "dsos": group_dsos, "later": group_later, "perf-map": group_perf_map, "ldso": group_ldso,
    "run": group_run, "misses": group_misses, "attach": group_attach, "service": group_service, "upstream": group_upstream,
}
