# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld bench --pid --toggle: its answer, and that the process is left as it was found."""

import os
import signal
import statistics
import time

import helpers
import attaching
import pytest
from test_json import compare

METRIC = "awk '{{printf \"%d\", $1 / 10000}}' /proc/{}/schedstat"  # processor time: a unit of work takes 10 us of it on any pages


@pytest.mark.check_all
def test_toggle(targets, plain_output):
    with attaching.running(targets["exec"], "doze") as target:
        arguments = ["--pid", target.pid, "--toggle", "-n", 6, "--seconds", 1, "--metric", METRIC.format(target.pid)]
        answer = helpers.hugeld("bench", "--json", *arguments, timeout=120)
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


# perf stat -x, [--log-fd N] -e LIST [-p PID] -- COMMAND: it counts nothing but these two; on huge pages fewer cycles.
PERF = """#!/bin/sh
shift 2
out=2
[ "$1" != --log-fd ] || { out=$2; shift 2; }
case $2 in cycles | instructions | cycles,instructions) ;; *) echo "event syntax error" >&2; exit 129 ;; esac
cycles=3000
[ "$3" != -p ] || ! grep -q hugeld: /proc/$4/maps || cycles=1500
echo "$cycles,,cycles:u,100,100.00,," >&$out
echo "1000,,instructions:u,100,100.00,," >&$out
while [ "$1" != -- ]; do shift; done
shift
[ "$1" != sleep ] || exec sleep 0.1
exec "$@"
"""


@pytest.mark.check_all
def test_instructions(targets, plain_output, tmp_path):
    """If instructions can be counted, a unit of work is one instruction."""
    perf = tmp_path / "perf"
    perf.write_text(PERF)
    perf.chmod(0o755)
    env = helpers.environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    with attaching.running(targets["exec"], "doze") as target:
        answer = helpers.hugeld("bench", "--json", "--pid", target.pid, "--toggle", "-n", 6, "--seconds", 1, env=env)
        assert answer.returncode == 0 and answer.stderr == "", answer.stderr
        found = helpers.json.loads(answer.stdout)
        assert found["unit"] == "instructions" and found["verdict"] == "faster"
        assert found["for_each_unit"] == {"plain": [3] * 6, "huge": [1.5] * 6}
        assert target.huge_bytes() == 0
        assert target.finish() == plain_output


@pytest.mark.check_all
@pytest.mark.parametrize("attached, number", [
    (False, signal.SIGINT), (True, signal.SIGTERM), (False, signal.SIGHUP), (False, signal.SIGQUIT), (True, signal.SIGPIPE)])
def test_interrupted(targets, plain_output, attached, number):
    with attaching.running(targets["exec"], "doze") as target:
        if attached:
            assert helpers.hugeld("attach", target.pid).returncode == 0
        bench = helpers.start(["env", f"--default-signal={number}",  # nohup ignores SIGHUP
                               helpers.HUGELD, "bench", "--pid", target.pid, "--toggle", "--seconds", 1,
                               "--metric", METRIC.format(target.pid)])
        try:
            state = target.huge_bytes() > 0
            helpers.wait_until(lambda: (target.huge_bytes() > 0) != state or time.sleep(0.1), what="a change")
            bench.send_signal(number)
            assert bench.wait(timeout=120) == 1
        finally:
            helpers.end_process(bench)
        assert (target.huge_bytes() > 0) == attached
        assert target.finish() == plain_output
