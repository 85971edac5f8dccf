# SPDX-License-Identifier: LGPL-2.1-or-later
"""`make check` as CONTRIBUTING.md has it, without STRICT, in a clean Debian 13 with nothing but make and git: a program or a package
that it does not install is a test skipped, never a red one.  CI runs the same on Debian 12.

All tests are collected there; those are run that want programs or packages that `make check` does not install, in CI each with few of its
cases. The others want nothing else than here, and would take too long."""

import os
import re

import pytest

pytestmark = pytest.mark.check_all

# Without tests that build hugeld or the patched linker once more, and without those of the compiler, git and perl, which are there.
TESTS = ("tests/real --ignore=tests/real/test_random_starts.py tests/package "
         "--ignore=tests/package/test_install.py -k \"not (cc1plus or gcc or git- or perl-)\"")


def make_check(debian, tests):
    sample = "SAMPLE=1" if os.environ.get("T_SAMPLE") == "ci" else ""
    return debian.run(f"cd /hugeld; make check {sample} TESTS='{tests} -rfEs --tb=short'", timeout=1200)


def test_make_check(clean_debian, source_copy):
    debian = clean_debian("trixie")
    debian.put(source_copy, "/hugeld")
    debian.install("make", "git")
    debian.do("cd /hugeld && git init -q && git add -A && git -c user.name=me -c user.email=me@localhost commit -q -m all")
    result = make_check(debian, TESTS)
    said = result.stdout
    if result.returncode != 0:  # a missing program fails twice; other failures are for the run outside
        print(said)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+?)(?:@\w+)?(?: - .*)?$", said, re.M)
        assert failed, said[-4000:]
        again = make_check(debian, " ".join(failed))
        assert again.returncode == 0, f"{failed}\n{again.stdout[-8000:]}"
    assert re.search(r"\d+ passed, \d+ skipped", said), said[-4000:]
    assert "libpython3-testsuite" in said, "python's own tests are there"
    debian.do("cd /hugeld; /usr/bin/python3 -B -m pytest -q -p no:cacheprovider --collect-only tests")
