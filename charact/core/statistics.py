"""Statistics shared by measurements and analyses."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import NormalDist

_LARGEST_CORRELATION = 0.8
_FEW_ORDERS = 20_000
"""Number of orders beyond which the normal approximation is within a hundredth of the exact probability."""


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the confidence interval of the median from order statistics, in the unit of the values.

    It assumes only independent values: iterations that drift together make it too narrow. Its coverage is at least
    `confidence`. None if there are too few values for that (fewer than 6 for 95 %).

    Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1.
    """
    num_values, tail = len(values), (1 - confidence) / 2
    if num_values > 500:
        rank = max(0, math.floor(num_values / 2 + NormalDist().inv_cdf(tail) * math.sqrt(num_values) / 2))
    else:  # the largest rank r with P(Binomial(n, 1/2) < r) <= tail
        probability, rank = 0.0, 0
        while (probability := probability + math.comb(num_values, rank) / 2**num_values) <= tail:
            rank += 1
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[num_values - rank]


def consecutive_correlation(deviations: Sequence[float], num_levels: int = 1, *,
                            largest: float = _LARGEST_CORRELATION) -> float:
    """Return the correlation of consecutive deviations from fitted levels, limited to 0 to `largest`.

    Deviations from fitted levels are correlated too little, which is corrected to first order.

    Source: F. H. C. Marriott, J. A. Pope, Bias in the estimation of autocorrelations, Biometrika 41 (1954).
    """
    squares = sum(value**2 for value in deviations)
    correlation = sum(value * following for value, following in pairwise(deviations)) / squares if squares else 0.0
    correlation += (1 + 3 * correlation) * num_levels / len(deviations) if squares else 0.0
    return min(max(correlation, 0.0), largest)


def mean_interval_frac(values: Sequence[float]) -> float | None:
    """Return the half-width of the 95 % interval of the mean of consecutive values, as a share of the mean.

    The standard error is raised by the correlation of consecutive values, see `consecutive_correlation`. None with
    fewer than 3 values or a mean of 0.
    """
    num_values = len(values)
    mean = sum(values) / max(num_values, 1)
    if num_values < 3 or not mean:
        return None
    deviations = [value - mean for value in values]
    correlation = consecutive_correlation(deviations)
    variance = sum(value**2 for value in deviations) / (num_values - 1)
    error = math.sqrt(variance / num_values * (1 + correlation) / (1 - correlation))
    return student_factor(num_values - 1) * error / abs(mean)


@dataclass(frozen=True)
class FittedLine:
    """A line through points: y = intercept + slope x.

    `errors` are the standard errors of slope and intercept, None through two points; `factor` times an error is the
    half-width of the 95 % interval.
    """

    slope: float
    intercept: float
    errors: tuple[float, float] | None = None
    factor: float = math.inf


def fitted_line(xs: Sequence[float], ys: Sequence[float]) -> FittedLine | None:
    """Return the least-squares line; None if the points have fewer than two different x.

    *Error*: the errors assume random scatter about a line. For curved data, they measure the deviation from a line.
    """
    num_points = len(xs)
    mean_x, mean_y = sum(xs) / max(num_points, 1), sum(ys) / max(num_points, 1)
    spread = sum((x - mean_x) ** 2 for x in xs)
    if not spread:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    intercept = mean_y - slope * mean_x
    num_degrees = num_points - 2
    if num_degrees == 0:
        return FittedLine(slope, intercept)
    squares = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    deviation = math.sqrt(squares / num_degrees)
    errors = deviation / math.sqrt(spread), deviation * math.sqrt(1 / num_points + mean_x**2 / spread)
    return FittedLine(slope, intercept, errors, student_factor(num_degrees))


def student_factor(num_degrees: int, confidence: float = 0.95) -> float:
    """Return the half-width of a two-sided interval in standard errors: a quantile of Student's t."""
    from scipy.special import stdtrit  # takes 0.2 s to import

    return float(stdtrit(num_degrees, (1 + confidence) / 2))


def student_probability(distance: float, num_degrees: int) -> float:
    """Return the two-sided probability that Student's t exceeds a distance in standard errors."""
    from scipy.special import stdtr

    return float(2 * stdtr(num_degrees, -abs(distance)))


_EFFECT_VARIANCE = 10.0
"""Variance of the effect (mean over standard deviation) in the mixture of the sequential t-test, see
`benchmarks/by_turns.py`: a larger one decides earlier on large effects, and later on small ones."""


def sequential_factor(num_values: int, confidence: float = 0.95) -> float:
    """Return the half-width of a confidence sequence for a mean, in standard errors; infinite for 2 values or fewer.

    The intervals after each of any number of values all contain the mean with a probability of at least `confidence`,
    so values may be added until an interval shows enough. It assumes independent normal values of unknown variance.

    Source: H. Wang, A. Ramdas, Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance
    (arXiv 2310.03722), the test martingale with a Gaussian mixture; Ville's inequality.
    """
    spread = 1 + num_values * _EFFECT_VARIANCE
    bound = (math.sqrt(spread) / (1 - confidence)) ** (2 / num_values)
    if num_values < 2 or bound >= spread:
        return math.inf
    return math.sqrt((num_values - 1) * (bound - 1) / (1 - bound / spread))


def trimmed_mean(values: Sequence[float], share: float) -> tuple[float, float, int]:
    """Return the mean without a share of the values at each end, its standard error, and the number of values left.

    The error is in the unit of the values; 0 of a single value. Outliers affect neither.

    Source: J. W. Tukey, D. H. McLaughlin, Less vulnerable confidence and significance procedures for location based on
    a single sample, Sankhya A 25 (1963): the winsorized variance, with the degrees of freedom of the values left.
    """
    ordered, num_cut = sorted(values), math.floor(share * len(values))
    num_left = len(values) - 2 * num_cut
    low, high = ordered[num_cut], ordered[-num_cut - 1]
    mean = math.fsum(ordered[num_cut : len(values) - num_cut]) / num_left
    winsorized = [min(max(value, low), high) for value in values]
    center = math.fsum(winsorized) / len(values)
    squares = math.fsum((value - center) ** 2 for value in winsorized)
    return mean, math.sqrt(squares / (num_left * (num_left - 1))) if num_left > 1 else 0.0, num_left


def sequential_probability(distance: float, num_values: int) -> float:
    """Return the p-value of the sequential t-test for a mean that is so many standard errors from 0.

    It stays valid however long values are added: it is below 0.05 exactly if `sequential_factor` is below the distance.
    """
    spread = 1 + num_values * _EFFECT_VARIANCE
    if math.isinf(distance):
        growth = math.log(spread)
    else:
        squared = distance**2 / max(num_values - 1, 1)
        growth = math.log1p(squared) - math.log1p(squared / spread)
    return min(1.0, math.exp((math.log(spread) - num_values * growth) / 2))


def rank_test(ones: Sequence[float], others: Sequence[float]) -> float:
    """Return the two-sided p-value of the Mann-Whitney test.

    Ties share ranks. The test is exact if there are few orders of the values, else the normal approximation with
    continuity correction. It assumes independent values.

    Source: M. Hollander, D. A. Wolfe, E. Chicken, Nonparametric Statistical Methods, 3rd ed., section 4.1.
    """
    num_ones, num_others = len(ones), len(others)
    num_all = num_ones + num_others
    groups = [(value, len(list(equal))) for value, equal in groupby(sorted([*ones, *others]))]
    ranks, below = {}, 0
    for value, count in groups:
        ranks[value] = below + (count + 1) / 2
        below += count
    above = sum(ranks[value] for value in ones) - num_ones * (num_ones + 1) / 2
    ties = sum(count**3 - count for _, count in groups) / (num_all * (num_all - 1))
    if math.comb(num_all, num_ones) <= _FEW_ORDERS:
        return _exact_rank_test(*([round(2 * ranks[value]) for value in values] for values in (ones, others)))
    variance = num_ones * num_others / 12 * (num_all + 1 - ties)
    distance = max(0.0, abs(above - num_ones * num_others / 2) - 0.5)
    return 1.0 if not distance else 2 * NormalDist().cdf(-distance / math.sqrt(variance))


def _exact_rank_test(ones: Sequence[int], others: Sequence[int]) -> float:
    """Return the share of choices of as many doubled ranks whose sum is as far from the mean as the observed sum."""
    chosen = min(ones, others, key=len)
    ways: list[Counter[int]] = [Counter({0: 1}), *(Counter() for _ in chosen)]
    for rank in [*ones, *others]:
        for size in range(len(chosen), 0, -1):
            for total, count in ways[size - 1].items():
                ways[size][total + rank] += count
    num_all = len(ones) + len(others)
    middle = len(chosen) * (num_all + 1)
    reached = abs(sum(chosen) - middle)
    far = sum(count for total, count in ways[-1].items() if abs(total - middle) >= reached)
    return far / math.comb(num_all, len(chosen))
