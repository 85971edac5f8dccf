# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program that is attached to, in all its kinds, and the one that kills the process that attaches."""

import platform
import subprocess

import attaching
import pytest
from hugepages import put_memory_together


def pytest_ignore_collect():
    return platform.machine() != "x86_64" or None


@pytest.fixture(autouse=True)
def huge_memory():
    put_memory_together()


@pytest.fixture(scope="session")
def targets(tmp_path_factory):
    """targets[kind]: the program, linked in one of the ways that matter; each is made when it is asked for."""
    folder = tmp_path_factory.mktemp("attach")
    flags = {
        "exec": ["-no-pie"],
        "pie": ["-pie", "-fPIE"],
        "static": ["-static"],
        "static-pie": ["-static-pie", "-fPIE"],
        "aligned": ["-no-pie", "-Wl,-z,max-page-size=0x200000"],
        "lld": ["-no-pie", "-fuse-ld=lld"],
    }

    class Targets(dict):
        def __missing__(self, kind):
            self[kind] = attaching.compile_target(folder, f"target-{kind}", 6, *flags[kind])
            return self[kind]

    return Targets()


@pytest.fixture(scope="session")
def steps(tmp_path_factory):
    path = tmp_path_factory.mktemp("steps") / "steps"
    subprocess.run(["gcc", "-O2", "-o", path, attaching.HERE / "steps.c"], check=True)
    return path


@pytest.fixture(scope="session")
def plain_output(targets):
    """The target's output at its end."""
    with attaching.running(targets["exec"], "futex") as target:
        return target.finish()
