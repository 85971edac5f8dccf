# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs at their own tests and their daily work (suites.py), strict=on: the same results as without hugeld.
T_REAL=all takes the long forms, and the patched dynamic linker for all of them."""

import os

import pytest

import helpers
import suites

LONG = os.environ.get("T_REAL") == "all"
RUNS = [(name, loader) for loader in (None, "ldso")[:1 + LONG] for name in suites.SUITES]


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


@pytest.mark.check_all
@pytest.mark.parametrize("name, loader", RUNS)
def test_suite(root, pool, shared_folder, plainly, name, loader):
    if loader and not (helpers.BUILD / "ldso/ld.so").exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")
    pool(250)
    plain = plainly(name)
    moved = suites.run_suite(name, shared_folder, LONG, True, loader)
    assert plain and moved.splitlines() == plain.splitlines()
