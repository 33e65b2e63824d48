"""Lines through points, quantiles of Student's t from printed tables, and the sequential t-test by integration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom, mannwhitneyu

from charact.core.statistics import (
    FittedLine,
    consecutive_correlation,
    fitted_line,
    mean_interval_frac,
    median_interval,
    rank_test,
    sequential_factor,
    sequential_probability,
    student_factor,
    student_probability,
    trimmed_mean,
)

WHOLE = st.integers(-10_000, 10_000)


def test_slope_intercept_and_errors_are_those_worked_out_by_hand() -> None:
    # Residuals -0.1, 0.2, -0.1: their squares sum to 0.06 with one degree of freedom; the spread of x is 2.
    line = fitted_line([1, 2, 3], [1.9, 4.2, 5.9])
    assert line is not None
    assert (line.slope, line.intercept) == (pytest.approx(2), pytest.approx(0))
    assert line.errors == (pytest.approx(math.sqrt(0.06 / 2)), pytest.approx(math.sqrt(0.06 * (1 / 3 + 4 / 2))))
    assert line.factor == pytest.approx(12.706, abs=5e-4)


@pytest.mark.parametrize(("num_degrees", "factor"), [
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (29, 2.045), (30, 2.042), (120, 1.980),
])  # fmt: skip
def test_factors_are_those_of_printed_tables(num_degrees: int, factor: float) -> None:
    assert student_factor(num_degrees) == pytest.approx(factor, abs=6e-4)


@given(st.floats(0.01, 0.999), st.integers(1, 500))
def test_factor_and_probability_are_inverse(confidence: float, num_degrees: int) -> None:
    factor = student_factor(num_degrees, confidence)
    assert student_probability(factor, num_degrees) == pytest.approx(1 - confidence)
    assert student_probability(-factor, num_degrees) == pytest.approx(1 - confidence)


@given(st.integers(1, 700), st.floats(0.5, 0.99))
def test_the_interval_of_a_median_covers_it_with_at_least_the_confidence(num_values: int, confidence: float) -> None:
    interval = median_interval(range(num_values), confidence)
    below = 0 if interval is None else interval[0] + 1  # values up to the lower end
    miss_frac = 2 * binom.cdf(below - 1, num_values, 0.5)
    assert miss_frac <= 1 - confidence or interval is None or num_values > 500
    assert 2 * binom.cdf(below, num_values, 0.5) > (1 - confidence) * (1 if num_values <= 500 else 0.9)
    assert interval is None or sum(interval) == num_values - 1


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=50), st.integers(1, 3))
def test_a_correlation_is_that_of_consecutive_values_corrected(deviations: list[float], num_levels: int) -> None:
    values = np.array(deviations)
    squares = float(values @ values)
    assume(squares > 1e-9)
    lagged = float(values[1:] @ values[:-1]) / squares
    expected = lagged + (1 + 3 * lagged) * num_levels / len(values)
    assert consecutive_correlation(deviations, num_levels) == pytest.approx(min(max(expected, 0), 0.8))
    assert consecutive_correlation([0.0] * 3) == 0


@given(slope=WHOLE, intercept=WHOLE, xs=st.lists(st.integers(0, 1000), min_size=3, max_size=20, unique=True))
def test_points_on_a_line_give_it_back(slope: int, intercept: int, xs: list[int]) -> None:
    line = fitted_line(xs, [intercept + slope * x for x in xs])
    assert line is not None
    assert line.slope == pytest.approx(slope, abs=1e-5)
    assert line.intercept == pytest.approx(intercept, abs=1e-2)
    assert line.errors is not None
    assert max(line.errors) < 1e-2


def test_two_points_have_a_line_without_errors() -> None:
    assert fitted_line([1, 3], [10, 14]) == FittedLine(slope=2, intercept=8, errors=None)


@pytest.mark.parametrize("xs", [[], [5], [5, 5, 5]])
def test_fewer_than_two_places_have_no_line(xs: list[int]) -> None:
    assert fitted_line(xs, [1.0] * len(xs)) is None


def integrated_evidence(values: list[float]) -> float:
    """Return the likelihood of values over that with a mean of 0, integrated over deviations and effects."""
    x = np.array(values)
    deviations = np.exp(np.linspace(-6, 6, 1201))
    effects = np.linspace(-25, 25, 2001)
    weights = np.exp(-(effects**2) / 20)
    scaled = x[:, None, None] / deviations[:, None]
    with_effect = deviations ** -len(x) * (np.exp(-((scaled - effects) ** 2).sum(0) / 2) @ weights) / weights.sum()
    without = deviations ** -len(x) * np.exp(-(scaled[..., 0] ** 2).sum(0) / 2)
    return float(with_effect.sum() / without.sum())


@pytest.mark.parametrize("values", [[1.0, 1.2, 0.9], [0.3, -0.1, 0.2, 0.4], [2.0, 2.1, 1.9, 2.2, 2.0]])
def test_the_sequential_test_is_the_integral_over_its_mixture(values: list[float]) -> None:
    distance = float(np.mean(values) / np.std(values, ddof=1) * len(values) ** 0.5)
    assert sequential_probability(distance, len(values)) == pytest.approx(
        min(1, 1 / integrated_evidence(values)), rel=0.01)


@pytest.mark.parametrize("num_values", [3, 4, 10, 100])
def test_the_interval_ends_where_the_sequential_test_is_at_its_level(num_values: int) -> None:
    factor = sequential_factor(num_values)
    assert sequential_probability(factor, num_values) == pytest.approx(0.05)
    assert factor > student_factor(num_values - 1)
    assert sequential_factor(num_values, 0.99) > factor


def test_two_values_have_no_sequential_interval() -> None:
    assert sequential_factor(1) == sequential_factor(2) == math.inf
    assert sequential_probability(math.inf, 2) > 0.05


def test_a_trimmed_mean_is_that_worked_out_by_hand() -> None:
    # Without 1 and 90: the mean of 2, 3, 4. Winsorized: 2, 2, 3, 4, 4, whose squares about 3 sum to 4.
    mean, error, num_left = trimmed_mean([3, 1, 90, 2, 4], 0.2)
    assert (mean, error, num_left) == (3, pytest.approx(math.sqrt(4 / (3 * 2))), 3)


def test_nothing_trimmed_is_the_usual_mean_and_error() -> None:
    assert trimmed_mean([1, 2, 6], 0) == (3, pytest.approx(math.sqrt(7 / 3)), 3)
    assert trimmed_mean([5], 0) == (5, 0, 1)


def test_the_interval_of_a_mean_is_students_and_wider_for_correlated_values() -> None:
    # Deviations of ±1 in turn have no positive correlation: the error is sqrt(8 / 7 / 8), t of 7 degrees is 2.365.
    assert mean_interval_frac([9.0, 11.0] * 4) == pytest.approx(2.3646 * math.sqrt(8 / 7 / 8) / 10, rel=1e-4)
    drifting, mixed = [9.0] * 4 + [11.0] * 4, [9.0, 11.0, 11.0, 9.0, 9.0, 11.0, 9.0, 11.0]
    wide, narrow = mean_interval_frac(drifting), mean_interval_frac(mixed)
    assert wide is not None
    assert narrow is not None
    assert wide > 1.5 * narrow
    assert mean_interval_frac([1.0, 2.0]) is None
    assert mean_interval_frac([2.0] * 5) == 0


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_the_exact_rank_test_counts_the_choices_as_far_from_the_middle(ones: list[int], others: list[int]) -> None:
    def distance(chosen: tuple[int, ...]) -> float:
        rest = [index for index in range(len(values)) if index not in chosen]
        return abs(sum((values[one] > values[other]) - (values[one] < values[other])
                       for one in chosen for other in rest))

    values = [*ones, *others]
    choices = [distance(chosen) for chosen in itertools.combinations(range(len(values)), len(ones))]
    reached = distance(tuple(range(len(ones))))
    assert rank_test(ones, others) == pytest.approx(sum(each >= reached for each in choices) / len(choices))


@pytest.mark.parametrize(("ones", "others"), [
    (range(20), range(15, 40)), ([1, 2, 2, 3] * 5, [2, 3, 3, 4, 5] * 4), ([1] * 15 + [3] * 15, [2] * 30),
    (range(10), [4.5] * 8 + [20, 30])])
def test_the_rank_test_of_many_values_is_scipys_approximation(ones: list[float], others: list[float]) -> None:
    expected = mannwhitneyu(list(ones), list(others), method="asymptotic").pvalue
    assert rank_test(ones, others) == pytest.approx(min(expected, 1))
    assert rank_test(others, ones) == pytest.approx(min(expected, 1))


@pytest.mark.parametrize(("num_values", "confidence", "finite"), [
    (2, 1e-9, True), (1, 1e-9, False), (2, 0.95, False), (3, 0.95, True)])
def test_where_sequential_intervals_begin(num_values: int, confidence: float, finite: bool) -> None:
    assert math.isfinite(sequential_factor(num_values, confidence)) is finite


def test_means_of_0_have_no_relative_interval_and_negative_ones_a_positive() -> None:
    assert mean_interval_frac([-1.0, 0.0, 1.0]) is None
    assert mean_interval_frac([-9.0, -11.0] * 4) == mean_interval_frac([9.0, 11.0] * 4)
    assert mean_interval_frac([1.0, 2.0, 3.0]) == pytest.approx(4.30265 * math.sqrt(1 / 3 * 2) / 2)  # correlation 1/3
