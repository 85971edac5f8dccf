# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs at their own tests and their daily work (suites.py), strict=on: the same results as without hugeld.
T_REAL=all takes the long forms, and the patched dynamic linker for all of them."""

import os

import pytest

import helpers
import suites

LONG = os.environ.get("T_REAL") == "all"
# The preloader would move something of perl and git at few addresses only.
BY_LDSO = list(suites.SUITES) if LONG else ["perl", "git"]
# Those that take a few seconds; `make check` runs no others.
SHORT = ("perl",)
RUNS = [pytest.param(name, None, marks=() if name in SHORT else pytest.mark.check_all) for name in suites.SUITES]
RUNS += [pytest.param(name, "ldso", marks=pytest.mark.check_all) for name in BY_LDSO]


@pytest.fixture(scope="module")
def plainly(shared_folder):
    """plainly(name): the suite's result without hugeld, once for all ways."""
    results = {}

    def run(name):
        if name not in results:
            try:
                results[name] = suites.run_suite(name, shared_folder, LONG)
            except suites.Missing as error:
                pytest.skip(str(error))
        return results[name]

    return run


@pytest.mark.parametrize("name, loader", RUNS)
def test_suite(root, pool, shared_folder, plainly, name, loader):
    if loader and not (helpers.BUILD / "ldso/ld.so").exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")
    pool(250)
    plain = plainly(name)
    moved = suites.run_suite(name, shared_folder, LONG, True, loader)
    assert plain and not suites.difference(plain, moved), suites.difference(plain, moved)
