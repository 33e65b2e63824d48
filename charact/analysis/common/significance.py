"""Whether two measurements differ: their ratio, its 95 % interval, and a rank test.

Runs that were added by turns until their difference was clear have a confidence sequence, see `judged_by_turns`.
Consecutive iterations are correlated. Intervals therefore resample blocks of iterations, and the rank test compares
medians of blocks. `benchmarks/false_alarms.py` and `benchmarks/by_turns.py` measure the false-positive rates.
"""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from statistics import fmean, median, variance
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charact.analysis.common.block_bootstrap import NUM_RESAMPLES, block_starts, resampled_medians
from charact.core.statistics import (
    median_interval,
    rank_test,
    sequential_factor,
    sequential_probability,
    student_factor,
    student_probability,
    trimmed_mean,
)

Values = NDArray[np.float64]

MIN_ITERATIONS = 6
"""Minimum number of iterations for an interval."""
INTERVAL_METHOD = "block bootstrap, at least order statistics"
"""Name of the method of `Sample.interval` for the median of iterations."""
ONE_VALUE = "one value per group: several runs give an interval"
ONE_RUN_EACH = "one run each: may be machine noise"
"""Reason of a judgement by the iterations of one run in each group, which do not show how much runs vary."""
MIN_TURNS = 4
"""Minimum number of turns for an interval: on a machine with two speeds, three turns often agree by chance."""
MIN_TRIMMED = 10
"""Number of turns from which the lowest and highest fifth are left out."""
_TRIMMED_FRAC = 0.2
_MAX_BLOCKS = 15
_VALUES_AT_ONCE = 1_000_000
_TAILS = 0.025, 0.975
_SIGNIFICANT = 0.05
_ROUNDING = 1e-12
_FEWEST_ORDERS = 2 / _SIGNIFICANT
"""Minimum number of ways to divide the values into two groups for a two-sided rank test to be significant."""
_NORMAL = 1000
"""Degrees of freedom from which Student's t equals the normal distribution."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A measured number and its uncertainty.

    `repeats` are the values that the rank test compares: medians of blocks of iterations, or one value per run
    (`of_runs`). `draw` computes `draws`, the bootstrap values. `reason` states why both are missing. `exact` marks
    counts. `error_frac` is the relative standard error of a proportion. `least` is the interval of order statistics,
    which `interval` contains. Numbers with a different `basis` (10 epochs, 5 epochs) are not comparable; None if the
    basis is unknown.
    """

    value: float
    repeats: tuple[float, ...] = ()
    draw: Callable[[], Values] | None = None
    reason: str | None = None
    basis: str | None = None
    of_runs: bool = False
    exact: bool = False
    error_frac: float | None = None
    least: tuple[float, float] | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the number within its run; None if not available.

        The interval of the median of iterations has the 2.5 and 97.5 % quantiles of the block bootstrap, which allows
        for correlated iterations, and is at least as wide as that of order statistics, which is exact for a few
        independent ones. All tables, reports and exports show this interval.

        *Error*: it contains the true median of independent iterations in 96 to 98 % of the cases, from 6 iterations on.
        If consecutive iterations have a correlation of 0.3, it is 90 to 94 %; with 0.6, 78 to 82 % up to 30 iterations
        and 85 to 93 % from 50 on (`benchmarks/time_interval.py`). Changes between runs are not included.
        """
        if self.error_frac is not None:
            reach = 1.96 * self.error_frac * self.value
            return self.value - reach, self.value + reach
        if self.draws is None:
            return None
        ends = [*map(float, np.quantile(self.draws, _TAILS)), *(self.least or ())]
        return min(ends), max(ends)

    @property
    def draws(self) -> Values | None:
        """Return the number computed from each bootstrap resample; None if not available."""
        return None if self.draw is None else _drawn(self.draw)

    @property
    def of_each_run(self) -> tuple[float, ...]:
        """Values of the runs."""
        return self.repeats if self.of_runs else (self.value,)


@lru_cache(maxsize=128)  # 8 kB each
def _drawn(draw: Callable[[], Values]) -> Values:
    return draw()


class Judgement(NamedTuple):
    """The ratio of a number to the baseline's, with its uncertainty.

    `reason` states why values are None, or is `ONE_RUN_EACH`.
    """

    ratio: float | None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    significant: bool = False
    reason: str | None = None


def timed(values: Sequence[float]) -> Sample:
    """Return the median of one run's times with its uncertainty; times are in the order of measurement.

    This is the estimator of an iteration's time everywhere, see `Sample.interval`.
    """
    if len(values) < MIN_ITERATIONS:
        return Sample(median(values), reason=f"fewer than {MIN_ITERATIONS} iterations")
    return Sample(median(values), block_medians(values),
                  partial(resampled_medians, np.asarray(values, dtype=np.float64)), least=median_interval(values))


def block_medians(values: Sequence[float]) -> tuple[float, ...]:
    """Return the medians of 15 equal blocks of consecutive values; fewer blocks if there are fewer than 30 values."""
    num_values = len(values)
    num_blocks = min(_MAX_BLOCKS, max(MIN_ITERATIONS, num_values // 2))
    edges = [round(number * num_values / num_blocks) for number in range(num_blocks + 1)]
    return tuple(median(values[begin:end]) for begin, end in pairwise(edges))


def resampled(values: Sequence[float] | Values, statistic: Callable[..., Any]) -> Values:
    """Return a statistic of 1000 circular-block bootstrap resamples, see `block_starts`.

    `statistic` must accept `axis`.
    """
    array, num_values = np.asarray(values, dtype=np.float64), len(values)
    starts, length = block_starts(num_values)
    results = []
    for some in np.array_split(starts, math.ceil(NUM_RESAMPLES * num_values / _VALUES_AT_ONCE)):
        places = (some[:, :, None] + np.arange(length)) % num_values
        results.append(statistic(array[places.reshape(len(some), -1)[:, :num_values]], axis=1))
    return np.concatenate(results)


class Pool:
    """Accumulates samples of one number over runs; of several runs it stores only the values."""

    def __init__(self) -> None:
        self._only: Sample | None = None
        self._values = array("d")
        self._bases: dict[str, None] = {}

    def add(self, sample: Sample) -> None:
        """Add the sample of another run."""
        self._only = None if self._values else sample
        self._values.append(sample.value)
        if sample.basis is not None:
            self._bases[sample.basis] = None

    def sample(self) -> Sample:
        """Return the only run's sample, or the geometric mean of several runs with their values as repeats.

        If a value is not positive, the median replaces the geometric mean.
        """
        if self._only is not None:
            return self._only
        values = tuple(self._values)
        value = math.exp(fmean(map(math.log, values))) if min(values) > 0 else median(values)
        return Sample(value, values, basis=" or ".join(self._bases) or None, of_runs=True)


def judged(base: Sample, new: Sample) -> Judgement:
    """Return the ratio of two samples, its 95 % interval and the p-value.

    With one run in each group, the interval is a percentile interval of resampled iterations, and the p-value comes
    from a rank test. If a group has several runs, the interval is Welch's for the logarithms of the runs' values. The
    p-value then comes from a rank test, or from Welch's test with too few runs (such as 3 and 4). A group's only run is
    assumed to vary as much as the runs of the other group. A ratio is significant if the interval excludes 1 and the
    p-value is below 0.05. Counts have no interval: every difference is significant.

    *Error*: one run in each group shows no variation between runs, such as clocks, memory placement and other load. On
    a busy machine, two halves of one run differ significantly in one case of six.
    """
    if (judgement := _not_comparable(base, new)) is not None:
        return judgement
    ratio = new.value / base.value
    if math.isclose(ratio, 1, rel_tol=_ROUNDING):  # geometric means of equal values differ in the last digit
        ratio = 1.0
    if base.of_runs or new.of_runs:
        return _judged_runs(ratio, base.of_each_run, new.of_each_run)
    if base.exact and new.exact:
        return Judgement(ratio, significant=ratio != 1, reason="a count: no variation")
    if base.error_frac is not None and new.error_frac is not None:
        return _around(ratio, math.hypot(base.error_frac, new.error_frac), _NORMAL)
    base_draws, new_draws = base.draws, new.draws
    if base_draws is None or new_draws is None:
        return Judgement(ratio, reason=base.reason or new.reason)
    if min(base_draws.min(), new_draws.min()) <= 0:
        return Judgement(ratio, reason="0 in some of the iterations")
    # Reversed: draws use the same random indices, which must not be paired if both samples have the same length.
    low, high = np.exp(np.quantile(np.log(new_draws) - np.log(base_draws[::-1]), _TAILS))
    judgement = _judgement(ratio, float(low), float(high), rank_test(base.repeats, new.repeats))
    return judgement._replace(reason=ONE_RUN_EACH)


def judged_by_turns(base: Sample, new: Sample) -> Judgement:
    """Return the ratio of two samples whose runs are pairs, one per turn, with an interval of a confidence sequence.

    It is valid whenever the turns were stopped, also because of the ratios so far: with a probability of 95 %, the
    intervals after each of the turns all contain the true ratio. It judges the mean of the logarithms of the turns'
    ratios, without the lowest and highest fifth from `MIN_TRIMMED` turns on. Without a pair in each turn, it returns
    `judged`.

    *Error*: it assumes normal logarithms; `benchmarks/by_turns.py` measures the rates for the noise of real runs.

    Source: see `sequential_factor` and `trimmed_mean`.
    """
    before, after = base.of_each_run, new.of_each_run
    if not (base.of_runs and new.of_runs) or len(before) != len(after) or min(*before, *after) <= 0:
        return judged(base, new)
    if (judgement := _not_comparable(base, new)) is not None:
        return judgement
    logs = [math.log(new_value / base_value) for base_value, new_value in zip(before, after, strict=True)]
    mean, error, num_values = _middle(logs)
    ratio = 1.0 if math.isclose(mean, 0, abs_tol=_ROUNDING) else math.exp(mean)
    if len(before) < MIN_TURNS:
        return Judgement(ratio, reason=f"{len(before)} turns: an interval needs {MIN_TURNS}")
    reach = math.exp(sequential_factor(num_values) * error)
    distance = abs(math.log(ratio)) / error if error else (0.0 if ratio == 1 else math.inf)
    return _judgement(ratio, ratio / reach, ratio * reach, sequential_probability(distance, num_values))


def value_of_turns(sample: Sample) -> float:
    """Return the value of a group whose runs belong to turns: the mean of logarithms that `judged_by_turns` takes."""
    if not sample.of_runs or min(sample.repeats) <= 0:
        return sample.value
    return math.exp(_middle([math.log(value) for value in sample.repeats])[0])


def _middle(logs: Sequence[float]) -> tuple[float, float, int]:
    return trimmed_mean(logs, _TRIMMED_FRAC if len(logs) >= MIN_TRIMMED else 0.0)


def _not_comparable(base: Sample, new: Sample) -> Judgement | None:
    if base.basis != new.basis and None not in (base.basis, new.basis):
        return Judgement(None, reason=f"not comparable: {new.basis} here, {base.basis} in the baseline")
    if min(base.value, new.value) <= 0:
        return Judgement(None, reason="0 in the baseline" if base.value <= 0 else "0 here")
    return None


def _judged_runs(ratio: float, base: tuple[float, ...], new: tuple[float, ...]) -> Judgement:
    """Return the judgement by Welch's interval of the logarithms, and by ranks of enough runs.

    A group with a single value is assumed to vary as much as the other.

    Source: B. L. Welch, The generalization of 'Student's' problem when several different population variances are
    involved, Biometrika 34 (1947).
    """
    if min(*base, *new) <= 0:
        return Judgement(ratio, reason="0 in some of the runs")
    logs = [[math.log(value) for value in values] for values in (base, new)]
    if min(len(base), len(new)) == 1:
        several = max(logs, key=len)
        error, num_degrees = math.sqrt(variance(several) * (1 + 1 / len(several))), len(several) - 1
    else:
        parts = [variance(values) / len(values) for values in logs]
        error, num_degrees = math.sqrt(sum(parts)), len(base) + len(new) - 2
        if error:
            squares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
            num_degrees = math.floor(sum(parts) ** 2 / squares)
    has_enough = math.comb(len(base) + len(new), len(base)) > _FEWEST_ORDERS
    return _around(ratio, error, num_degrees, rank_test(base, new) if has_enough else None)


def _around(ratio: float, error: float, num_degrees: int, p_value: float | None = None) -> Judgement:
    """Judge a ratio by the standard error of its logarithm; without a p-value, it is that of Student's t."""
    reach = math.exp(student_factor(num_degrees) * error)
    if p_value is None:
        p_value = student_probability(math.log(ratio) / error, num_degrees) if error else float(ratio == 1)
    return _judgement(ratio, ratio / reach, ratio * reach, p_value)


def _judgement(ratio: float, low: float, high: float, p_value: float) -> Judgement:
    return Judgement(ratio, low, high, p_value, p_value < _SIGNIFICANT and not low <= 1 <= high)
