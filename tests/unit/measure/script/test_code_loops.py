"""Loops inside of an iteration are told from those over iterations."""

from collections.abc import Callable
from typing import Any

import pytest

from charact.measure.script.spans.stack_sampler import CodeLoops


def straight(values: list[float]) -> float:
    total = sum(values)
    return total


def looping(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


@pytest.mark.parametrize(("function", "offset", "expected"), [
    (straight, 1, False), (looping, 1, False), (looping, 3, True), (looping, 4, False)])
def test_lines_in_a_loop_are_told_apart(function: Any, offset: int, expected: bool) -> None:
    code = function.__code__
    assert CodeLoops().is_inside(code, code.co_firstlineno + offset) is expected


def train(step: Callable[[int], None]) -> int:
    total = 0
    for epoch in range(2):
        for batch in range(3):
            for value in range(batch):
                total += value
            step(epoch)
    return total


def test_loops_over_iterations_do_not_count() -> None:
    loops = CodeLoops()
    assert not loops.are_known
    train(lambda _: loops.note("step"))
    assert loops.are_known
    code, first = train.__code__, train.__code__.co_firstlineno
    inside = [offset for offset in range(1, 8) if loops.is_inside(code, first + offset)]
    assert inside == [4, 5]  # its head and its body


def test_only_the_first_events_of_a_kind_are_looked_at() -> None:
    loops = CodeLoops()
    for number in range(10):
        loops.note("step")
        if number > 5:
            train(lambda _: loops.note("step"))
    code, first = train.__code__, train.__code__.co_firstlineno
    assert loops.is_inside(code, first + 6)
