"""The search for the largest value that fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.measure.fitting import largest_fitting


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
