"""Lines through points: known slopes and errors, and quantiles of Student's t from printed tables."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core.statistics import Line, fitted_line, student_factor

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


def test_a_wider_interval_takes_more_errors() -> None:
    assert student_factor(10, 0.99) == pytest.approx(3.169, abs=6e-4)


@given(slope=WHOLE, intercept=WHOLE, xs=st.lists(st.integers(0, 1000), min_size=3, max_size=20, unique=True))
def test_points_on_a_line_give_it_back(slope: int, intercept: int, xs: list[int]) -> None:
    line = fitted_line(xs, [intercept + slope * x for x in xs])
    assert line is not None
    assert line.slope == pytest.approx(slope, abs=1e-5)
    assert line.intercept == pytest.approx(intercept, abs=1e-2)
    assert line.errors is not None
    assert max(line.errors) < 1e-2


def test_two_points_have_a_line_without_errors() -> None:
    assert fitted_line([1, 3], [10, 14]) == Line(slope=2, intercept=8, errors=None)


@pytest.mark.parametrize("xs", [[], [5], [5, 5, 5]])
def test_fewer_than_two_places_have_no_line(xs: list[int]) -> None:
    assert fitted_line(xs, [1.0] * len(xs)) is None
