# SPDX-License-Identifier: LGPL-2.1-or-later
"""measure.py times commands in turns, or at the same time on processors that are swapped."""

import os
import statistics

import pytest

measure = pytest.importorskip("measure")
two_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")


def shell(name, script, prints=False, **variables):
    way = measure.Variant(name, ["/bin/sh", "-c", script], **variables)
    way.prints = prints
    return way


@two_processors
def test_both_run_at_once(tmp_path):
    """Each of the two waits for the other: one alone would not end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found = measure.time_rounds([shell("a", f"echo > {fifo}"), shell("b", f"read -r _ < {fifo}")], 4, together=True)
    assert [len(numbers) for way in found for numbers in way] == [4] * 4


@two_processors
def test_times():
    (a, a_cpu), (b, _) = measure.time_rounds([measure.Variant("a", ["sleep", "0.2"]), measure.Variant("b", ["sleep", "0.3"])], 4,
                                             together=True)
    assert statistics.median(a) >= 200 and statistics.median(b) >= 300
    assert statistics.median(a_cpu) < 100


def test_processor_time_of_children():
    [(_, cpu)] = measure.time_rounds([shell("a", "/usr/bin/python3 -c 'import time\nwhile time.process_time() < 0.2: pass'; :")], 2)
    assert min(cpu) >= 200


@two_processors
def test_they_swap(tmp_path):
    script = "sed -n 's/Cpus_allowed_list:[[:space:]]*//p' /proc/self/status"
    (a, _), (b, _) = measure.time_rounds([shell("a", script), shell("b", script)], 8, prints=True, together=True)
    assert all(x != y for x, y in zip(a, b))
    assert all(x != y for x, y in zip(a, a[1:]))


def test_they_take_turns(tmp_path):
    """Each round begins with another one; each has its own variables, and its printed number or its time counts."""
    script = f"echo $WORD >> {tmp_path}/order; echo 1$OTHER"
    ways = [shell("a", script, WORD="a"), shell("b", script, True, WORD="b", OTHER=7), shell("c", script, WORD="c")]
    (a, _), (b, _), (c, _) = measure.time_rounds(ways, 3)
    assert (tmp_path / "order").read_text().split() == list("abcbcacababc")
    assert b == [17] * 3 and all(ms < 60000 for ms in a + c)


@pytest.mark.parametrize("together", [False, pytest.param(True, marks=two_processors)])
@pytest.mark.parametrize("script, prints, said", [
    ("exit 1", False, "b: exit status 1 .*exit 1"), ("echo no", True, "b: it printed no number"), ("kill -9 $$", False, "b: signal 9")])
def test_a_failure_is_said(script, prints, said, together):
    with pytest.raises(RuntimeError, match=said):
        measure.time_rounds([shell("a", ":"), shell("b", script, prints)], 3, together=together)


@two_processors
def test_no_such_program():
    with pytest.raises(RuntimeError, match="No such file"):
        measure.time_rounds([shell("a", ":"), measure.Variant("b", ["/nowhere/program"])], 3, together=True)


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
