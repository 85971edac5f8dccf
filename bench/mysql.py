# SPDX-License-Identifier: LGPL-2.1-or-later
"""MySQL under sysbench, in the chroot of Debian's next suite: the server is on one processor, its client on another one.

Two starts of one server differ by some 5 %, since each gets other memory.  So each pair of starts has fresh, identical data, the
sides swap places from one pair to the next, and the plain server runs beside itself, too.  Both are loaded in turns: one answers, and
the other one waits.  A turn is short, since the machine's other load changes from one second to the next: of turns of a second, those of
one start differed by a quarter, and the starts by no more than that explains."""

import contextlib
import os
import re
import shutil
import signal
import subprocess

import helpers
import pagecache
from alternatives import find_iodlr, said_by_libhugetlbfs
from helpers import HUGELD, LIBRARY, ROOT
from installed import cache_folder
from measure import Measured, Variant, copy_of, experiment, find_libhugetlbfs
from servers import Server, in_generations, server_pages
from workloads import STORE, data_folder, image_of, share

CHROOT = cache_folder() / "suites/sid"
MADE_BY = "run tests/ldso/suite sid -- tools/install-packages bench-mysql"
PROGRAM = CHROOT / "usr/sbin/mysqld"
COPIES = CHROOT / "usr/lib/hugeld-bench"
TESTS = {"oltp_point_select": ("point selects", 6000), "oltp_read_only": ("read-only transactions", 220)}  # of a turn: a third of a second
TABLES, ROWS, CLIENTS = 4, 100000, 8
PORT = 33061
ROUNDS = 8


def inside(*words):
    return ["chroot", CHROOT, *words]


def seen_from_inside(path):
    return "/" + str(path.relative_to(CHROOT))


@contextlib.contextmanager
def entered():
    """The chroot has /proc and /dev, this tree and the store; the folder of the data."""
    places = [("/proc", "/proc"), ("/dev", "/dev"), (ROOT, ROOT)]
    for source, place in places:
        target = CHROOT / str(place).lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--rbind", source, target], check=True)
    parent = data_folder("mysql")
    target = CHROOT / str(parent).lstrip("/")
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", parent, target], check=True)
    try:
        yield parent
    finally:
        subprocess.run(["umount", "-l", target], check=True)
        for _, place in places[::-1]:
            subprocess.run(["umount", "-l", CHROOT / str(place).lstrip("/")], check=True)
        shutil.rmtree(parent.parent, ignore_errors=True)


def server_words(folder, port):
    return ["--no-defaults", "--user=root", "--basedir=/usr", f"--datadir={folder}/data", f"--socket={folder}/socket", f"--port={port}",
            f"--pid-file={folder}/pid", "--mysqlx=OFF", "--secure-file-priv=NULL", "--innodb-buffer-pool-size=256M",
            "--performance-schema=OFF", "--skip-log-bin", "--bind-address=127.0.0.1", "--innodb-redo-log-capacity=64M"]


def sysbench(folder, test, *words):
    return inside("taskset", "-c", str(max(os.sched_getaffinity(0))), "sysbench", "--db-driver=mysql", f"--mysql-socket={folder}/socket",
                  "--mysql-user=root", "--mysql-db=sbtest", f"--tables={TABLES}", f"--table-size={ROWS}", "--rand-type=uniform",
                  f"--threads={CLIENTS}", "--db-ps-mode=disable", "--mysql-ssl=off", test, *words)


def ask(folder, question):
    words = inside("mysql", "--no-defaults", f"--socket={folder}/socket", "-uroot", "-e", question)
    return subprocess.run(words, capture_output=True).returncode == 0


def start_server(way, folder, port):
    """On the first processor, in the way whose words begin WAY's."""
    way.argv = [str(word) for word in inside("taskset", "-c", str(min(os.sched_getaffinity(0))), *way.first, *server_words(folder, port))]
    server = Server(way, folder)
    try:
        helpers.wait_until(lambda: server.process.poll() is not None or ask(folder, "SELECT 1"), 120, f"{way.name} answering")
        if server.process.poll() is not None:
            raise RuntimeError(f"{way.name}: mysqld ended: {(folder / 'log').read_text()[-500:]}")
    except BaseException:
        server.end(signal.SIGKILL)
        raise
    return server


def make_way(name, *first, **variables):
    way = Variant(name, [], **variables)
    way.first = first
    return way


def make_ways(parent):
    """Each with the words before the server's own; the files of the plain ones lie as they are found after a boot, or are read in
    order.  PARENT: a folder that is seen from inside."""
    plain, in_order, dropped = (copy_of(PROGRAM, name, COPIES) for name in ("plain", "in-order", "drop-in"))
    share(PROGRAM)
    subprocess.run(["mount", "--bind", image_of(PROGRAM), dropped], check=True)
    pagecache.make(in_order, "large")
    ways = [make_way("plain", seen_from_inside(plain)), make_way("plain-again", seen_from_inside(plain)),
            make_way("in-order", seen_from_inside(in_order)),
            make_way("hugetlb", seen_from_inside(plain), LD_PRELOAD=LIBRARY, LD_HUGEPAGES_OPTIONS="backend=hugetlb,exe=mysqld"),
            make_way("run", HUGELD, "run", "-o", f"store={STORE}", "--", seen_from_inside(PROGRAM)),
            make_way("executed", seen_from_inside(dropped))]
    if find_iodlr():
        ways.append(make_way("iodlr", seen_from_inside(plain), LD_PRELOAD=shutil.copy(find_iodlr(), parent)))
    return ways


def make_template(parent):
    """A folder with the data of a server that was shut down."""
    template = parent / "template"
    template.mkdir()
    subprocess.run(inside("/usr/sbin/mysqld", *server_words(template, PORT), "--initialize-insecure"), check=True, capture_output=True)
    server = start_server(make_way("template", "/usr/sbin/mysqld"), template, PORT)
    try:
        if not ask(template, "CREATE DATABASE sbtest"):
            raise RuntimeError("mysql: no database can be made")
        subprocess.run(sysbench(template, "oltp_point_select", "prepare"), check=True, stdout=subprocess.DEVNULL)
    finally:
        server.end(signal.SIGTERM)
    return template


def load(server, test):
    """(us, us of the server's processor time) for a transaction."""
    before = server.cpu_us()
    words = sysbench(server.folder, test, "--time=0", f"--events={TESTS[test][1]}", "run")
    result = subprocess.run(words, check=True, capture_output=True, text=True)
    used = server.cpu_us() - before
    transactions = int(re.search(r"transactions:\s+(\d+)", result.stdout)[1])
    took = float(re.search(r"total time:\s+([0-9.]+)s", result.stdout)[1])
    return took * 1e6 / transactions, used / transactions


@contextlib.contextmanager
def two_starts(ways, parent, template, generation):
    """[Server] of the two WAYS, with fresh, identical data; in every second GENERATION they swap folders, ports and the first start."""
    plain = CHROOT / ways[0].first[0].lstrip("/")
    pagecache.evict(plain)
    servers = {}
    try:
        for place in range(2):
            folder, i = parent / f"data-{place}", place ^ generation % 2
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run(["cp", "-a", "--reflink=auto", template, folder], check=True)
            servers[i] = start_server(ways[i], folder, PORT + place)
        yield [servers[0], servers[1]]
    finally:
        for server in servers.values():
            server.end(signal.SIGTERM)


def measure(ways, absent, parent, template, rounds, generation):
    found, huge = {test: Measured() for test in TESTS}, {}
    for way in ways[1:]:
        with two_starts([ways[0], way], parent, template, generation) as pair:
            for test in TESTS:
                numbers = found[test][way.name] = {"values": [], "pair": [], "cpu": [], "pair_cpu": []}
                for turn in range(-1, rounds):  # the first doesn't count
                    results = {i: load(pair[i], test) for i in ((0, 1), (1, 0))[turn % 2]}
                    for key, value in zip(("pair", "pair_cpu", "values", "cpu"), [*results[0], *results[1]]):
                        numbers[key] += [value] if turn >= 0 else []
            layout = pagecache.measure_layout(CHROOT / ways[0].first[0].lstrip("/"))
            huge |= {name: pages for name, pages in server_pages({"plain": pair[0], way.name: pair[1]}).items() if name != "plain"}
    for test, (words, _) in TESTS.items():
        found[test].layout = layout
        yield experiment(f"mysql-{test.removeprefix('oltp_').replace('_', '-')}", f"MySQL, {words} by sysbench, the server on one processor, "
                         "its file as after a boot: time, and the server's processor time, for one", "us", ways, found[test], huge=huge,
                         absent=absent)


def group_mysql(plan):
    if not PROGRAM.exists() or not (CHROOT / "usr/bin/sysbench").exists() or os.getuid() != 0 or len(os.sched_getaffinity(0)) < 2:
        print(f" left out: it needs root, two processors, and a chroot with MySQL ({MADE_BY})", end="", flush=True)
        return
    with entered() as parent:
        template, ways = make_template(parent), make_ways(parent)
        if plan.quick:
            ways = [way for way in ways if way.name in ("plain", "plain-again", "in-order", "run")]
        absent = {"libhugetlbfs": "not measured: it is not installed"} | ({} if find_iodlr() else {"iodlr": "not measured: HUGELD_IODLR names none"})
        if find_libhugetlbfs():
            library = shutil.copy(os.path.realpath(find_libhugetlbfs()), parent)
            absent["libhugetlbfs"] = said_by_libhugetlbfs(library, ["/usr/sbin/mysqld", "--version"], inside())
        yield from in_generations(plan, lambda rounds, i: measure(ways, absent, parent, template, rounds, i), ROUNDS)
