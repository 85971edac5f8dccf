# SPDX-License-Identifier: LGPL-2.1-or-later
"""Daily work of the distribution's programs, or their own tests, without hugeld and under `hugeld run` with strict=on for the object that is
meant.

Each suite is a function of (over, folder, long): OVER(objects) gives the command prefix, FOLDER is empty and open to all,
LONG says whether there is time.  It gives the result as text without times and addresses.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "harness")]

import databases  # noqa: E402
import helpers  # noqa: E402


class Missing(Exception):
    """The suite's program is not installed."""


def call(argv, **options):
    """Exit status and standard output; errors are written to standard error."""
    options.setdefault("timeout", 3600)
    options.setdefault("env", helpers.environment())
    done = subprocess.run(
        [str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        stdin=options.pop("stdin", subprocess.DEVNULL), **options,
    )
    if done.returncode == 127:
        raise AssertionError(f"{argv}: {done.stderr}")
    return done


def said(done):
    return f"exit {done.returncode}, {len(done.stdout)} characters, {hashlib.sha256(done.stdout.encode()).hexdigest()}"


# --- interpreters ---

# Threads, processes, signals, ctypes, mmap, generated code: all that moved text could break.
PYTHON = "test_json test_re test_struct test_ctypes test_mmap test_thread test_fork1 test_gc test_dict test_trace"
PYTHON_LONG = "-x test_gdb test_ssl test_socket test_asyncio test_idle test_tools test_distutils test_peg_generator"


def python(over, folder, long):
    """Each test case of python3's own tests and how it ended."""
    interpreter = os.path.realpath("/usr/bin/python3")
    # Some of them come with the standard library.
    look = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"
    if call([interpreter, "-c", look, *(f"test.{name}" for name in PYTHON.split())]).returncode != 0:
        raise Missing("python3's own tests are not installed (libpython3-testsuite)")
    names = (PYTHON_LONG if long else PYTHON).split()
    report = folder / "report.xml"
    argv = [interpreter, "-B", "-m", "test", "--junit-xml", report, "-j2", *names]
    done = call([*over([os.path.basename(interpreter)]), *argv], cwd=folder)
    assert report.exists(), done.stderr
    lines = []
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        outcome = ",".join(sorted({child.tag for child in case} - {"system-out", "system-err"}))
        lines.append(f"{case.get('name')} {outcome or case.get('status') or 'passed'}")
    return "\n".join(sorted(lines))


# --- databases ---


@contextlib.contextmanager
def server(argv, ready, end, **options):
    process = subprocess.Popen(
        [str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=helpers.environment(), start_new_session=True, **options,
    )
    try:
        limit = time.monotonic() + helpers.PATIENCE
        while not ready():
            assert process.poll() is None, f"{argv} has ended: {process.returncode}"
            assert time.monotonic() < limit, f"{argv} does not answer"
            time.sleep(0.2)
        yield
        end(process)
        assert process.wait(timeout=helpers.PATIENCE) == 0
    finally:
        helpers.end_process(process)


TRANSFER = """\\set a random(1, 20)
\\set b random(1, 20)
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE accounts SET x = x - 1 WHERE id = :a;
UPDATE accounts SET x = x + 1 WHERE id = :b;
END;
"""
TRIANGLE = """
SELECT (SELECT SUM(abalance) FROM pgbench_accounts) = (SELECT SUM(bbalance) FROM pgbench_branches),
       (SELECT SUM(tbalance) FROM pgbench_tellers) = (SELECT SUM(delta) FROM pgbench_history),
       (SELECT COUNT(*) FROM pgbench_history), (SELECT SUM(x) FROM accounts), (SELECT COUNT(*) FROM accounts)
"""


def postgres(over, folder, long):
    """pgbench, and transfers between few accounts at the strictest isolation: every transaction is there in the end,
    and no money is lost."""
    cluster, binaries, argv = databases.make_postgres(folder)
    times = 5000 if long else 250

    def client(program, *arguments):
        return call([f"{binaries}/{program}", "-h", cluster, "-U", "postgres", *arguments], cwd=cluster)

    (cluster / "transfer").write_text(TRANSFER)
    argv = argv[len(databases.AS_POSTGRES):]
    with server([*databases.AS_POSTGRES, *over(["postgres"]), *argv], lambda: not client("psql", "-c", "").returncode,
                lambda process: process.send_signal(2), cwd=cluster):
        client("psql", "-c", "CREATE TABLE accounts AS SELECT id, 100 AS x FROM generate_series(1, 20) id")
        lines = [said(client("pgbench", "-q", "-i", "-s", "2", "postgres"))]
        for options in (["-t", times], ["-S", "-t", times], ["-f", "transfer", "--max-tries=100000", "-t", times]):
            done = client("pgbench", "-n", "-c", "4", "-j", "2", *map(str, options), "postgres")
            lines += re.findall(r"transactions actually processed: .*|number of failed transactions: .*", done.stdout)
        lines.append(client("psql", "-At", "-c", TRIANGLE).stdout)
    return "\n".join(lines)


SUITES = {suite.__name__: suite for suite in (python, postgres)}


# --- running them ---


def over(objects, loader=None):
    """The prefix that puts OBJECTS on huge pages or ends the program: the first of them, or any if that is a library."""
    arguments = ["-l", loader] if loader else []
    only = "*" if objects[0].startswith("lib") else objects[0]
    return [helpers.HUGELD, "run", "--copy", *arguments, "-p", ":".join(objects), "-o", f"strict=on,backend=hugetlb,exe={only}", "--"]


def run_suite(name, parent, long=False, moved=False, loader=None):
    folder = pathlib.Path(tempfile.mkdtemp(dir=parent))
    folder.chmod(0o777)
    try:
        return SUITES[name]((lambda objects: over(objects, loader)) if moved else (lambda objects: []), folder, long)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
