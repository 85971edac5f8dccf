# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld bench --pid --toggle: what it says, and that the process is left as it was found."""

import signal
import time

import helpers
import lives
import pytest
from test_json import compare

METRIC = "awk '{{print $14}}' /proc/{}/stat"  # ticks of processor time: a unit of work takes 10 ms of it, whatever it runs on


@pytest.mark.whole
def test_toggle(targets, plain_output):
    with lives.running(targets["exec"], "compute") as target:
        arguments = ["--pid", target.pid, "--toggle", "-n", 6, "--seconds", 1, "--metric", METRIC.format(target.pid)]
        answer = helpers.hugeld("bench", "--json", *arguments, timeout=120)
        assert answer.returncode in (0, 1), answer.stderr
        found = helpers.json.loads(answer.stdout)
        compare("bench --toggle", [found])
        assert found["unit"] == "metric" and found["pairs"] == 6 and not found["attached"]
        values = found["ms_for_each_unit"]
        assert len(values["plain"]) == len(values["huge"]) == 6
        assert all(5 < value < 20 for value in values["plain"] + values["huge"])
        assert target.huge_bytes() == 0
        assert target.finish() == plain_output


@pytest.mark.whole
def test_keep(targets, plain_output):
    with lives.running(targets["exec"], "signals") as target:  # a thousand context switches in a second
        arguments = ["--pid", target.pid, "--toggle", "-n", 6, "--seconds", 1]
        result = helpers.hugeld("bench", *arguments, "--keep", timeout=120)
        assert "which is weak" in result.stderr and "times the processor time" in result.stdout
        assert target.huge_bytes() >= 2 * helpers.HUGE
        assert target.finish() == plain_output


@pytest.mark.parametrize("attached", [False, True])
def test_interrupted(targets, plain_output, attached):
    with lives.running(targets["exec"], "compute") as target:
        if attached:
            assert helpers.hugeld("attach", target.pid).returncode == 0
        bench = helpers.start([helpers.HUGELD, "bench", "--pid", target.pid, "--toggle", "--seconds", 1, "--metric",
                               METRIC.format(target.pid)])
        try:
            state = target.huge_bytes() > 0
            helpers.wait_until(lambda: (target.huge_bytes() > 0) != state or time.sleep(0.1), what="a change")
            bench.send_signal(signal.SIGINT)
            assert bench.wait(timeout=30) == 1
        finally:
            helpers.end_process(bench)
        assert (target.huge_bytes() > 0) == attached
        assert target.finish() == plain_output


@pytest.mark.parametrize("arguments", [["--toggle"], ["--toggle", "true"], ["--pid", "1", "--metric", "x"], ["--pid", "1", "--keep"]])
def test_wrong_use(arguments):
    assert helpers.hugeld("bench", *arguments).returncode == 2


def test_no_number(targets):
    with lives.running(targets["exec"], "compute") as target:
        result = helpers.hugeld("bench", "--pid", target.pid, "--toggle", "--metric", "echo no")
        assert result.returncode == 1 and "printed no number" in result.stderr
        assert target.huge_bytes() == 0
