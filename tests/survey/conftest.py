# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program that the tests of hugeld survey look at."""

import shutil

import pytest

import helpers


@pytest.fixture(autouse=True)
def known_curve(curve):
    """Wherever a test says nothing else."""


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Executes 16 MiB of text at random for as many times as it is told, and beside that next to nothing."""
    folder = tmp_path_factory.mktemp("survey")
    folder.chmod(0o755)
    yield helpers.build_calls(folder / "calls", "-no-pie")
    shutil.rmtree(folder)
