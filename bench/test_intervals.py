# SPDX-License-Identifier: LGPL-2.1-or-later
"""intervals.py against all resamples that there can be."""

import itertools
import math
import random
import statistics

import pytest

intervals = pytest.importorskip("intervals")


def midmean(values):
    return statistics.mean(sorted(values)[len(values) // 4:len(values) - len(values) // 4])


def percentile_of(value, means):
    """The part of MEANS below VALUE, in the middle of those that are equal to it."""
    return (sum(mean < value for mean in means) + sum(mean == value for mean in means) / 2) / len(means)


@pytest.mark.parametrize("block, n", [(1, 6), (3, 20)])
def test_interval(block, n):
    """Blocks are drawn as a whole, and a rest that is no block is not drawn."""
    chance = random.Random(n)
    values = [chance.uniform(0.9, 1.1) for _ in range(n)]
    blocks = [values[i * block:(i + 1) * block] for i in range(n // block)]
    means = [midmean(list(itertools.chain(*drawn))) for drawn in itertools.product(blocks, repeat=len(blocks))]
    middle, low, high = intervals.estimate(values, block)
    assert middle == pytest.approx(midmean(values)) and low < middle < high
    assert percentile_of(low, means) == pytest.approx(intervals.tail(6), abs=0.002)
    assert percentile_of(high, means) == pytest.approx(1 - intervals.tail(6), abs=0.002)
    assert intervals.estimate(values, block) == (middle, low, high)


@pytest.mark.parametrize("n, t", [(6, 2.5706), (8, 2.3646), (20, 2.0930), (600, 1.9639)])
def test_tail(n, t):
    """T: Student's 0.975 for N - 1 degrees of freedom, from a table."""
    assert intervals.tail(n) == pytest.approx(statistics.NormalDist().cdf(-t * math.sqrt(n / (n - 1))), rel=0.1)


def test_ratio_and_difference():
    chance = random.Random(3)
    base, values = ([chance.uniform(90, 110) for _ in range(9)] for _ in "ab")
    found = intervals.compare(base, values)
    assert found[:3] == intervals.estimate([b / a for a, b in zip(base, values)])
    assert found[3:] == intervals.estimate([b - a for a, b in zip(base, values)])


def test_what_has_no_interval():
    def same(found, expected):
        return all(a == b or math.isnan(a) and math.isnan(b) for a, b in zip(found, expected, strict=True))

    nan = math.nan
    assert same(intervals.compare([4.0] * 5, [2.0] * 5), (0.5, nan, nan, -2, nan, nan))
    assert same(intervals.compare([4.0] * 17, [2.0] * 17, 3), (0.5, nan, nan, -2, nan, nan))
    assert same(intervals.compare([4.0] * 18, [2.0] * 18, 3), (0.5, 0.5, 0.5, -2, -2, -2))
    assert same(intervals.compare([0.0] * 6, [2.0] * 6), (nan, nan, nan, 2, 2, 2))
