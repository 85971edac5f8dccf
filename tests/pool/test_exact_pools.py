# SPDX-License-Identifier: LGPL-2.1-or-later
"""Databases with huge pages of their own, under libhugeld.so, with a pool of exactly the size that `hugeld doctor --
PROGRAM` gives: everything is on huge pages, and it serves a query.  With less, a server that insists on its pages gets
them."""

import collections
import contextlib
import json
import signal

import pytest

import databases
import helpers
from hugepages import NR_HUGEPAGES, free_pages, pool_counts
from proof import check_span, read_image, read_plans
from smaps import read_smaps


@pytest.fixture(scope="module")
def postgres(shared_folder):
    return databases.make_postgres(shared_folder, "postgres-pool")


@pytest.fixture(scope="module")
def mariadb(shared_folder):
    return databases.make_mariadb(shared_folder, "mariadb-pool")


def ask_doctor(argv, options=""):
    """(exit status, "program" of the JSON)."""
    arguments = ["-o", options] if options else []
    result = helpers.hugeld("doctor", "--json", "--copy", *arguments, "--", *argv)
    assert result.stderr == "", result.stderr
    return result.returncode, json.loads(result.stdout)["program"]


def check_doctor(argv, pool):
    """Doctor says yes with the pages that it asks for, and no with one page less, and its remedy helps.  The pool is exact
    afterwards; gives doctor's answer about the program."""
    pool(0)
    needed = ask_doctor(argv)[1]["needed_pages"]
    pool(needed - 1)
    status, told = ask_doctor(argv)
    total = pool_counts()[0]
    assert (status, told["enough"], told["remedy"]) == (1, False, f"sysctl vm.nr_hugepages={total + 1}")
    NR_HUGEPAGES.write_text(told["remedy"].partition("=")[2])  # sysctl would change the real pool
    assert free_pages() == needed
    status, told = ask_doctor(argv)
    assert (status, told["enough"]) == (0, True) and told["our_pages_min"] > 0 and told["own_pages"] > 0
    return told


def check_ours(pid, path):
    """All planned spans of the executable are on hugetlb; gives its pages and the other hugetlb mappings."""
    image = read_image(pid)
    [plan] = read_plans(pid, [path], "data=off").values()
    assert plan.spans
    for span in plan.spans:
        check_span(image, span, "hugetlb")
    others = [m for m in image.mappings
              if m.is_hugetlb and not any(m.start < s.end and s.start < m.end for s in plan.spans)]
    return plan.pages(), others


def has_text_on_hugetlb(pid):
    return any(m.is_hugetlb and "x" in m.permissions for m in read_smaps(pid))


# --- PostgreSQL ---


class Postgres:
    def __init__(self, made, library, pause_library):
        self.folder, self.binaries, argv = made
        self.argv = [a.replace("huge_pages=off", "huge_pages=on") if isinstance(a, str) else a for a in argv]
        self.plain_argv = self.argv[len(databases.AS_POSTGRES):]
        self.libraries = library, pause_library

    def query(self, text):
        psql = [f"{self.binaries}/psql", "-h", self.folder, "-U", "postgres", "-At", "-c", text]
        return helpers.run(psql, cwd=self.folder)

    @contextlib.contextmanager
    def paused(self, options):
        env = helpers.preload(*self.libraries, options=options)
        with helpers.paused(self.argv, env, "postgres") as process:
            yield process

    def serve(self, process):
        """Lets it start, and looks at its answers and its shared memory."""
        process.resume()
        helpers.wait_until(lambda: self.query("SELECT 1").returncode == 0, what="postgres answering")
        assert self.query("SELECT SUM(x) FROM generate_series(1, 100000) AS x").stdout == "5000050000\n"
        assert self.query("SHOW huge_pages").stdout == "on\n"

    def end(self, process):
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0 and "signal" not in stderr, stderr


@pytest.fixture
def server(postgres, library, pause_library):
    return Postgres(postgres, library, pause_library)


def test_postgres_exact(server, pool):
    told = check_doctor(server.plain_argv, pool)
    own = told["own_pages"]
    with server.paused(f"backend=hugetlb,reserve_pages={own}") as process:
        ours, others = check_ours(process.pid, told["path"])
        assert told["our_pages_min"] <= ours <= told["our_pages_max"] and others == []
        server.serve(process)
        again, others = check_ours(process.pid, told["path"])
        assert again == ours and sum(m.bytes for m in others) == own * helpers.HUGE
        assert all("s" in m.permissions for m in others)
        assert free_pages() == told["our_pages_max"] - ours
        server.end(process)


@pytest.mark.check_all
def test_postgres_one_page_less(server, pool):
    """huge_pages=on starts: the missing pages are hugeld's."""
    told = check_doctor(server.plain_argv, pool)
    pool(told["needed_pages"] - 1)
    with server.paused(f"backend=hugetlb,reserve_pages={told['own_pages']}") as process:
        server.serve(process)
        server.end(process)


@pytest.mark.check_all
def test_postgres_comes_first(server, pool):
    """Nothing is left for hugeld, and it steps back."""
    own = check_doctor(server.plain_argv, pool)["own_pages"]
    pool(own)
    with server.paused(f"backend=hugetlb,reserve_pages={own}") as process:
        assert not has_text_on_hugetlb(process.pid)
        server.serve(process)
        server.end(process)


def test_postgres_without_reserve_pages(server, pool):
    """The purpose of reserve_pages: here hugeld is served first, and the server does not start."""
    told = check_doctor(server.plain_argv, pool)
    pool(told["own_pages"] + told["our_pages_min"] - 1)
    with server.paused("backend=hugetlb") as process:
        assert has_text_on_hugetlb(process.pid)
        status, _, stderr = process.finish()
    assert status == 1 and "could not map anonymous shared memory" in stderr


def test_postgres_running(server, pool):
    """A running server does not tell its pages; doctor says so and does it no harm."""
    told = check_doctor(server.plain_argv, pool)
    with server.paused(f"backend=hugetlb,reserve_pages={told['own_pages']}") as process:
        server.serve(process)
        status, running = ask_doctor(server.plain_argv)
        assert (status, running["own_pages"]) == (1, None) and "postmaster.pid" in running["own_source"]
        assert server.query("SELECT 1").stdout == "1\n"
        server.end(process)


# --- MariaDB ---

# Sizes that fill whole pages, and others; and the pages that 10.11 takes for each buffer of a large pool.
WHOLE = ["--innodb-buffer-pool-size=16M", "--innodb-log-buffer-size=2M", "--key-buffer-size=1M",
         "--aria-pagecache-buffer-size=1M"]
MIXED = ["--innodb-buffer-pool-size=17M", "--innodb-log-buffer-size=3M", "--key-buffer-size=9M",
         "--key-cache-segments=2", "--aria-pagecache-buffer-size=8M"]
OF_WHOLE, OF_MIXED = [1, 1, 8], [2, 2, 2, 2, 4, 12]


class MariaDB:
    def __init__(self, made, library, pause_library):
        self.folder, argv = made
        self.argv = [*argv, "--large-pages"]
        self.libraries = library, pause_library

    def query(self, text):
        client = ["mariadb", "--no-defaults", f"--socket={self.folder}/socket", "-N", "-e", text]
        return helpers.run(client)

    @contextlib.contextmanager
    def serving(self, sizes, options):
        """Gives the server once it answers, and ends it."""
        env = helpers.preload(*self.libraries, options=options)
        with helpers.paused([*self.argv, *sizes], env, "mariadbd") as process:
            process.resume()
            helpers.wait_until(lambda: self.query("SELECT 1").returncode == 0, what="mariadbd answering")
            yield process
            assert self.query("SELECT SUM(seq) FROM mysql.seq_1_to_1000").stdout == "500500\n"
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=60)
            assert process.returncode == 0, stderr


def check_own(mappings, buffers, most):
    """Each of the BUFFERS has its pages.  Of these InnoDB's is the largest, and has up to three more, in pieces, where the
    kernel's address is no multiple of 8 MiB: that depends on the threads' earlier mappings, even without randomisation."""
    *pages, innodb = sorted(m.bytes // helpers.HUGE for m in mappings)
    missing = collections.Counter(buffers[:-1]) - collections.Counter(pages)
    assert not missing and innodb >= buffers[-1] and sum(pages) + innodb <= most, (pages, innodb, most)


@pytest.fixture
def mariadb_server(mariadb, library, pause_library):
    return MariaDB(mariadb, library, pause_library)


@pytest.mark.check_all
def test_mariadbd_falls_back(mariadb_server, pool):
    """With fewer pages than it asks for it takes none and says nothing: only smaps tells whether it has them."""
    pool(4)
    with mariadb_server.serving(WHOLE, "backend=thp") as process:
        assert not any(m.is_hugetlb for m in read_smaps(process.pid))


@pytest.mark.check_all
@pytest.mark.parametrize("sizes, buffers", [(WHOLE, OF_WHOLE), (MIXED, OF_MIXED)], ids=["whole", "mixed"])
def test_mariadbd_exact(mariadb_server, pool, sizes, buffers):
    told = check_doctor([*mariadb_server.argv, *sizes], pool)
    own = told["own_pages"]
    for _ in range(3):
        with mariadb_server.serving(sizes, f"backend=hugetlb,reserve_pages={own}") as process:
            ours, others = check_ours(process.pid, told["path"])
            assert told["our_pages_min"] <= ours <= told["our_pages_max"]
            check_own(others, buffers, own)


def test_mariadbd_comes_first(mariadb_server, pool):
    """With its own pages alone it has all of them, and hugeld none."""
    own = check_doctor([*mariadb_server.argv, *WHOLE], pool)["own_pages"]
    pool(own)
    with mariadb_server.serving(WHOLE, f"backend=hugetlb,reserve_pages={own}") as process:
        assert not has_text_on_hugetlb(process.pid)
        check_own([m for m in read_smaps(process.pid) if m.is_hugetlb], OF_WHOLE, own)


def test_mariadbd_without_large_pages(mariadb_server):
    told = ask_doctor(mariadb_server.argv[:-1])[1]
    assert told["own_pages"] == 0 and "large-pages is off" in told["own_source"]
