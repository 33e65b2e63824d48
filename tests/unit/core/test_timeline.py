"""Sums of phases, the phase of a moment, and of the gaps between phases."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core.gap_phases import gap_phases, with_gaps
from charact.core.timeline import Interval, Iteration, at, iteration_rows, phase_at, sums, total_s, with_rest
from charact.record.schema import PHASES


@given(st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 50), st.integers(0, 50))), st.integers(0, 50))
def test_phases_and_the_rest_sum_to_the_whole(parts: list[tuple[str, int, int]], at_end: int) -> None:
    """Spans one after the other, with gaps before each and at the end."""
    spans, reached, alone = [], 0, 0
    for phase, gap, length in parts:
        spans.append((reached + gap, reached + gap + length, phase))
        reached, alone = reached + gap + length, alone + gap + (length if phase == "other" else 0)
    lengths = with_rest(sums(spans), reached + at_end)
    assert sum(lengths.values()) == reached + at_end
    assert lengths["other"] == alone + at_end
    assert all(lengths[phase] == sum(length for name, _, length in parts if name == phase)
               for phase in lengths if phase != "other")


SECOND = 10**9


def test_iterations_are_summed_and_made_rows_on_both_clocks() -> None:
    on_host = Iteration(0, 3 * SECOND, [Interval("data", SECOND, 2 * SECOND)])
    on_both = Iteration(0, 2 * SECOND, [Interval("data", 0, 2 * SECOND, 5, 0, SECOND // 4),
                                        Interval("data", 2 * SECOND, 2 * SECOND, 6, SECOND, SECOND)], 0, SECOND)
    assert total_s([on_host, on_both]) == ({"data": 3.0, "other": 2.0}, {"data": 0.25, "other": 0.75})
    assert [tuple(row.values()) for row in iteration_rows([on_host, on_both], lambda each: str(each.owner))] == [
        (0, "data", "0", 1.0, None), (0, "other", None, 2.0, None),
        (1, "data", "5", 2.0, 0.25), (1, "data", "6", 0.0, 0.0), (1, "other", None, 0.0, 0.75)]
    assert (on_host.wall_s, on_both.wall_s) == (3.0, 1.0)


def test_device_times_need_all_intervals() -> None:
    partly = Iteration(0, 100, [Interval("data", 0, 50, 0, 10, 20), Interval("forward", 50, 80, 0, 20)], 0, 100)
    assert all(row["device_s"] is None for row in iteration_rows([partly]))


def test_an_interval_or_iteration_at_a_moment() -> None:
    iteration = Iteration(0, 50, [Interval("forward", 10, 20), Interval("loss", 20, 25)])
    assert [iteration.phase_at(moment) for moment in (9, 10, 19, 20, 25)] == [
        "other", "forward", "forward", "loss", "other"]
    assert at([iteration], 50) is None
    assert at([iteration], 49) is iteration


def test_a_moment_is_in_the_phase_that_it_lies_in() -> None:
    phases = [(10, 20, "forward"), (20, 25, "loss"), (30, 40, "backward")]
    assert [phase_at(phases, moment) for moment in (9, 10, 19, 20, 25, 29, 30, 39, 40)] == [
        None, "forward", "forward", "loss", None, None, "backward", "backward", None]
    assert phase_at([], 5) is None


@pytest.mark.parametrize(("phases", "found"), [
    ([(0, 2, "data"), (3, 5, "forward"), (7, 9, "backward")], [(5, 7, "loss")]),
    ([(0, 2, "forward"), (3, 5, "forward"), (5, 6, "loss"), (7, 8, "update"), (9, 10, "backward")],
     []),
    ([(0, 1, "data"), (2, 3, "update"), (5, 6, "loss"), (7, 8, "backward")], [(3, 5, "forward")]),
    ([(0, 1, "data"), (3, 4, "backward"), (6, 7, "backward")], [(1, 3, "forward"), (4, 6, "loss")]),
    ([(0, 1, "forward"), (3, 4, "backward"), (6, 7, "update")], [(1, 3, "loss")]),
    ([(0, 1, "data"), (3, 4, "forward"), (6, 7, "data")], []),
    ([], []),
])
def test_a_loss_by_hand_and_a_forward_that_was_not_seen_are_filled_in(phases: Any, found: Any) -> None:
    assert with_gaps(phases) == sorted([*phases, *found])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(PHASES))))
def test_nothing_overlaps_and_nothing_is_lost(steps: list[tuple[int, int, str]]) -> None:
    phases, now = [], 0
    for gap, length, name in steps:
        phases.append((now + gap, now + gap + length, name))
        now += gap + length
    filled = with_gaps(phases)
    assert all(phases.count(one) <= filled.count(one) for one in phases)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(filled))


@pytest.mark.parametrize(("roles", "expected"), [
    ("f+ b+", {1: ("loss", 1)}), ("f+ f- b+", {2: ("loss", 2)}), ("f+ b-", {}), ("f+ b- b+", {2: ("loss", 2)}),
    ("b+", {0: ("forward", 0)}), ("? b+", {0: ("forward", 1), 1: ("forward", 1)}),
    ("a+ b+", {1: ("forward", 1)}), ("f+ a+ b+", {1: ("loss", 2), 2: ("loss", 2)}),
    ("f+ l+ b+ b+", {1: ("loss", 2)}), ("f+ l+ r+ b+ b+", {3: ("forward", 3), 4: ("loss", 4)}),
    ("f+ l+ f- b+", {}), ("f+ l+ f+ b+ b+", {3: ("loss", 3), 4: ("loss", 4)}), ("r+ b+", {1: ("forward", 1)}),
    ("f+ r+ b+", {2: ("forward", 2)}), ("f- b+", {1: ("forward", 1)}), ("b+ b+", {0: ("forward", 0), 1: ("loss", 1)}),
])
def test_gaps_before_steps_by_role(roles: str, expected: dict[int, tuple[str, int]]) -> None:
    names = {"f": "forward", "b": "backward", "l": "loss", "r": "restart", "a": "apart"}
    steps = [(names.get(step[0]), step[1:] == "+") for step in roles.split()]
    assert gap_phases(steps) == [expected.get(index) for index in range(len(steps))]
    assert gap_phases([("backward", True)], None) == [None]
