"""Brick times, measured or predicted, from the record of a suite's run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from charact.analysis.common.significance import MIN_ITERATIONS, Values, resampled
from charact.bricks.suite.families import Sizes, sizes_of
from charact.core.errors import UserError
from charact.record.reader import Run
from charact.record.schema import LEFT_OUT

CLOCKS = ("host_s", "device_s")


class BrickTimes:
    """Times of the bricks of one case of a suite's run.

    `bricks` maps each brick's identifier to its row of the table `bricks`; `facts` holds the facts of that pass.

    Raises:
        UserError: the case does not belong to a suite's run.
    """

    def __init__(self, run: Run, case: str) -> None:
        passes = run.passes(case)
        if "bricks" not in passes:
            raise UserError(f"{run.path} is not a run of a suite: charact bricks run makes one")
        self.run, self.case, self.facts = run, case, passes["bricks"]
        rows = run.bricks.query("case == @case")
        self.bricks: dict[str, dict[Any, Any]] = {row["brick"]: row for row in rows.to_dict("records")}
        timed = run.brick_times.query("case == @case")
        self.num_repeats = len(timed[["round", "call"]].drop_duplicates())
        """Number of timed calls of each brick."""
        timed = timed.groupby(["brick", "phase", "round"], as_index=False, sort=False)[list(CLOCKS)].mean()
        self.clocks = [clock for clock in CLOCKS if timed[clock].notna().any()]
        """Clocks with recorded times: the host's, and on CUDA also the device's."""
        self._rounds: dict[str, dict[tuple[str, str], Values]] = {}
        self._common: dict[str, NDArray[np.bool_]] = {}
        for clock in self.clocks:
            by_round = timed.pivot(index=["brick", "phase"], columns="round", values=clock).astype("float64")
            self._rounds[clock] = dict(zip(by_round.index, by_round.to_numpy(), strict=True))
            self._common[clock] = by_round.notna().all(axis="index").to_numpy()
        self._drawn: dict[tuple[str, str, str], Values] = {}
        for clock in self.clocks:
            self._predict(clock)

    def has(self, brick: str, phase: str) -> bool:
        """Return whether each clock has times of a brick's phase, measured or predicted."""
        return bool(self.clocks) and all((brick, phase) in self._rounds[clock] or (brick, phase, clock) in self._drawn
                                         for clock in self.clocks)  # fmt: skip

    def method(self, brick: str) -> str:
        """Return how the times of a brick were obtained: 'measured' or 'predicted' from other bricks."""
        return "predicted" if self.bricks[brick]["status"] == LEFT_OUT else "measured"

    def drawn(self, brick: str, phase: str, clock: str) -> Values:
        """Return the median time (s) of a brick's phase, followed by its bootstrap draws; pass it to `interval`.

        A predicted brick has the prediction, followed by draws from the distribution of its error.
        """
        key = (brick, phase, clock)
        if key not in self._drawn:
            times = self._rounds[clock][brick, phase]
            self._drawn[key] = median_and_draws(times[~np.isnan(times)], times[self._common[clock]])
        return self._drawn[key]

    def _predict(self, clock: str) -> None:
        """Predict the forward times of bricks that were not timed from timed bricks with known work."""
        wanted = [brick for brick, row in self.bricks.items() if row["status"] == LEFT_OUT]
        known = [brick for brick, phase in self._rounds[clock]
                 if phase == "forward" and pd.notna(self.bricks[brick]["bytes"])]
        if not wanted or not known:
            return
        drawn = [self.drawn(brick, "forward", clock) for brick in known]
        times, deviations = predict([sizes_of(self.bricks[brick]) for brick in known],
                                    np.array([each[0] for each in drawn]),
                                    [sizes_of(self.bricks[brick]) for brick in wanted])
        noise = np.random.default_rng(0).standard_normal((len(wanted), len(drawn[0]) - 1))
        for brick, time_s, deviation, each in zip(wanted, times, deviations, noise, strict=True):
            self._drawn[brick, "forward", clock] = time_s * np.exp(deviation * np.concatenate([[0.0], each]))

    def start_s(self, name: str, clock: str) -> float:
        """Return the fixed overhead (s) of a backward pass (`backward_start_s`) or optimizer step (`step_start_s`)."""
        start = self.facts.get(name) or 0.0
        return float((start[clock] if isinstance(start, dict) else start) or 0.0)  # a float in earlier versions


MIN_ROUNDS = MIN_ITERATIONS
"""Minimum number of rounds for an interval."""
_TAILS = 0.025, 0.975


def median_and_draws(times_s: Values, common_s: Values) -> Values:
    """Return the median of a brick's times (s), followed by bootstrap draws in blocks of sqrt(n) rounds.

    Args:
        times_s: the brick's times in all its rounds.
        common_s: its times in the rounds in which all bricks were timed. Fewer than `MIN_ROUNDS` give no draws.
    """
    middle = np.median(times_s, keepdims=True)
    # The draws depend only on the number of values, so that all bricks use the same rounds.
    return np.concatenate([middle, resampled(common_s.tolist(), np.median)]) if len(common_s) >= MIN_ROUNDS else middle


def interval(drawn: Values) -> tuple[float, float] | None:
    """Return the 95 % interval of the first value; None without draws or if the draws' median is not positive.

    Args:
        drawn: the value, followed by its bootstrap draws.

    The bootstrap median of skewed values is biased upwards, noticeably in a sum of hundreds of bricks. The draws are
    therefore scaled so that their median is the value; this also keeps the interval above zero.
    """
    middle = np.median(drawn[1:]) if len(drawn) > 1 else 0.0
    if middle <= 0:
        return None
    low, high = np.quantile(drawn[1:] / middle, _TAILS)
    return float(drawn[0] * min(low, 1.0)), float(drawn[0] * max(high, 1.0))


_OFFSET, _TYPE, _FAMILY = 1.7, 0.5, 0.5
"""Standard deviations of levels (natural logarithms): for all bricks, for the same layer types, for a family."""
_TREND, _FAMILY_TREND = 0.3, 0.05
_BEND, _BEND_LENGTH = 0.5, 2.0
_FAMILY_BEND, _FAMILY_BEND_LENGTH = 0.4, 5.0
"""Standard deviations of trends, and of smooth deviations with their length scales (doublings of a size)."""
_TYPICAL_WORK = 8.0
_NOISE = 0.28
"""Residual standard deviation. All values were fitted on 5,412 bricks of 128 models, one thread of one machine."""


def predict(known: Sequence[Sizes], seconds: Values, wanted: Sequence[Sizes]) -> tuple[Values, Values]:
    """Predict times (s) of bricks, and the standard deviations of the times' natural logarithms.

    Args:
        known: features of timed bricks, at least one.
        seconds: (len(known),) their times, above 0.
        wanted: features of the bricks to predict.
    """
    logs = np.log(seconds)
    covariance = _covariance(known, known) + _NOISE**2 * np.eye(len(known))
    across = _covariance(wanted, known)
    solved = np.linalg.solve(covariance, np.column_stack([logs - logs.mean(), across.T]))
    own = np.concatenate([np.diag(_covariance([each], [each])) for each in wanted])
    left = own - (across * solved[:, 1:].T).sum(axis=1)
    times = np.exp(logs.mean() + across @ solved[:, 0])
    return np.asarray(times), np.sqrt(np.maximum(left, 0.0) + _NOISE**2)


def _covariance(these: Sequence[Sizes], those: Sequence[Sizes]) -> Values:
    work, other_work = (np.array([each.work for each in some]) for some in (these, those))
    types, other_types = (np.array([each.layer_types for each in some]) for some in (these, those))
    covariance = (_OFFSET**2 + _TREND**2 * work @ other_work.T
                  + _BEND**2 * _falling(work, other_work, _BEND_LENGTH)
                  + _TYPE**2 * (types[:, None] == other_types[None]))
    families, others = ([each.family for each in some] for some in (these, those))
    for family in set(families) & set(others):
        rows, columns = (np.flatnonzero(np.array(some) == family) for some in (families, others))
        places, other_places = (
            np.array([some[number].numbers for number in numbers.tolist()]).reshape(len(numbers), -1)
            for some, numbers in ((these, rows), (those, columns)))  # fmt: skip
        covariance[np.ix_(rows, columns)] += (
            _FAMILY**2
            + _FAMILY_TREND**2 * (work[rows] - _TYPICAL_WORK) @ (other_work[columns] - _TYPICAL_WORK).T
            + _FAMILY_BEND**2 * _falling(places, other_places, _FAMILY_BEND_LENGTH))  # fmt: skip
    return np.asarray(covariance)


def _falling(these: Values, those: Values, length: float) -> Values:
    """Return the Gaussian kernel matrix: 1 for equal features, less with greater distance."""
    squares = (these**2).sum(axis=1)[:, None] + (those**2).sum(axis=1)[None] - 2 * these @ those.T
    return np.asarray(np.exp(-np.maximum(squares, 0.0) / (2 * length**2)))
