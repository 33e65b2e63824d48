"""Base units to words."""

import math

import pytest

from charact.core.units import scale
from charact.views.tables import format as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0995, "99.5 ms"), (0.1, "100 ms"), (0.09996, "100 ms"), (0.9996, "1.00 s"), (12.34, "12.3 s"),
        (4321.0, "4,321 s"), (2.5e-6, "2.50 µs"), (3e-9, "3.00 ns"), (0.0, "0 s"), (-0.002, "-2.00 ms"),
    ],
)  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert fmt.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(310e6, "296 MiB"), (64e9, "59.6 GiB"), (12.0, "12.0 B"), (0.0, "0 B")])
def test_bytes_are_decimal(value: float, text: str) -> None:
    assert fmt.num_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.301, "30.1 %"), (1.0, "100.0 %"), (0.0001, "< 0.1 %"), (0.0, "0.0 %")]
)
def test_share(value: float, text: str) -> None:
    assert fmt.share(value) == text


def test_rates_and_counts() -> None:
    assert fmt.flop_rate(4.12e11) == "412 GFLOP/s"
    assert fmt.num_flop(8.18e9) == "8.18 GFLOP"
    assert fmt.number(25_557_032) == "25,557,032"
    assert fmt.number(80.42) == "80.4"
    assert fmt.number(0.00123) == "0.00123"


def test_an_intervals_ends_share_a_unit_and_can_be_told_apart() -> None:
    assert fmt.interval(0.1001, 0.1008) == "100.1–100.8 ms"
    assert fmt.interval(0.9995, 1.001) == "0.9995–1.001 s"


@pytest.mark.parametrize(
    "function", [fmt.seconds, fmt.duration, fmt.num_bytes, fmt.num_flop, fmt.flop_rate, fmt.share, fmt.number]
)
@pytest.mark.parametrize("value", [None, float("nan")])
def test_what_is_missing_says_why(function: object, value: float | None) -> None:
    assert callable(function)
    assert function(value, "no CUDA device") == "n/a (no CUDA device)"
    assert function(value) == "n/a"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "250 ms"), (119.4, "119 s"), (125.0, "2 min 5 s"), (3599.7, "1 h 0 min"), (18_720.0, "5 h 12 min")],
)
def test_long_spans_are_in_minutes_and_hours(value: float, text: str) -> None:
    assert fmt.duration(value) == text


def test_accuracies_are_percentages() -> None:
    assert fmt.metric("token_accuracy", 0.9512) == "95.1 %"
    assert fmt.metric("perplexity", 985.2) == "985"
    assert fmt.metric("loss", None, "not a number") == "n/a (not a number)"


def test_a_scale_fits_the_largest_value() -> None:
    assert scale([0.002, 0.4], "s") == (1e3, "ms")
    assert scale([], "B") == (1.0, "B")


@pytest.mark.parametrize(("value", "text"), [
    (3.14e-7, "3.1e-07"), (0.0, "0"), (math.inf, "not finite"), (None, "n/a (not checked)"),
    (math.nan, "n/a (not checked)"),
])  # fmt: skip
def test_relative_errors(value: float | None, text: str) -> None:
    assert fmt.error(value, "not checked") == text


@pytest.mark.parametrize(("value", "text"), [(1.039, "× 1.04"), (2.0, "× 2.00"), (None, "n/a (no pass)")])
def test_ratios(value: float | None, text: str) -> None:
    assert fmt.ratio(value, "no pass") == text
