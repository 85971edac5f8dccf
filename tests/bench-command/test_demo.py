# SPDX-License-Identifier: LGPL-2.1-or-later
"""make demo, as another user than root: it measures programs, says whether one gains or why none does, and puts everything back.  As
root CI runs it, and test_readme.py in a clean Debian."""

import os
import pathlib
import re

import pytest

import helpers

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_demo(*words, **variables):
    before = set(pathlib.Path("/dev/shm").glob("hugeld*"))
    pool = pathlib.Path("/proc/sys/vm/nr_hugepages").read_text()
    result = helpers.run([*words, ROOT / "tools/demo"], timeout=600, env=helpers.environment(**variables))
    assert set(pathlib.Path("/dev/shm").glob("hugeld*")) <= before, "a store was left behind"
    assert pathlib.Path("/proc/sys/vm/nr_hugepages").read_text() == pool
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.check_all
def test_demo():
    if os.getuid() != 0 or tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 12):
        pytest.skip("needs root, to become another user, and Linux 6.12")
    said = run_demo(*helpers.become(12345))
    ratios = {name: float(ratio) for ratio, name in re.findall(r"^  (\d\.\d+)  (.*)$", said, re.M)}
    [chosen] = re.findall(r"^== (.*) again, in \d+ pairs$", said, re.M)
    assert len(ratios) >= 2 and ratios[chosen] == min(ratios.values()), said
    assert re.search(r"^== demo: ok: .*\d pairs", said, re.M), said
    if "gains nothing" in said:
        assert re.search(r"\): (?:the kernel|huge pages|these programs) .*$", said.splitlines()[-1]), said
    else:
        assert said.splitlines()[-1].startswith("hugeld enable /"), said
