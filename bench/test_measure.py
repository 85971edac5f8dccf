# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld bench --commands, with which measure.py times: in turns, or at the same time on processors that are swapped."""

import os
import statistics

import pytest

import helpers

measure = pytest.importorskip("measure")
two_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")


def bench(*words):
    return helpers.hugeld("bench", "--commands", *words)


def numbers(result):
    assert result.returncode == 0, result.stderr
    return {words[0]: list(map(float, words[1:])) for words in map(str.split, result.stdout.splitlines())}


@two_processors
def test_both_run_at_once(tmp_path):
    """Each of the two waits for the other: one alone would not end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found = numbers(bench("4", "--at-once", "--", "a", "/bin/sh", "-c", f"echo > {fifo}", "--", "b", "/bin/sh", "-c", f"read -r _ < {fifo}"))
    assert sorted(found) == ["a", "a:cpu", "b", "b:cpu", "b:ratio"]


@two_processors
def test_times():
    found = numbers(bench("4", "--at-once", "--", "a", "/bin/sleep", "0.2", "--", "b", "/bin/sleep", "0.3"))
    ratio, low, high, *medians = found.pop("b:ratio")
    assert all(len(v) == 4 for v in found.values())
    assert medians == pytest.approx([statistics.median(found["a"]), statistics.median(found["b"])], rel=1e-4)
    quotients = [b / a for a, b in zip(found["a"], found["b"])]
    assert min(quotients) * 0.999 <= low <= ratio <= high <= max(quotients) * 1.001
    assert statistics.median(found["a"]) >= 200 and statistics.median(found["b"]) >= 300
    assert statistics.median(found["a:cpu"]) < 100


@two_processors
def test_they_swap(tmp_path):
    script = tmp_path / "where"
    script.write_text("#!/bin/sh\nset -- $(cat /proc/self/status | sed -n 's/Cpus_allowed_list:[[:space:]]*//p')\necho $1\n")
    script.chmod(0o755)
    found = numbers(bench("8", "--at-once", "--", "@a", script, "--", "@b", script))
    assert all(a != b for a, b in zip(found["a"], found["b"]))
    assert all(a != b for a, b in zip(found["a"], found["a"][1:]))


def test_they_take_turns(tmp_path):
    """Each round begins with another one; each has its own variables, and its printed number or its time counts."""
    def tell(name):
        return name, f"WORD={name}", "/bin/sh", "-c", f"echo $WORD >> {tmp_path}/order; echo 1$OTHER"

    a, b, c = map(tell, ("a", "@b", "c"))
    found = numbers(bench("3", "--", *a, "--", b[0], "OTHER=7", "WORD=b", *b[2:], "--", *c))
    assert (tmp_path / "order").read_text().split() == list("abcbcacababc")
    assert found["b"] == [17] * 3 and all(ms < 60000 for ms in found["a"] + found["c"])


@pytest.mark.parametrize("words, code, said", [
    (["a", "/bin/true", "--", "b", "/bin/false"], 1, "b: exit status 1"),
    (["@a", "/bin/true"], 1, "a: it printed no number"),
    (["a", "/bin/sh", "-c", "kill -9 $$"], 1, "a: signal 9"),
    (["a", "/nowhere/program"], 2, "/nowhere/program: No such file"),
    (["a", "X=1"], 2, "a: no program given"),
    (["a", "/bin/true", "--"] * 17, 2, "16 commands at most")])
def test_a_failure_is_said(words, code, said):
    result = bench("3", "--", *words)
    assert (result.returncode, result.stdout) == (code, "") and said in result.stderr


@two_processors
def test_at_once_there_are_two():
    result = bench("3", "--at-once", "--", "a", "/bin/true")
    assert result.returncode == 2 and "with --at-once two" in result.stderr
    result = bench("3", "--at-once", "--", "a", "/bin/true", "--", "b", "/bin/false")
    assert result.returncode == 1 and "b: exit status 1" in result.stderr


@two_processors
def test_what_programs_print_is_left_out():
    argv = ["/bin/sh", "-c", "echo; echo 'a value'"]
    found = measure.at_once([measure.Variant("plain", argv), measure.Variant("again", argv)], 3)
    assert list(found) == ["again"] and all(len(values) == 3 for values in found["again"].values())


def test_memory_and_huge_pages_of_a_run_and_its_children(tmp_path, monkeypatch):
    read, seen = measure.read_rollup, tmp_path / "seen"

    def look(pid):
        now = read(pid)
        if now["Pss"] > 64 << 10:
            seen.touch()
        return now

    monkeypatch.setattr(measure, "read_rollup", look)
    script = f"import os, time; x, n = bytearray(64 << 20), 0\nwhile not os.path.exists(\"{seen}\") and n < 6000: time.sleep(0.01); n += 1"
    memory, huge = measure.watch(measure.Variant("plain", ["/bin/sh", "-c", f"/usr/bin/python3 -c '{script}'; :"]))
    assert 64 < memory < 200 and "hugetlb" not in huge
    with pytest.raises(RuntimeError, match="again: /bin/false ended with 1"):
        measure.watch(measure.Variant("again", ["/bin/false"]))
