# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program that the tests of hugeld survey look at."""

import os
import pathlib
import shutil
import tempfile

import pytest

from calls import build_calls


@pytest.fixture(scope="module")
def roots_folder():
    """A folder that root alone can write and every user can read, so that the system's store takes files from it."""
    if os.geteuid() != 0:
        pytest.skip("only root has such a folder")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hugeld-", dir="/var/lib"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def calls(roots_folder):
    """Executes 16 MiB of text at random as often as its argument says, and hardly any other text."""
    return build_calls(roots_folder / "calls", "-no-pie")
