# SPDX-License-Identifier: LGPL-2.1-or-later
"""bench/report.py: what is measured again, and what the tables say."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench")]
pytest.importorskip("matplotlib")
import report  # noqa: E402

pytestmark = pytest.mark.beside

THIS = {"hugeld": "0123", "kernel": "Linux 6.18", "cpu": "EPYC", "quick": False}


def test_what_was_measured_is_left_out():
    runs = {"shared": {**THIS, "seconds": 300}, "start": {**THIS, "hugeld": "4567", "seconds": 20}, "calls": {**THIS, "quick": True, "seconds": 5}}
    assert report.not_yet_measured(["shared", "start", "calls", "cold"], runs, THIS) == ["start", "calls", "cold"]
    assert report.not_yet_measured(["shared"], runs, {**THIS, "kernel": "Linux 7.0"}) == ["shared"]


def test_runs_are_stored(tmp_path):
    data = {"machine": {"kernel": "Linux"}, "quick": False, "groups": {"shared": []}, "runs": {"shared": {**THIS, "seconds": 300}}}
    report.store(data, tmp_path)
    assert report.load(tmp_path)["runs"] == data["runs"]
    assert report.not_yet_measured(["shared"], report.load(tmp_path)["runs"], THIS) == []


@pytest.mark.parametrize("seconds, words", [(0.4, "0 s"), (59, "59 s"), (90, "1.5 minutes"), (5400, "90 minutes")])
def test_times_in_words(seconds, words):
    assert report.in_minutes(seconds) == words
