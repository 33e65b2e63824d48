"""The search for the largest value that fits."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core.errors import UserError
from charact.measure.memory_sweep.integer_search import largest_fitting, smallest_taken


@given(st.integers(1, 20), st.integers(0, 3000), st.integers(0, 3000), st.integers(-5, 3100))
def test_it_is_found_wherever_it_lies_and_so_is_that_the_next_one_is_too_large(
        smallest: int, room: int, start: int, limit: int) -> None:
    most, asked = smallest + room, list[int]()

    def fits(value: int) -> bool:
        assert smallest <= value <= most
        assert value not in asked
        asked.append(value)
        return value <= limit

    found = largest_fitting(fits, smallest, smallest + start % (room + 1), most)
    assert found == (min(limit, most) if limit >= smallest else None)
    assert (smallest if found is None else found) in asked
    assert found is None or found == most or found + 1 in asked
    assert len(asked) <= 30


def test_it_doubles_and_then_halves() -> None:
    asked = []
    assert largest_fitting(lambda value: asked.append(value) or value <= 11, 1, 1, 1000) == 11  # type: ignore[func-returns-value]
    assert asked == [1, 2, 4, 8, 16, 12, 10, 11]


def test_where_nothing_is_allowed_nothing_is_asked() -> None:
    def fits(_: int) -> bool:
        pytest.fail("asked")

    assert largest_fitting(fits, 1, 1, 0) is None


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
