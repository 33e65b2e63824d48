"""Ratios, their intervals and the rank test, on numbers whose truth is known."""

import math
import random
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, rankdata

from charact.analysis.common.block_bootstrap import resampled_medians
from charact.analysis.common.significance import Judgement, Pool, Sample, block_medians, judged, resampled, timed
from charact.core.statistics import median_interval, rank_test, student_probability

TIMES = st.lists(st.floats(0.5, 2.0), min_size=6, max_size=40)


def noise(seed: int, num_values: int = 100, *, center: float = 1.0) -> list[float]:
    generator = random.Random(seed)
    return [center * math.exp(generator.gauss(0, 0.02)) for _ in range(num_values)]


def drifting(seed: int, num_values: int = 100) -> list[float]:
    """Values of which each carries on 80 % of what the one before was off by."""
    generator, found, off = random.Random(seed), [], 0.0
    for _ in range(num_values):
        off = 0.8 * off + generator.gauss(0, 0.02)
        found.append(math.exp(off))
    return found


def share(happens: Callable[[int], bool], num_trials: int = 100) -> float:
    return sum(happens(trial) for trial in range(num_trials)) / num_trials


def pooled(*samples: Sample) -> Sample:
    pool = Pool()
    for sample in samples:
        pool.add(sample)
    return pool.sample()


def runs(*values: float) -> Sample:
    return pooled(*map(Sample, values))


MANY = st.lists(st.integers(0, 9), min_size=14, max_size=28)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_the_rank_test_is_the_share_of_orders_that_are_as_far_from_the_mean(ones: list[int], others: list[int]) -> None:
    ranks = rankdata([*ones, *others])
    middle = len(ones) * (len(ranks) + 1) / 2
    far = [abs(sum(some) - middle) >= abs(sum(ranks[:len(ones)]) - middle) for some in combinations(ranks, len(ones))]
    assert rank_test(ones, others) == pytest.approx(np.mean(far))


@given(MANY, MANY)
def test_the_rank_test_of_many_values_is_mann_whitneys(ones: list[int], others: list[int]) -> None:
    assume(len({*ones, *others}) > 1)
    assert rank_test(ones, others) == pytest.approx(mannwhitneyu(ones, others, method="asymptotic").pvalue)
    assert rank_test([1.0] * 50, [1.0] * 70) == 1


@pytest.mark.parametrize(("num_base", "num_new"), [
    (1, 2), (1, 39), (1, 60), (2, 7), (2, 8), (2, 9), (3, 5), (4, 4), (12, 12),
])
def test_a_difference_without_doubt_is_found_whatever_the_number_of_runs(num_base: int, num_new: int) -> None:
    generator = random.Random(0)
    base, new = (runs(*(level * generator.uniform(0.999, 1.001) for _ in range(count)))
                 for level, count in ((1.0, num_base), (1.5, num_new)))
    assert judged(base, new).significant
    assert judged(new, base).significant


def test_blocks_hold_all_values_once() -> None:
    assert block_medians([float(number) for number in range(30)]) == tuple(2 * n + 0.5 for n in range(15))
    assert block_medians([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0]) == (1, 2, 3.5, 5, 6, 70)


def test_medians_of_independent_values_scatter_as_theory_says() -> None:
    # The median's standard error is 1.2533 standard deviations over sqrt(n).
    scatter = [float(np.log(resampled(noise(seed), np.median)).std()) for seed in range(30)]
    assert np.mean(scatter) == pytest.approx(1.2533 * 0.02 / 10, rel=0.2)


def test_false_alarms_and_differences_found() -> None:
    def alarms(trial: int) -> bool:
        return judged(timed(noise(2 * trial)), timed(noise(2 * trial + 1))).significant

    assert share(alarms) <= 0.06
    assert share(lambda trial: judged(timed(noise(trial)), timed(noise(trial + 500, center=1.05))).significant) >= 0.99


def test_blocks_see_that_iterations_are_alike() -> None:
    def alarm(kind: Callable[[list[float], list[float]], bool]) -> Callable[[int], bool]:
        return lambda trial: kind(drifting(2 * trial), drifting(2 * trial + 1))

    of_iterations = share(alarm(lambda one, other: rank_test(one, other) < 0.05))
    ours = share(alarm(lambda one, other: judged(timed(one), timed(other)).significant))
    assert of_iterations > 0.3
    assert ours < of_iterations / 2


def test_runs_are_the_repeats_where_there_are_several() -> None:
    # Means of the logarithms 0 and 0.1, each of variance 0.01 / 3 in 3 runs: Welch's error is sqrt(2 * 0.01 / 9),
    # of 4 degrees, whose t is 2.776.
    base = [math.exp(off) for off in (-0.05, -0.02, 0.07)]
    new = [1.1 * value for value in base]
    found = judged(runs(*base), runs(*new))
    error = math.sqrt(2 * (0.05**2 + 0.02**2 + 0.07**2) / 2 / 3)
    assert found.ratio == pytest.approx(1.1)
    assert found.low == pytest.approx(1.1 * math.exp(-2.7764 * error), rel=1e-4)
    assert found.high == pytest.approx(1.1 * math.exp(2.7764 * error), rel=1e-4)
    assert found.p_value == pytest.approx(student_probability(math.log(1.1) / error, 4))
    assert not found.significant


def test_runs_that_lie_apart_are_found() -> None:
    four = judged(runs(1.0, 1.01, 1.02, 1.03), runs(1.1, 1.11, 1.12, 1.13))
    assert four.p_value == pytest.approx(rank_test([1, 2, 3, 4], [5, 6, 7, 8]))
    assert four.significant
    assert judged(runs(1.0, 1.001), runs(1.1, 1.101)).significant
    assert judged(runs(1.0, 1.001, 1.002), Sample(1.1)).significant
    assert not judged(runs(1.0, 1.1, 0.9), Sample(1.1)).significant
    # A single new run lies anywhere that runs do: sqrt(1 + 1/3) of their standard deviation, 2 degrees.
    base = [math.exp(off) for off in (-0.01, 0.0, 0.01)]
    found = judged(runs(*base), timed([1.0] * 50))
    assert found.high == pytest.approx(math.exp(4.3027 * 0.01 * math.sqrt(4 / 3)), rel=1e-4)
    base = Sample(1893072.0, (1893072.0,), of_runs=True)
    found = judged(base, Sample(1893072.0000000012, (1893072.0,) * 3, of_runs=True))
    assert (found.ratio, found.significant) == (1.0, False)
    assert found.p_value == 1.0


def test_what_is_counted_differs_or_does_not() -> None:
    assert judged(Sample(100.0, exact=True), Sample(101.0, exact=True)) == Judgement(
        1.01, significant=True, reason="a count: no variation")
    assert not judged(Sample(100.0, exact=True), Sample(100.0, exact=True)).significant
    assert judged(runs(100.0, 100.0), runs(102.0, 102.0)).significant


@pytest.mark.parametrize(("base", "new", "reason"), [
    (timed([1.0] * 5), timed([1.0] * 6), "fewer than 6 iterations"),
    (timed([1.0] * 6), Sample(1.0, reason="published without an interval"), "published without an interval"),
    (timed([0.0] * 6), timed([1.0] * 6), "0 in the baseline"),
    (timed([1.0] * 6), timed([0.0] * 6), "0 here"),
    (timed([0.0] * 4 + [1.0] * 5), timed([1.0] * 6), "0 in some of the iterations"),
    (Sample(1.0, basis="10 epochs"), Sample(1.0, basis="1 epoch"),
     "not comparable: 1 epoch here, 10 epochs in the baseline"),
    (runs(0.0, 1.0, 1.0), runs(1.0, 1.0), "0 in some of the runs"),
])
def test_what_cannot_be_told_has_a_reason(base: Sample, new: Sample, reason: str) -> None:
    found = judged(base, new)
    assert (found.reason, found.low, found.p_value, found.significant) == (reason, None, None, False)


def test_runs_with_different_amounts_of_work_do_not_compare() -> None:
    varying = pooled(Sample(1.0, basis="10 epochs"), Sample(0.5, basis="5 epochs"))
    assert judged(Sample(1.0, basis="10 epochs"), varying).ratio is None


@settings(deadline=None)
@given(TIMES)
def test_a_measurement_against_itself_is_exactly_one(values: list[float]) -> None:
    found = judged(timed(values), timed(values))
    assert found.ratio == 1
    assert found.p_value == 1
    assert not found.significant


@settings(deadline=None)
@given(st.lists(TIMES, min_size=1, max_size=5), st.lists(TIMES, min_size=1, max_size=5))
def test_what_is_swapped_is_inverted(base: list[list[float]], new: list[list[float]]) -> None:
    one, other = (pooled(*map(timed, side)) for side in (base, new))
    there, back = judged(one, other), judged(other, one)
    assert there.ratio is not None
    assert back.ratio == pytest.approx(1 / there.ratio)
    if there.low is not None and there.high is not None:
        assert (back.low, back.high) == (pytest.approx(1 / there.high), pytest.approx(1 / there.low))
        assert back.p_value == pytest.approx(there.p_value)
        assert there.low <= there.high


@settings(deadline=None)
@given(TIMES, TIMES, st.floats(0.001, 1000))
def test_units_do_not_matter(base: list[float], new: list[float], factor: float) -> None:
    found = judged(timed(base), timed(new))
    scaled = judged(*(timed([factor * value for value in values]) for values in (base, new)))
    assert scaled[:3] == pytest.approx(found[:3])


@pytest.mark.parametrize("num_values", [6, 7, 10, 31, 64, 1000])
def test_the_medians_of_resamples_are_those_of_sorting(num_values: int) -> None:
    generator = np.random.default_rng(num_values)
    for values in (generator.random(num_values), generator.integers(0, 5, num_values).astype(float)):
        assert resampled_medians(values).tolist() == resampled(values, np.median).tolist()


def test_intervals_of_iterations() -> None:
    values = drifting(1)
    sample = timed(values)
    assert sample.draws is not None
    (low, high), least = np.quantile(sample.draws, (0.025, 0.975)), median_interval(values)
    assert least is not None
    assert sample.interval == (min(low, least[0]), max(high, least[1]))
    assert sample.interval[1] - sample.interval[0] > 1.3 * (least[1] - least[0])  # drift widens it
    assert share(lambda trial: _contains(timed(noise(trial)[:8]), 1.0)) >= 0.9


def _contains(sample: Sample, value: float) -> bool:
    assert sample.interval is not None
    return sample.interval[0] <= value <= sample.interval[1]


@pytest.mark.parametrize(("sample", "interval"), [
    (timed([1.0] * 5), None), (timed([2.0] * 6), (2.0, 2.0)), (Sample(3.0, exact=True), None),
    (Sample(0.5, error_frac=0.1), (0.402, 0.598)),
])
def test_an_interval_is_missing_or_exact(sample: Sample, interval: tuple[float, float] | None) -> None:
    assert sample.interval == (None if interval is None else pytest.approx(interval))
