# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs every unit test program (tests/unit/test-*.c, built in build/tests), so that pytest's summary counts them all."""

import pathlib
import subprocess

import pytest


ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "tests" / "unit").glob("test-*.c"))


def test_there_are_unit_tests():
    assert SOURCES


@pytest.mark.parametrize("name", [source.stem for source in SOURCES])
def test_unit(name):
    program = ROOT / "build" / "tests" / name
    assert program.exists(), f"{program} is not built: make unit-tests"
    run = subprocess.run([program], capture_output=True, text=True, timeout=600, errors="replace")
    assert run.returncode == 0, f"{name}: exit {run.returncode}\n{run.stdout}{run.stderr}"
    if "SKIPPED" in run.stdout + run.stderr:
        pytest.skip(run.stdout + run.stderr)
