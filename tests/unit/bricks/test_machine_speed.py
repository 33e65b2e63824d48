"""A machine's pace that is made up, found again from what bricks took: the benchmark's second report rests on it."""

from math import pi, sin
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from brick_models import Measured
from brick_pace import Pace

from charact.bricks.timing.rounds import rotated

NUM_BRICKS, NUM_ROUNDS = 400, 12
MODEL_S = 0.05
USUAL_S = {f"b{number}": 1e-4 * (1 + number % 7) for number in range(NUM_BRICKS)}


def drifting(turn: int, place: int) -> float:
    """A machine that is up to a fifth slower and faster, each for five turns."""
    return 1 + 0.2 * sin(2 * pi * (turn + place / NUM_BRICKS) / 10)


def steady(turn: int, place: int) -> float:
    return 1.0


def rounds_of(pace: Any) -> dict[int, Any]:
    """Each brick called twice at each visit, in the order in which rounds visit them."""
    return {1: SimpleNamespace(times=[
        {"brick": brick, "round": turn, "phase": "forward", "call": call, "host_s": USUAL_S[brick] * pace(turn, place)}
        for turn in range(NUM_ROUNDS) for place, brick in enumerate(rotated(list(USUAL_S), turn))
        for call in range(2)])}


def model_with(pace: Any) -> Measured:
    """A model that runs twice in each turn, at another place each time."""
    places = [(turn, (turn * 150) % NUM_BRICKS) for turn in range(NUM_ROUNDS)]
    return Measured(member=None, by_g={}, visits=[[MODEL_S * pace(*place)] * 2 for place in places],  # type: ignore[arg-type]
                    places=places)


def spread(numbers: list[float]) -> float:
    return max(numbers) / min(numbers) - 1


def test_models_and_bricks_lose_the_drift_and_stay_as_far_apart() -> None:
    rounds, measured = rounds_of(drifting), model_with(drifting)
    pace = Pace(rounds)
    model, bricks = pace.model(measured), pace.bricks(1, rounds[1].times)
    assert model.places == measured.places
    assert pace.spread == pytest.approx(0.2 / 2**0.5, rel=0.1)
    assert spread(measured.seconds) > 0.3
    assert spread(model.seconds) < 0.06
    assert [row["brick"] for row in bricks] == [row["brick"] for row in rounds[1].times]
    for name in ("b3", "b250"):
        before, after = ([row["host_s"] for row in rows if row["brick"] == name]
                         for rows in (rounds[1].times, bricks))
        assert spread(before) > 0.3
        assert spread(after) < 0.06
        assert median(model.seconds) / median(after) == pytest.approx(MODEL_S / USUAL_S[name], rel=0.06)


def test_a_steady_machine_changes_nothing() -> None:
    rounds = rounds_of(steady)
    pace = Pace(rounds)
    assert pace.spread == 0
    assert pace.bricks(1, rounds[1].times) == rounds[1].times
    assert pace.model(model_with(steady)).visits == model_with(steady).visits


def test_one_brick_that_is_slow_by_itself_is_not_the_machine() -> None:
    rounds = rounds_of(lambda turn, place: 3.0 if (turn, place) == (2, 100) else 1.0)
    pace = Pace(rounds)
    assert pace.spread == 0
    assert pace.bricks(1, rounds[1].times) == rounds[1].times
