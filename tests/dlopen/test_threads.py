# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text moves while others execute and read it: eight threads, signals, a profiler."""

import os
import re

import pytest

import helpers

# 10000 were run once (tests/README.md).
MOVES = os.environ.get("MOVES", "500")


def check(result, moves):
    assert result.returncode == 0, result.stderr
    found = dict(re.findall(r"(\w+) (\d+)", result.stdout))
    assert int(found["moves"]) == int(moves) and int(found["wrong"]) == 0, result.stdout
    assert int(found["calls"]) > 100 * int(moves)
    # The handler ran, and its backtraces saw the DSO.
    assert int(found["signals"]) > 0 and int(found["through"]) > 0, result.stdout


@pytest.mark.parametrize("backend", [pytest.param("hugetlb", marks=pytest.mark.check_all), "thp"])
def test_running_text(workshop, pool, thp, backend):
    pool(16)
    moves = MOVES if backend == "hugetlb" else str(int(MOVES) // 5)
    check(helpers.run([workshop / "move-under", moves, workshop / "libtable1.so", backend], timeout=1800), moves)


@pytest.mark.check_all
def test_while_perf_records(workshop, pool, tmp_path):
    if helpers.run(["perf", "record", "-q", "-e", "cpu-clock", "-o", "/dev/null", "true"]).returncode != 0:
        pytest.skip("perf cannot record here")
    pool(16)
    data = tmp_path / "data"
    argv = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "999", "-g", "-o", data, "--", workshop / "move-under",
            "100", workshop / "libtable1.so", "hugetlb"]
    check(helpers.run(argv, timeout=300), 100)
    assert len(helpers.run(["perf", "script", "-i", data, "-F", "ip"], timeout=120).stdout.splitlines()) > 100
    data.unlink()
