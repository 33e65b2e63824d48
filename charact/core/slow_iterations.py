"""Rule for iterations that took much longer than the others, such as one that also wrote a checkpoint."""

import math
from collections.abc import Sequence
from statistics import quantiles

_MIN_ITERATIONS = 6
"""Minimum number of iterations to find slow ones."""
_SLOW_RATIO = 1.5
"""Minimum ratio of a slow iteration's time to the median."""
_FAR_OUT = 3.0
"""Minimum distance of a slow iteration above the upper quartile, in interquartile ranges (Tukey's outer fence)."""


def slow_limit_s(times_s: Sequence[float]) -> float:
    """Return the time (s) above which an iteration is slow, from the times of all.

    It is 1.5 times the median, or three interquartile ranges above the upper quartile, whichever is more. Of fewer than
    6 iterations, none is slow: the limit is infinite.
    """
    if len(times_s) < _MIN_ITERATIONS:
        return math.inf
    low, median, high = quantiles(times_s, n=4, method="inclusive")
    return max(_SLOW_RATIO * median, high + _FAR_OUT * (high - low))
