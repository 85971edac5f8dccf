# SPDX-License-Identifier: LGPL-2.1-or-later
"""Database servers answer the same queries: mariadbd (PIE, one process, many threads) and postgres (PIE, a process for
each connection)."""

import re
import signal

import pytest

import databases
import helpers
from smaps import read_smaps

BOTH = pytest.mark.parametrize("by_command", [pytest.param(False, marks=pytest.mark.check_all), True], ids=["preload", "run"])

QUERIES = """
    DROP TABLE IF EXISTS t;
    CREATE TABLE t (id INT PRIMARY KEY, word VARCHAR(40), x DOUBLE);
    INSERT INTO t SELECT seq, MD5(seq), SQRT(seq) FROM {numbers};
    SELECT COUNT(*), SUM(id), ROUND(CAST(SUM(x) AS DECIMAL(20,6)), 3) FROM t;
    SELECT word FROM t WHERE id = 777;
    SELECT a.word FROM t a JOIN t b ON a.id = b.id + 1 WHERE b.word LIKE 'ab%' ORDER BY a.word LIMIT 5;
    UPDATE t SET x = x * 2 WHERE id < 500;
    SELECT ROUND(CAST(SUM(x) AS DECIMAL(20,6)), 3) FROM t;
"""


# --- MariaDB ---


@pytest.fixture(scope="module")
def mariadb(shared_folder):
    """(folder, argv) of a server with an empty database."""
    return databases.make_mariadb(shared_folder)


@pytest.mark.check_all
@BOTH
def test_mariadbd(prove, pool, mariadb, by_command):
    folder, argv = mariadb
    client = ["mariadb", "--no-defaults", f"--socket={folder}/socket", "-N"]

    def work(process):
        process.resume()
        helpers.wait_until(lambda: helpers.run([*client, "-e", "SELECT 1"]).returncode == 0, what="mariadbd answering")
        answer = helpers.run([*client, "-e", "CREATE DATABASE IF NOT EXISTS d; USE d;"
                              + QUERIES.format(numbers="seq_1_to_3000")], timeout=60)
        shutdown = helpers.run(["mariadb-admin", "--no-defaults", f"--socket={folder}/socket", "shutdown"])
        process.communicate(timeout=60)
        return answer.returncode, answer.stdout, answer.stderr, shutdown.returncode, process.returncode

    pool(64)
    proof = prove(argv, {"mariadbd": ("text", "rodata")}, options="backend=hugetlb", by_command=by_command, work=work)
    assert proof.moved[0] == proof.moved[3] == proof.moved[4] == 0 and proof.moved[1].startswith("3000\t4501500\t")
    plan = proof.plans["mariadbd"].json["plan"]
    assert plan["text_share"] == 1


# --- PostgreSQL ---


@pytest.fixture(scope="module")
def postgres(shared_folder):
    """(folder, bin, argv) of a cluster with pgbench's tables to come."""
    return databases.make_postgres(shared_folder)


@BOTH
def test_postgres(prove, pool, postgres, by_command):
    """pgbench's numbers are times; the test checks that no transaction fails and that all run."""
    folder, binaries, argv = postgres
    to_server = ["-h", folder, "-U", "postgres"]

    def call(program, *arguments):
        return helpers.run([f"{binaries}/{program}", *to_server, *arguments], timeout=60, cwd=folder)

    def work(process):
        process.resume()
        helpers.wait_until(lambda: call("psql", "-c", "SELECT 1").returncode == 0, what="postgres answering")
        filled = call("pgbench", "-q", "-i", "-s", "1", "postgres")
        bench = call("pgbench", "-n", "-S", "-c", "2", "-t", "500", "postgres")
        numbers = "(SELECT generate_series(1, 3000) AS seq) AS numbers"
        queries = QUERIES.format(numbers=numbers).replace("MD5(seq)", "MD5(seq::text)").replace("DOUBLE", "FLOAT")
        answer = call("psql", "-At", "-c", queries, "-c", "SELECT SUM(abalance), COUNT(*) FROM pgbench_accounts")
        process.send_signal(signal.SIGINT)  # fast shutdown
        process.communicate(timeout=60)
        transactions = re.search(r"actually processed: (\d+/\d+)", bench.stdout)
        return filled.returncode, transactions and transactions[1], answer.stdout, answer.returncode, process.returncode

    pool(64)
    proof = prove(argv, {"postgres": ("text", "rodata")}, options="backend=hugetlb", by_command=by_command, work=work,
                  name="postgres")
    assert proof.moved[:2] == (0, "1000/1000") and "3000|4501500" in proof.moved[2] and proof.moved[3:] == (0, 0)
    assert proof.plans["postgres"].json["plan"]["text_share"] > 0.75


def test_fork_with_an_empty_pool(pool, postgres, library, pause_library):
    """The text takes every page of the pool: the server forks, its children run, none dies by SIGBUS."""
    folder, binaries, argv = postgres
    pool(6)
    env = helpers.preload(library, pause_library, options="backend=hugetlb,data=off")
    with helpers.paused(argv, env, "postgres") as process:
        assert any(m.is_hugetlb for m in read_smaps(process.pid))
        process.resume()
        psql = [f"{binaries}/psql", "-h", folder, "-U", "postgres", "-At", "-c"]
        helpers.wait_until(lambda: helpers.run([*psql, "SELECT 1"]).returncode == 0, what="postgres answering")
        pool(0)  # the free ones go; the server's stay
        for _ in range(5):
            assert helpers.run([*psql, "SELECT COUNT(*) FROM pg_class a, pg_class b"]).returncode == 0
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.check_all
def test_prefork(pool, thp, postgres, library, pause_library):
    """20 clients that connect anew for each transaction, each served by a child of its own, with an exhausted pool."""
    folder, binaries, argv = postgres
    pool(64)
    env = helpers.preload(library, pause_library, patterns="main:libc.so*:libcrypto*", options="bss=thp")
    with helpers.paused(argv, env, "postgres") as process:
        assert any(m.is_hugetlb and "x" in m.permissions for m in read_smaps(process.pid))
        pool(0)
        process.resume()

        def call(program, *arguments):
            return helpers.run([f"{binaries}/{program}", "-h", folder, "-U", "postgres", *arguments], cwd=folder)

        helpers.wait_until(lambda: call("psql", "-c", "SELECT 1").returncode == 0, what="postgres answering")
        assert call("pgbench", "-q", "-i", "-s", "1", "postgres").returncode == 0
        bench = call("pgbench", "-n", "-c", "20", "-C", "-t", "20", "postgres")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, bench.returncode) == (0, 0), (stderr, bench)
    assert re.search(r"actually processed: 400/400", bench.stdout), bench
    assert "terminated by signal" not in stderr
