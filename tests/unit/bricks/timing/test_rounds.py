"""Rounds over bricks: who is visited, what happens between visits, and what a brick that fails costs the others."""

import contextlib
import itertools
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.hand_made_bricks import a_brick, a_layer, an_input, pointwise, product, value

from charact.bricks.suite.brick import Brick
from charact.bricks.timing.inputs import InputPool
from charact.bricks.timing.rounds import Rounds, rotated
from charact.measure.passes.timing import StopRule

CPU = torch.device("cpu")
BRICKS = [pointwise("relu.default"), product(), pointwise("tanh.default")]


def over(bricks: list[Brick]) -> Rounds:
    return Rounds(bricks, CPU, training=False, before={})


def test_a_round_visits_each_brick_once() -> None:
    rounds = over(BRICKS)
    for _ in range(3):
        rounds.round()
    assert rounds.num_rounds == 3
    assert rounds.left == [brick.id for brick in BRICKS]
    found = [(row["round"], row["brick"], row["call"]) for row in rounds.times]
    orders = [BRICKS, [BRICKS[1], BRICKS[2], BRICKS[0]], BRICKS]
    assert found == [(number, brick.id, call) for number in range(3) for brick in orders[number] for call in range(2)]
    assert all(row["host_s"] > 0 for row in rounds.times)


def test_rounds_begin_far_from_one_another() -> None:
    items = list(range(100))
    orders = [rotated(items, number) for number in range(8)]
    assert orders[0] == items
    for order in orders:
        first = order[0]
        assert order == [*range(first, 100), *range(first)]
    firsts = sorted(order[0] for order in orders)
    assert min(later - earlier for earlier, later in itertools.pairwise([*firsts, 100])) >= 5
    assert rotated([], 3) == []


def test_what_is_done_between_visits_is_no_bricks_time() -> None:
    rounds = over(BRICKS)
    calls: list[int] = []

    def between() -> None:
        calls.append(len(rounds.times))
        time.sleep(0.2)

    begun = time.perf_counter()
    rounds.round(between)
    assert calls == [0, 0, 0]  # a round's times are added when it is whole
    assert rounds.set_up_s + rounds.timed_s < time.perf_counter() - begun - 0.6


def test_a_round_that_is_interrupted_is_taken_in_by_no_brick() -> None:
    rounds = over(BRICKS)
    rounds.round()
    inside: list[bool] = []

    @contextlib.contextmanager
    def interruptible() -> Iterator[None]:
        inside.append(True)
        yield
        inside.append(False)
        assert rounds.num_rounds == 1  # what is taken in cannot be interrupted

    def signal_at_the_last() -> None:
        inside.append(True)
        if inside.count(True) == 1 + len(BRICKS):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rounds.round(signal_at_the_last, interruptible)
    assert {row["num_rounds"] for row in rounds.rows.values()} == {1}
    assert len(rounds.times) == len(BRICKS) * 2
    rounds.round(interruptible=interruptible)
    assert {row["num_rounds"] for row in rounds.rows.values()} == {2}


def test_a_brick_that_fails_is_left_out_and_the_others_go_on() -> None:
    other_sizes = a_brick([an_input(4), an_input(3)], [a_layer("add.Tensor", [value(0), value(1)], 2)], [2])
    rounds = over([BRICKS[0], other_sizes, BRICKS[1]])
    rounds.round()
    rounds.round()
    assert rounds.left == [BRICKS[0].id, BRICKS[1].id]
    row = rounds.rows[other_sizes.id]
    assert (row["status"], row["num_rounds"]) == ("error", 0)
    assert "must match the size" in row["reason"]
    assert {row["brick"] for row in rounds.times} == set(rounds.left)


def test_what_has_no_room_is_let_go_after_each_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(InputPool, "end_visit", lambda self: ended.append(1))
    rounds = over(BRICKS)
    rounds.round()
    assert len(ended) == len(BRICKS)
    rounds.describe()
    assert len(ended) == 2 * len(BRICKS)


def test_the_interval_is_that_of_the_sum_of_medians() -> None:
    def timed(seconds: list[float]) -> Rounds:
        times = [{"brick": BRICKS[0].id, "phase": "forward", "round": number, "call": call, "num_calls": 1,
                  "host_s": time_s + offset, "device_s": None}
                 for number, time_s in enumerate(seconds) for call, offset in enumerate((-0.5, 0.5))]
        row = {"brick": BRICKS[0].id, "status": "running", "reason": None, "num_rounds": len(seconds), "set_up_s": 1.0}
        return Rounds(BRICKS[:1], CPU, training=False, before={"bricks": [row], "brick_times": times})

    assert timed([1.0] * 5).interval_frac() is None
    steady, shaky = timed([4.0] * 6), timed([3.0, 5.0] * 8)
    assert steady.interval_frac() == 0
    assert (steady.num_rounds, steady.timed_s, steady.set_up_s) == (6, 48.0, 1.0)
    noise = np.random.default_rng(1).choice([3.0, 5.0], (50, 16))
    spread = 1.96 * np.median(noise, axis=1).std() / 4
    assert shaky.interval_frac() == pytest.approx(spread, rel=0.5)
    limits = [(0.5, 99, 99.0, "precision"), (0.0, 16, 99.0, "max_rounds"), (0.0, 17, 129.0, "max_seconds"),
              (0.0, 17, 129.1, None)]
    for target, rounds, seconds, reason in limits:
        assert shaky.ended_by(StopRule(target, rounds, seconds)) == reason
