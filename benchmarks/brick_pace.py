"""How fast a machine that is shared with strangers was when each model and each brick ran.

Where the speed of a machine changes for minutes by a tenth and more, few visits of a model meet other speeds than the
many of its bricks do, and what is held against one another is the weather. What the bricks around a visit took, as a
share of what they take usually, tells the speed at that time; times are divided by it. All bricks together take as long
as before, so that this tells nothing of how bricks and models compare.
"""

from dataclasses import replace

import pandas as pd
from brick_models import Measured

from charact.bricks.timing.rounds import Rounds
from charact.record.reader import Rows

NEIGHBOURS = 81
"""Visits of bricks, half of them before and half behind, whose median tells the pace: some seconds."""
_SHORTEST_S = 2e-5
"""What takes less varies for reasons of its own."""


class Pace:
    """The machine's pace at each visit of a brick: 1 where its neighbours take as long as usual, more where longer.

    Args:
        rounds: over the bricks of each suite, in the order of a turn.
    """

    def __init__(self, rounds: dict[int, Rounds]) -> None:
        rows = [(row["round"], g, row["brick"], row["host_s"]) for g, each in rounds.items() for row in each.times]
        times = pd.DataFrame(rows, columns=["round", "g", "brick", "host_s"])
        visits = times.groupby(["round", "g", "brick"], sort=False)["host_s"].sum().sort_index(
            level="round", kind="stable", sort_remaining=False)
        usual = visits.groupby(["g", "brick"]).transform("median")
        calls = times.groupby(["round", "g", "brick"]).size().median()
        ratios = (visits / usual).where(usual >= _SHORTEST_S * calls)
        self._paces = ratios.groupby("round").transform(
            lambda turn: turn.rolling(NEIGHBOURS, center=True, min_periods=1).median().ffill().bfill())
        self._by_turn = {turn: paces.to_numpy() for turn, paces in self._paces.groupby("round")}

    @property
    def spread(self) -> float:
        """Standard deviation."""
        return float(self._paces.std())

    def bricks(self, g: int, times: Rows) -> Rows:
        """The times of a suite's bricks at the usual pace."""
        paces = self._paces.xs(g, level="g").to_dict()
        return [{**row, "host_s": row["host_s"] / paces[row["round"], row["brick"]]} for row in times]

    def model(self, model: Measured) -> Measured:
        """The model, its iterations at the usual pace."""
        paces = [self._by_turn[turn] for turn, _ in model.places]
        return replace(model, visits=[
            [seconds / turn[min(place, len(turn) - 1)] for seconds in visit]
            for visit, turn, (_, place) in zip(model.visits, paces, model.places, strict=True)])
