"""What tells bricks apart that do the same, and which of them are chosen to be timed."""

import json
from typing import Any

import pytest
from support.hand_made_bricks import a_brick, a_layer, an_input, value

from charact.bricks.suite.brick import literals
from charact.bricks.suite.prediction import Sizes, chosen_to_time, sizes_of


def row(shapes: list[list[int]], numbers: list[float] | None = None, **facts: Any) -> dict[str, Any]:
    return {"kind": "sequence", "layer_types": '["mm"]', "input_shapes": json.dumps(shapes),
            "literals": json.dumps(numbers or []), "flop": None, "bytes": None, **facts}  # fmt: skip


def test_literals_are_the_numbers_among_the_arguments() -> None:
    arguments = [value(0), value(1), {"float": "inf"}, [2, 2], 0.5, True, None]
    brick = a_brick([an_input(1, 3, 8, 8), an_input(4, 3, 3, 3, kind="weight")],
                    [a_layer("conv2d.default", arguments, 2, groups=4)], [2])
    assert literals(brick) == [2.0, 2.0, 0.5, 1.0, 4.0]


def test_sizes_are_logarithms_and_families_are_of_the_same_axes() -> None:
    one = sizes_of(row([[3, 7], [7, 1]], [15.0], flop=1e4, bytes=3e3))
    assert one.numbers == pytest.approx((2, 3, 3, 1, 4))
    assert one.work == pytest.approx((1, 2))
    same = sizes_of(row([[31, 7], [7, 1]], [0.0]))
    assert same.family == one.family
    assert same.work == (0, 0)
    for other in (row([[3, 7]], [15.0]), row([[3, 7], [7]], [15.0]), row([[3, 7], [7, 1]]),
                  row([[3, 7], [7, 1]], [15.0], layer_types='["add"]')):  # fmt: skip
        assert sizes_of(other).family != one.family


def zoo() -> dict[str, Sizes]:
    """A large family on a line, and a brick of its own."""
    return {f"a{size:03}": Sizes("a", "a", (float(size),), (0.0, 0.0)) for size in range(100)} | {
        "lonely": Sizes("b", "b", (), (0.0, 0.0))}


def test_each_family_is_spread_and_then_those_that_tell_most_are_taken() -> None:
    few = chosen_to_time(zoo(), [], 0.01)
    assert "lonely" in few
    assert {"a000", "a099"} <= few
    assert len(few) == 11  # a tenth of the family, and the one of its own
    most = chosen_to_time(zoo(), [{"a033": 9, "a034": 1}, {"a071": 7, "a072": 1, "unknown": 9}], 0.13)
    assert most - few == {"a033", "a071", "a072"}
    assert chosen_to_time(zoo(), [], 1.0) == set(zoo())


def test_a_model_of_few_bricks_needs_them_more_than_one_of_many() -> None:
    many = {f"a{size:03}": 1 for size in range(1, 99)}
    assert {"a041", "a042"} <= chosen_to_time(zoo(), [many, {"a041": 1, "a042": 1}], 0.13)


def test_what_costs_little_comes_first_where_both_tell_as_much() -> None:
    alike = {name: Sizes(each.family, each.layer_types, each.numbers, (30.0 if name == "a041" else 20.0, 0.0))
             for name, each in zoo().items()}
    assert chosen_to_time(alike, [{"a041": 1}, {"a042": 1}], 0.118) >= {"a042"}
    assert "a041" not in chosen_to_time(alike, [{"a041": 1}, {"a042": 1}], 0.118)
