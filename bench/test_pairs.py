# SPDX-License-Identifier: LGPL-2.1-or-later
"""bench/pairs -2: both run at the same time, on processors that they swap."""

import os
import statistics
import subprocess

import pytest

import helpers

measure = pytest.importorskip("measure")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    program = tmp_path_factory.mktemp("pairs") / "pairs"
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-D_GNU_SOURCE", "-o", program, helpers.ROOT / "bench/pairs.c"], check=True, timeout=60)
    return program


def numbers(result):
    assert result.returncode == 0, result.stderr
    return {words[0]: list(map(float, words[1:])) for words in map(str.split, result.stdout.splitlines())}


pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")


def test_both_run_at_once(pairs, tmp_path):
    """Each of the two waits for the other: one alone would not end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found = numbers(helpers.run([pairs, "-2", "4", "a", "/bin/sh", "-c", f"echo > {fifo}", "--", "b", "/bin/sh", "-c", f"read -r _ < {fifo}"]))
    assert sorted(found) == ["a", "a:cpu", "b", "b:cpu"]


def test_times(pairs):
    found = numbers(helpers.run([pairs, "-2", "4", "a", "/bin/sleep", "0.2", "--", "b", "/bin/sleep", "0.3"]))
    assert sorted(found) == ["a", "a:cpu", "b", "b:cpu"] and all(len(v) == 4 for v in found.values())
    assert statistics.median(found["a"]) >= 200 and statistics.median(found["b"]) >= 300
    assert statistics.median(found["a:cpu"]) < 100


def test_they_swap(pairs, tmp_path):
    script = tmp_path / "where"
    script.write_text("#!/bin/sh\nset -- $(cat /proc/self/status | sed -n 's/Cpus_allowed_list:[[:space:]]*//p')\necho $1\n")
    script.chmod(0o755)
    found = numbers(helpers.run([pairs, "-p", "-2", "8", "a", script, "--", "b", script]))
    assert all(a != b for a, b in zip(found["a"], found["b"]))
    assert all(a != b for a, b in zip(found["a"], found["a"][1:]))


def test_a_failure_is_said(pairs):
    result = helpers.run([pairs, "-2", "3", "a", "/bin/true", "--", "b", "/bin/false"])
    assert result.returncode == 2 and "the program failed: b" in result.stderr
    result = helpers.run([pairs, "-2", "3", "a", "/bin/true"])
    assert result.returncode == 2 and "compares two" in result.stderr


def test_what_programs_print_is_left_out(pairs, monkeypatch):
    monkeypatch.setattr(measure, "OUT", pairs.parent)
    argv = ["/bin/sh", "-c", "echo; echo 'a value'"]
    found = measure.at_once([measure.Way("plain", argv), measure.Way("again", argv)], 3)
    assert list(found) == ["again"] and all(len(values) == 3 for values in found["again"].values())


def test_memory_and_huge_pages_of_a_run_and_its_children():
    words = "/usr/bin/python3 -c 'import time; x = bytearray(64 << 20); time.sleep(0.3)'; :"
    memory, huge = measure.watch(measure.Way("plain", ["/bin/sh", "-c", words]))
    assert 64 < memory < 200 and "hugetlb" not in huge
    with pytest.raises(RuntimeError, match="again: /bin/false ended with 1"):
        measure.watch(measure.Way("again", ["/bin/false"]))
