# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld survey takes samples on every kernel."""

import json
import os
import pathlib
import sys
import time

import pytest

import helpers

BUSY = "while True: sum(range(1000))"


def survey(*words):
    result = helpers.hugeld("survey", "--json", *words, timeout=300)
    assert result.returncode in (0, 1) and result.stderr == "", result
    return json.loads(result.stdout)


def check(answer):
    """Its row for this Python, which does not stop."""
    path = os.path.realpath(sys.executable)
    [found] = [p for p in answer["programs"] if p["path"] == path]
    assert answer["sampling"]["lost"] == 0 and answer["sampling"]["decided"] is True
    assert found["samples"] >= 10 and found["objects"][0]["samples"] > 0.5 * found["samples"]
    assert found["objects"][0]["path"] == path and 0 < found["hot_bytes"] <= found["text_bytes"]


def test_survey_of_one():
    process = helpers.start([sys.executable, "-c", BUSY])
    try:
        check(survey("--seconds", "2", "--pid", process.pid))
    finally:
        helpers.end_process(process)


def test_processor_that_comes_and_goes():
    """It is not waited for, and the others are sampled all the time."""
    online = pathlib.Path("/sys/devices/system/cpu/cpu1/online")
    if not online.exists():
        pytest.skip("no processor can go here")
    process = helpers.start([sys.executable, "-c", BUSY])
    look = helpers.start([helpers.HUGELD, "survey", "--json", "--seconds", "8"])
    try:
        for value in ("0", "1"):
            time.sleep(2)
            online.write_text(value)
        stdout, stderr = look.communicate(timeout=300)
    finally:
        online.write_text("1")
        helpers.end_process(look)
        helpers.end_process(process)
    assert look.returncode in (0, 1) and stderr == ""
    check(json.loads(stdout))
