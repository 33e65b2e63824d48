"""Numbers with units and shares, and factors of bus bandwidth, on both sides of each change of prefix."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core.bus_bandwidth import bus_factor
from charact.core.units import digits, quantity, scale, share


@pytest.mark.parametrize(("value", "unit", "text"), [
    (0.0995, "s", "99.5 ms"), (0.9996, "s", "1.00 s"), (0.9994, "s", "999 ms"), (5000, "s", "5,000 s"),
    (2e-13, "s", "0.000200 ns"), (0, "s", "0 s"), (-2e-3, "J", "-2.00 mJ"), (3e-6, "W", "3.00 µW"),
    (8.18e9, "FLOP", "8.18 GFLOP"), (0.25, "FLOP", "0.250 FLOP"), (1e21, "FLOP", "1,000 EFLOP"),
    (1023, "B", "1,023 B"), (1024, "B", "1.00 KiB"), (2**30, "B", "1.00 GiB"),
    (2**30 - 2000, "B", "1.00 GiB"), (2**30 - 2**20, "B", "1,023 MiB"),
    (1.5 * 2**30, "B", "1.50 GiB"), (2**73, "B", "8,192 EiB"),
    (1000, "B/s", "1.00 kB/s"), (999, "B/s", "999 B/s"), (0.5, "B", "0.500 B"),
])  # fmt: skip
def test_quantities(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@given(st.lists(st.floats(1e-8, 1e19), min_size=1, max_size=3), st.sampled_from(["s", "J", "FLOP", "B"]))
def test_the_largest_scaled_value_has_at_most_one_prefix_too_few(values: list[float], unit: str) -> None:
    factor, scaled_unit = scale(values, unit)
    base = 1024 if unit == "B" else 1000
    assert math.log(factor, base) == pytest.approx(round(math.log(factor, base)))
    largest = max(values) * factor
    assert largest < base or (unit, scaled_unit) == ("s", "s")
    assert largest >= 0.999 or scaled_unit == unit in ("FLOP", "B")
    assert scaled_unit.endswith(unit)
    assert scale([], unit) == (1, unit)


@pytest.mark.parametrize(("value", "text"), [
    (0, "0.0 %"), (0.000499, "< 0.1 %"), (0.0005, "0.1 %"), (0.301, "30.1 %"), (1, "100.0 %"), (-0.5, "-50.0 %")])
def test_shares(value: float, text: str) -> None:
    assert share(value) == text


@pytest.mark.parametrize(("value", "significant", "text"), [
    (0, 3, "0"), (1234567, 3, "1,234,567"), (0.012345, 3, "0.0123"), (99.96, 3, "100"), (9.5, 1, "10"),
    (-7, 2, "-7.0")])
def test_digits(value: float, significant: int, text: str) -> None:
    assert digits(value, significant) == text


@pytest.mark.parametrize(("operation", "of_2", "of_8"), [
    ("all_reduce", 1, 1.75), ("all_gather", 0.5, 0.875), ("reduce_scatter", 0.5, 0.875), ("broadcast", 1, 1),
    ("reduce", 1, 1)])
def test_factors_of_bus_bandwidth_are_those_of_nccl_tests(operation: str, of_2: float, of_8: float) -> None:
    assert (bus_factor(operation, 2), bus_factor(operation, 8)) == (of_2, of_8)
