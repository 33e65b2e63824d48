"""The time above which an iteration is slow."""

import math

import numpy as np
import pytest

from charact.core.slow_iterations import slow_limit_s


def test_few_iterations_have_no_slow_ones() -> None:
    assert slow_limit_s([1.0] * 4 + [100.0]) == math.inf
    assert slow_limit_s([1.0] * 5 + [100.0]) == 1.5


def test_equal_times_are_slow_from_half_more() -> None:
    assert slow_limit_s([2.0] * 9 + [10.0]) == 3.0


def test_scattered_times_are_slow_far_above_the_upper_quartile() -> None:
    times_s = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    low, high = np.quantile(times_s, [0.25, 0.75])
    assert slow_limit_s(times_s) == pytest.approx(high + 3 * (high - low))
