"""The search for the largest value that fits."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charact.core.errors import UserError
from charact.measure.memory_sweep.integer_search import largest_fitting, smallest_taken


def bisected(fits: Callable[[int], bool], smallest: int, most: int) -> int | None:
    """The largest value that fits, by plain bisection."""
    low, high = smallest - 1, most + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if low >= smallest else None


def searched(needed: Callable[[int], float], limit: float, smallest: int, start: int, most: int, power: float = 1.0
             ) -> list[int]:
    """The values that a search tries, after checking its result against bisection."""
    asked: list[int] = []

    def room(value: int) -> float:
        assert smallest <= value <= most
        assert value not in asked
        asked.append(value)
        return limit - needed(value)

    found = largest_fitting(room, smallest, start, most, power)
    assert found == bisected(lambda value: needed(value) <= limit, smallest, most)
    assert (smallest if found is None else found) in asked
    assert found is None or found == most or found + 1 in asked
    return asked


@given(st.integers(1, 20), st.integers(0, 3000), st.integers(0, 3000), st.integers(-5, 3100))
def test_yes_and_no_are_enough_to_find_it(smallest: int, room: int, start: int, limit: int) -> None:
    most = smallest + room
    asked = searched(lambda value: -math.inf if value <= limit else math.inf, 0, smallest,
                     smallest + start % (room + 1), most)
    assert len(asked) <= 30


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 10**6)), max_size=20), st.integers(0, 1000),
       st.integers(0, 10**7), st.integers(0, 2000), st.integers(0, 2000), st.sampled_from([1.0, 2.0]))
@settings(max_examples=400)
def test_it_finds_what_bisection_finds_in_any_steps(steps: list[tuple[int, int]], slope: int, limit: int, room: int,
                                                    start: int, power: float) -> None:
    """Memory that never falls: a line with steps of any size, which fit nowhere, everywhere or up to any value."""
    def needed(value: int) -> float:
        return slope * value + sum(size for at, size in steps if value >= at)

    asked = searched(needed, limit, 1, 1 + start % (room + 1), 1 + room, power)
    assert len(asked) <= 3 * 11 + 4


MIB = 2**20


@pytest.mark.parametrize(("needed", "power", "most_asked"), [
    (lambda value: 300 * MIB + 11_111_111 * value, 1, 5),
    (lambda value: max(600 * MIB, 100 * MIB + 9_876_543 * value), 1, 6),  # the update's peak, then that of backward
    (lambda value: 2 * MIB * math.ceil(150 + 3.21 * value), 1, 6),  # whole segments
    (lambda value: 200 * MIB + 48_000 * value**2, 2, 6),  # the side of an image
    (lambda value: 200 * MIB + 48_000 * (32 * math.ceil(value / 32)) ** 2, 2, 16),  # sizes rounded up
    (lambda value: 300 * MIB + 54_321 * value + 111 * value**2, 1, 14),  # attention against the length
])
def test_memory_that_is_nearly_linear_takes_few_estimates(needed: Callable[[int], float], power: float,
                                                          most_asked: int) -> None:
    for limit in (2, 7.5, 16, 23, 80):
        assert len(searched(needed, limit * 2**30, 1, 2, 65_536, power)) <= most_asked, limit


def test_a_line_takes_four() -> None:
    assert searched(lambda value: 100 + 10 * value, 4321, 1, 2, 65_536) == [2, 16, 422, 423]


def test_a_line_that_fits_up_to_the_limit_takes_few() -> None:
    assert searched(lambda value: 100 + value, 1e6, 1, 1, 131_040) == [1, 8, 512, 32_768, 131_040]


def test_where_nothing_is_allowed_nothing_is_asked() -> None:
    def room(_: int) -> float:
        pytest.fail("asked")

    assert largest_fitting(room, 1, 1, 0) is None


def refused_below(least: int, error: type[Exception] = ValueError) -> Callable[[int], None]:
    def run(value: int) -> None:
        if value < least:
            raise error(f"{value} is too few")

    return run


@pytest.mark.parametrize(("least", "taken"), [(1, 1), (2, 2), (5, 8), (64, 64)])
def test_a_network_that_takes_no_single_sample_is_begun_with_more(least: int, taken: int) -> None:
    assert smallest_taken(refused_below(least), 1, 64) == taken


def test_one_that_takes_none_says_so() -> None:
    with pytest.raises(ValueError, match="64 is too few"):
        smallest_taken(refused_below(65), 1, 64)
    with pytest.raises(UserError, match="1 is too few"):
        smallest_taken(refused_below(2, UserError), 1, 64)
