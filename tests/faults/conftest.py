# SPDX-License-Identifier: LGPL-2.1-or-later
"""inject.c, the programs, and the settings that a test run has tried."""

import os
import shutil
import subprocess
import sys

import pytest

import helpers
from sweep import Sweep
from targets import HERE, Targets, make_setting

sys.path.append(str(helpers.ROOT / "tests/ldso"))
from linkers import build_linker  # noqa: E402


@pytest.fixture(scope="session")
def inject(tmp_path_factory):
    if os.uname().machine != "x86_64":
        pytest.skip("inject.c knows the registers of x86-64")
    program = tmp_path_factory.mktemp("inject") / "inject"
    # Static, so that LD_PRELOAD is nothing to it.
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-static", "-o", program, HERE / "inject.c"], check=True,
                   timeout=helpers.PATIENCE)
    return program


@pytest.fixture(scope="session")
def targets(builder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    yield Targets(builder, folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def ldso(targets):
    linker = build_linker()
    targets.with_linker(linker)
    return linker


@pytest.fixture(scope="session")
def sweep(request, inject, targets):
    """sweep(name): the setting's plain and its good run."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = Sweep(inject, make_setting(request.getfixturevalue, targets, name))
        return made[name]

    return make


