# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld bench --pid --toggle: its answer, and that the process is left as it was found."""

import signal
import statistics
import time

import helpers
import attaching
import pytest
import stores
from test_json import compare

METRIC = "awk '{{printf \"%d\", $1 / 10000}}' /proc/{}/schedstat"  # processor time: a unit of work takes 10 us of it on any pages


@pytest.mark.check_all
def test_toggle(targets, plain_output):
    with attaching.running(targets["exec"], "doze") as target:
        arguments = ["--pid", target.pid, "--toggle", "-n", 6, "--seconds", 1, "--metric", METRIC.format(target.pid)]
        answer = helpers.hugeld("bench", "--json", *arguments)
        assert answer.returncode in (0, 1), answer.stderr
        assert answer.stdout, answer.stderr
        found = helpers.json.loads(answer.stdout)
        compare("bench-toggle", [found])
        assert found["unit"] == "metric" and found["pairs"] == 6 and not found["attached"]
        values = found["for_each_unit"]
        assert len(values["plain"]) == len(values["huge"]) == 6
        # A busy machine reads the metric late, up to several times.
        assert all(0.001 < statistics.median(values[side]) < 0.1 for side in values)
        assert target.huge_bytes() == 0
        assert target.finish() == plain_output


def test_in_place(tmp_path, root):
    """Text that is on huge pages of its file has no plain side to be compared with."""
    with stores.mounted(tmp_path), attaching.running(
            attaching.compile_target(tmp_path, "target", 6, "-no-pie", "-Wl,-z,noseparate-code"), "doze") as target:
        helpers.wait_until(lambda: "already" in helpers.hugeld("attach", "--dry-run", target.pid).stdout, what="its huge pages")
        answer = helpers.hugeld("bench", "--pid", target.pid, "--toggle", "-n", 6, "--seconds", 0.1, "--metric", "date +%s%N")
        helpers.one_line(answer, 1, "text stays: the page cache has it on huge pages already")


@pytest.mark.check_all
def test_until_narrow(targets, plain_output):
    """Without -n, pairs are measured until the interval is narrow, or as many as it may take."""
    with attaching.running(targets["exec"], "doze") as target:
        answer = helpers.hugeld("bench", "--json", "--pid", target.pid, "--toggle", "--seconds", 0.1,
                                "--metric", METRIC.format(target.pid), timeout=helpers.PATIENCE)
        assert answer.stdout, answer.stderr
        found = helpers.json.loads(answer.stdout)
        ratio = found["ratio"]
        is_narrow = 50 * (ratio["high"] - ratio["low"]) / ratio["ratio"] <= 2
        assert 10 <= found["pairs"] <= 60 and (is_narrow or found["pairs"] == 60), found
        assert target.finish() == plain_output


@pytest.mark.check_all
@pytest.mark.parametrize("attached, number", [
    (False, signal.SIGINT), (True, signal.SIGTERM), (False, signal.SIGHUP), (False, signal.SIGQUIT), (True, signal.SIGPIPE)])
def test_interrupted(targets, plain_output, attached, number):
    with attaching.running(targets["exec"], "doze") as target:
        if attached:
            assert attaching.ask("attach", target.pid).returncode == 0
        bench = helpers.start(["env", f"--default-signal={number}",  # nohup ignores SIGHUP
                               helpers.HUGELD, "bench", "--pid", target.pid, "--toggle", "--seconds", 1,
                               "--metric", METRIC.format(target.pid)])
        try:
            state = target.huge_bytes() > 0
            helpers.wait_until(lambda: (target.huge_bytes() > 0) != state or time.sleep(0.1), what="a change")
            bench.send_signal(number)
            assert bench.wait(timeout=helpers.PATIENCE) == 1
        finally:
            helpers.end_process(bench)
        assert (target.huge_bytes() > 0) == attached
        assert target.finish() == plain_output
