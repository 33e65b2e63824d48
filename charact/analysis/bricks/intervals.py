"""How well sums of bricks' medians are known: rounds over the suite are drawn anew, the same for all bricks.

What slows a round as a whole slows all its bricks, and does not cancel in a sum; drawing whole rounds keeps that. A
number and what it would be of each drawing are one array, the number first: sums and longest paths of such arrays are
arrays of the same kind.
"""

import numpy as np

from charact.analysis.comparing.statistics import MIN_ITERATIONS, Values, resampled

MIN_ROUNDS = MIN_ITERATIONS
"""Fewer give no interval."""
_TAILS = 0.025, 0.975


def median_and_draws(times_s: Values, common_s: Values) -> Values:
    """Median of a brick's times (s), and what it would be of rounds that are drawn anew, in blocks of sqrt(n).

    Args:
        times_s: all its times.
        common_s: those of the rounds that all bricks have; too few give no draws.
    """
    middle = np.median(times_s, keepdims=True)
    # The drawings depend on nothing but the number of values: they are the same rounds for each brick.
    return np.concatenate([middle, resampled(common_s.tolist(), np.median)]) if len(common_s) >= MIN_ROUNDS else middle


def interval(drawn: Values) -> tuple[float, float] | None:
    """95 % interval of the number that stands first, which holds it; None without draws, or where they are of nothing.

    A median of drawn values lies above the median where values are skewed. In one brick that is little, in a sum of
    hundreds it is more than the scatter: the draws are scaled to have their middle at the number, so that an interval
    of times has no end below zero.
    """
    middle = np.median(drawn[1:]) if len(drawn) > 1 else 0.0
    if middle <= 0:
        return None
    low, high = np.quantile(drawn[1:] / middle, _TAILS)
    return float(drawn[0] * min(low, 1.0)), float(drawn[0] * max(high, 1.0))
