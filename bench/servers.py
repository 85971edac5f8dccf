# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers under load: each way beside a plain server of its own, in several generations of processes."""

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

import databases
import helpers
import pagecache
from helpers import HUGELD
from installed import find_node
from measure import OUT, Measured, Variant, environment, experiment, hugeld
from workloads import STORE, data_folder, mapped, namespace_with, share

# --- two servers at the same time ---


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


# How often servers are started, and the rounds with each: each start draws the process's own random properties anew.
GENERATIONS, ROUNDS = 8, 9


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
            shutil.rmtree(server.folder, ignore_errors=True)  # it may be measured again


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


Load = collections.namedtuple("Load", "name title work transactions")  # the clients' requests, and their number


def measure_servers(loads, ways, start, rounds, program):
    """Time and the server's processor time for one transaction of each load, of each way beside a plain server of its own, both of
    PROGRAM: both of start([plain, way]) have then done the same work.  This process sleeps until a client ends, and must notice at
    once: it has real-time priority, which its children don't inherit."""
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
        _, layout = pagecache.measure_unchanged([program], lambda way=way: measure(way))
        for load in loads:
            found[load].layout = layout
    for load in loads:
        yield experiment(load.name, f"{load.title}: time, and the server's processor time, for one", "us", ways,
                         found[load], huge=huge)


def in_generations(plan, measure, rounds=ROUNDS):
    """Makes one experiment of several generations of the same servers: the rounds of measure(ROUNDS, generation) one after the
    other."""
    first = {}
    generations, rounds = (1, min(rounds, 6)) if plan.quick else (GENERATIONS, rounds)
    for generation in range(generations):
        for found in measure(rounds, generation):
            before = first.setdefault(found["id"], found)
            for a, b in zip(before["ways"], found["ways"]) if before is not found else ():
                a["block"] = rounds
                for key in ("values", "pair", "cpu", "pair_cpu"):
                    a[key] += b[key]
                if b["huge"] not in a["huge"].split("; "):
                    a["huge"] += "; " + b["huge"]
    return list(first.values())


# --- databases ---


def database_ways(only):
    """Each is a PIE, of which the preloader can't map an image."""
    return [Variant("plain", []), Variant("plain-again", []), hugeld("hugetlb", [], f"backend=hugetlb,exe={only}"), Variant("executed", []),
            hugeld("thp", [], f"backend=thp,exe={only}")]


def among(inside, name, argv):
    """ARGV for the server called NAME by two_servers: INSIDE a mount namespace with its image where that is to be executed."""
    return [*inside, *argv] if name.startswith("executed-in-") else argv


MARIADB_ROWS = 3000
# As sysbench's read-only transactions have them: a row by its key, and four questions about a hundred rows.
POINT = "SELECT word FROM d.t WHERE id = {first}"
RANGES = [f"SELECT {what} FROM d.t WHERE id BETWEEN {{first}} AND {{first}} + 99{order}"
          for what, order in (("word", ""), ("SUM(id)", ""), ("word", " ORDER BY word"), ("DISTINCT word", " ORDER BY word"))]


def write_queries(name, questions):
    """A file with a thousand of these transactions, each about other rows."""
    path = OUT / f"queries-{name}.sql"
    rows = [i * 7919 % (MARIADB_ROWS - 100) + 1 for i in range(1000)]
    path.write_text(";".join(questions[i % len(questions)].format(first=row) for i, row in enumerate(rows)))
    path.chmod(0o644)
    return path


def measure_mariadb(rounds, generation):
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
    ways = database_ways("mariadbd")

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


def measure_postgres(rounds, generation):
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
    ways = database_ways("postgres")

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


def group_databases(plan):
    if shutil.which("mariadbd") and shutil.which("mariadb-slap") and os.getuid() == 0:
        yield from in_generations(plan, measure_mariadb)
    if has_pgbench():
        yield from in_generations(plan, measure_postgres)


# --- the client pgbench ---


def has_pgbench():
    return glob.glob("/usr/lib/postgresql/*/bin/pgbench") and os.getuid() == 0


def pgbench(plan, words, clients):
    """PostgreSQL's clients, which write a line for each transaction; none may fail."""
    for log in OUT.glob("pgbench.*"):
        log.unlink()
    return subprocess.Popen(words("pgbench", "-n", "-S", "-c", str(clients), "-j", str(min(clients, 2)),
                                  "-T", "2" if plan.quick else "5", "-l", "--log-prefix=pgbench", "postgres"),
                            stdout=subprocess.PIPE, text=True, cwd=OUT)


# --- other servers ---

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
    """PROGRAM with words(folder), for clients that are called by work(folder) and make this number of TRANSACTIONS."""

    def make(parent, name):
        folder = parent / name
        folder.mkdir()
        executed = name.startswith("executed-")
        run = [HUGELD, "run", "-o", f"backend=image,store={STORE}"] if executed else []
        return folder, [*run, program, *map(str, words(folder))]

    ways = server_ways(program)

    def measure_generation(rounds, generation):
        parent = data_folder(f"{name}-{generation}")
        try:
            yield from measure_servers(
                [Load(name, title, work, transactions)], ways,
                lambda pair: two_servers(lambda name: make(parent, name), pair, is_ready, signal.SIGTERM, generation),
                rounds, os.path.realpath(program))
        finally:
            shutil.rmtree(parent.parent, ignore_errors=True)

    yield from in_generations(plan, measure_generation)


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


def group_servers(plan):
    """Servers under load, beside databases."""
    yield from redis(plan)
    if not plan.quick:
        yield from node_server(plan)
