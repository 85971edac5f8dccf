#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""tests/real/suites.py [--long] [--loader=ldso] NAME...: daily work of the distribution's programs, or their own tests,
once without hugeld and once under `hugeld run` with strict=on for the object that is meant: the difference is printed,
and there should be none.  Of perl and git something can move at some addresses, or with the patched dynamic linker.

Each suite is a function of (over, folder, long): OVER(objects) gives the command prefix, FOLDER is empty and open to all,
LONG says whether there is time.  It gives the result as text without times and addresses.
"""

import argparse
import contextlib
import difflib
import glob
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

AS_MYSQL = ["setpriv", "--reuid=mysql", "--regid=mysql", "--init-groups"]


class Missing(Exception):
    """The suite's program is not installed."""


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Missing(f"{program} is not installed")


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


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


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


def perl(over, folder, long):
    """Perl's own documentation, formatted: its tests are not packaged."""
    need("perl")
    files = sorted(glob.glob("/usr/share/perl/5*/**/*.p[mo]d", recursive=True))[: None if long else 60]
    script = "use Pod::Text; for (@ARGV) { my $p = Pod::Text->new; $p->output_fh(*STDOUT); $p->parse_file($_) }"
    return said(call([*over(["perl"]), "perl", "-e", script, *files]))


# --- databases ---


@contextlib.contextmanager
def server(argv, ready, end, **options):
    process = subprocess.Popen(
        [str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=helpers.environment(), start_new_session=True, **options,
    )
    try:
        limit = time.monotonic() + 60
        while not ready():
            assert process.poll() is None, f"{argv} has ended: {process.returncode}"
            assert time.monotonic() < limit, f"{argv} does not answer"
            time.sleep(0.2)
        yield
        end(process)
        assert process.wait(timeout=60) == 0
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


MTR = "select group_by subselect func_str func_math join type_newdecimal"
MTR_LONG = ("select subselect group_by func_ join type_ order_by union view derived distinct having insert update delete "
            "count null case range index_merge")  # how the names of some 220 of 1300 begin


def mariadb(over, folder, long):
    """mtr's verdict on each test of a list from the main suite."""
    run = "/usr/share/mysql/mysql-test/mariadb-test-run.pl"
    if not os.path.exists(run):
        raise Missing("mariadb-test is not installed")
    shutil.chown(folder, "mysql")
    wrapper = over(["mariadbd"])
    options = [f"--mysqld-env={name}={value}" for name, value in preload_of(wrapper).items()]
    names = [f"--do-test=^({'|'.join(MTR_LONG.split())})"] if long else [f"main.{name}" for name in MTR.split()]
    done = call([*AS_MYSQL, "perl", run, "--suite=main", "--force", "--retry=0", "--max-test-fail=0",
                 f"--vardir={folder}/var", f"--tmpdir={folder}/tmp", "--parallel=2", *options, *names],
                cwd=os.path.dirname(run))
    found = re.findall(r"^(main\.\S+(?: '\S+')*) .*\[ (\S+) +\]", done.stdout, re.M)
    assert found, done.stdout + done.stderr
    return "\n".join(sorted(map(" ".join, found)))


def preload_of(wrapper):
    """The variables that `hugeld run` would set, for a program that itself starts the one that is meant."""
    if not wrapper:
        return {}
    variables = call([*wrapper, "env"]).stdout
    return dict(line.split("=", 1) for line in variables.splitlines() if line.startswith("LD_"))


# --- development ---


LONG_GIT = ["blame -C -C HEAD README.md", "gc -q --aggressive"]


def git(over, folder, long):
    """This project's history cloned, packed, checked and told."""
    need("git")
    prefix = [*over(["git"]), "git", "-c", "safe.directory=*", "-c", "pack.threads=1"]
    copy = folder / "copy"
    cloned = call([*prefix, "clone", "-q", "--no-local", "--bare", helpers.ROOT, copy])
    if cloned.returncode != 0:
        raise Missing(f"no history: {cloned.stderr}")
    lines = []
    for command in ("repack -q -a -d -f --depth=40", "fsck --full --strict", "log -p --stat", "shortlog -s HEAD",
                    "log --graph --format=%H%s", "archive HEAD", *(LONG_GIT if long else [])):
        lines.append(said(call([*prefix, "-C", copy, *command.split()])) + " " + command)
    return "\n".join(lines)


FUNCTION = """
__attribute__((noinline)) double f%(i)d(struct s *p, int n) {
    double r = %(i)d;
    for (int i = 0; i < n; i++)
        switch (p->a[i %% 9] & 7) {
        case %(case)d: r += sqrt(i + %(i)d.5) * p->b; break;
        case 7: p->a[i %% 9] ^= i << %(shift)d; /* fall through */
        default: r -= p->a[(i + %(i)d) %% 9];
        }
    return r * (n > 1 ? f%(before)d(p, n / 2) : 1);
}
"""


def large_source(folder, functions):
    """C with many functions; a name without a folder, which would stand in the object."""
    text = "#include <math.h>\n#include <stdio.h>\nstruct s { int a[9]; double b; };\n"
    text += "double f0(struct s *p, int n) { return p->b + n; }\n"
    for i in range(1, functions):
        text += FUNCTION % {"i": i, "case": i % 7, "shift": i % 13, "before": i - 1}
    (folder / "large.c").write_text(text)
    return "large.c"


def gcc(over, folder, long):
    """Objects of a large file, the same to the last byte."""
    need("gcc")
    prefix, source, lines = over(["cc1"]), large_source(folder, 6000 if long else 400), []
    for level in ("-O0", "-O1", "-O2", "-O3") if long else ("-O0", "-O2"):
        done = call([*prefix, "gcc", level, "-c", source, "-o", f"large{level}.o"], cwd=folder)
        lines.append(f"{level}: {done.returncode} {digest(folder / f'large{level}.o')}")
    return "\n".join(lines)


SUITES = {suite.__name__: suite for suite in (python, perl, postgres, mariadb, git, gcc)}


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


def difference(plain, moved):
    return "\n".join(difflib.unified_diff(plain.splitlines(), moved.splitlines(), "plain", "moved", n=0, lineterm=""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--loader")
    parser.add_argument("name", nargs="*", default=list(SUITES))
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.name:
        start = time.monotonic()
        try:
            plain = run_suite(name, None, arguments.long)
            between = time.monotonic()
            moved = run_suite(name, None, arguments.long, True, arguments.loader)
        except Missing as error:
            print(f"{name}: {error}")
            continue
        found = difference(plain, moved)
        failed += bool(found)
        seconds = f"{between - start:.0f} s plainly, {time.monotonic() - between:.0f} s moved"
        verdict = "DIFFERENT" if found else "the same"
        print(f"{name}: {verdict}, {len(plain.splitlines())} lines, {seconds}\n{found}".rstrip())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
