"""Statistics that both the measuring loop and the analyses need."""

import math
from collections.abc import Sequence
from statistics import NormalDist


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Confidence interval of the median from order statistics, in the unit of the values.

    It assumes no distribution, only independent values: iterations that drift together make it too narrow. Its
    coverage is at least `confidence`. None where there are too few values for that (fewer than 6 for 95 %).

    Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1.
    """
    num_values = len(values)
    rank = _low_rank(num_values, (1 - confidence) / 2)
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[num_values - rank]


def _low_rank(num_values: int, tail: float) -> int:
    """Largest rank r with P(Binomial(n, 1/2) < r) <= tail; 0 where even the smallest value is too likely."""
    if num_values > 500:
        return max(0, math.floor(num_values / 2 + NormalDist().inv_cdf(tail) * math.sqrt(num_values) / 2))
    probability, rank = 0.0, 0
    while (probability := probability + math.comb(num_values, rank) / 2**num_values) <= tail:
        rank += 1
    return rank
