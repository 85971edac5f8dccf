# SPDX-License-Identifier: LGPL-2.1-or-later
"""For the tests of the measuring programs: the path of the code that they share with tests/, and STRICT=1."""

import pathlib
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "harness")]

from strict import fail_if_skipped  # noqa: E402  (its folder has just been added)


def pytest_configure(config):
    config.addinivalue_line("markers", "check_all: as tests/conftest.py says")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    fail_if_skipped(item, outcome.get_result(), call.excinfo and str(call.excinfo.value))
