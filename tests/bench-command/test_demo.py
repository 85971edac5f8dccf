# SPDX-License-Identifier: LGPL-2.1-or-later
"""make demo, as another user than root: it shows gain, interval and memory, and puts everything back.  As root CI runs it, and
test_readme.py in a clean Debian."""

import os
import pathlib
import re

import pytest

import helpers

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEFT = "hugeld-demo-*"


def run_demo(*words):
    before = set(pathlib.Path("/dev/shm").glob(LEFT))
    pool = pathlib.Path("/proc/sys/vm/nr_hugepages").read_text()
    result = helpers.run([*words, ROOT / "tools/demo", "40"], timeout=600)
    assert set(pathlib.Path("/dev/shm").glob(LEFT)) <= before, "a store was left behind"
    assert pathlib.Path("/proc/sys/vm/nr_hugepages").read_text() == pool
    return result


@pytest.mark.check_all
def test_demo():
    if os.getuid() != 0 or tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 12):
        pytest.skip("needs root, to become another user, and Linux 6.12")
    result = run_demo(*helpers.become(12345))
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"ratio of the pairs: \d\.\d+ \[\d\.\d+, \d\.\d+\]", result.stdout), result.stdout
    assert len(re.findall(r"\]: (?:faster|slower|no difference seen)$", result.stdout, re.M)) == 2, result.stdout
    assert re.search(r"; (?:faster (?:at|mapped)|this machine gains nothing) .*: ", result.stdout.splitlines()[-1]), result.stdout
    assert re.search(r"from the image +\d+ MiB, with the \d+ MiB", result.stdout) and "== demo: ok" in result.stdout
