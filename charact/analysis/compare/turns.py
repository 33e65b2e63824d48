"""Decision of a comparison by turns: whether two groups differ, or differ by at most 3 %."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.common.script_attribution import is_watched
from charact.analysis.common.significance import Judgement, Pool, Sample, judged_by_turns
from charact.analysis.compare.matching import Group, ignoring_differences, matched_cases
from charact.analysis.compare.pairs import pairs
from charact.analysis.compare.ratios import MEASURED, TIMES, ratios, run_times
from charact.analysis.compare.samples import CASE
from charact.record.reader import Run

SAME_FRAC = 0.03
"""Largest difference that counts as none: an interval within 1 ± this decides that there is no larger one."""
MINOR_FRAC = 0.1
"""Cases of a watched program that take less than this share of the time of all its cases need not be decided."""
DECISIONS = ("faster", "slower", "same", "undecided")


def decision(judgement: Any) -> str:
    """Return which of `DECISIONS` a judgement, or a row of `ratios`, supports."""
    if judgement.significant:
        return "slower" if judgement.ratio > 1 else "faster"
    if pd.notna(judgement.low) and judgement.low >= 1 - SAME_FRAC and judgement.high <= 1 + SAME_FRAC:
        return "same"
    return "undecided"


class TurnTimes:
    """Times of each case in each turn, added as the turns end."""

    def __init__(self) -> None:
        self._pools: dict[str, tuple[Pool, Pool]] = {}
        self._total_s: defaultdict[str, float] = defaultdict(float)
        """Times of each case in the first command's runs, if it is a watched program."""
        self.has_common = True
        """Whether both commands have a case in common."""

    def add(self, base: Sequence[Run], new: Sequence[Run]) -> None:
        """Add the runs of a turn."""
        sides = ignoring_differences([Group("a", tuple(base)), Group("b", tuple(new))])
        matched = matched_cases(sides)
        self.has_common = len(matched) > 0
        rows: list[Any] = list(matched[matched["side"] == sides[0].label].itertuples(index=False))
        for row in rows:
            run = base[row.run]
            if is_watched(run):
                iterations = run.iterations
                self._total_s[row.case] += float(iterations.loc[iterations["case"] == row.run_case, "host_s"].sum())
        # With two batch sizes the time of a sample decides: that of an iteration differs anyway.
        fact, name = (MEASURED, "throughput") if "batch_size" in sides[0].ignored else (TIMES[CASE], CASE)
        for pair in pairs(sides, fact):
            if pair.judged(name).ratio is not None:
                pools = self._pools.setdefault(pair.case, (Pool(), Pool()))
                for pool, of_side in zip(pools, (pair.base, pair.new), strict=True):
                    value = of_side[name].value
                    pool.add(Sample(value if name == CASE else 1 / value))

    @property
    def is_timed(self) -> bool:
        """Return whether any case was timed by both commands."""
        return bool(self._pools)

    def judgements(self) -> dict[str, Judgement]:
        """Return the ratio of the second command's time to the first's, for each case."""
        return {case: judged_by_turns(base.sample(), new.sample()) for case, (base, new) in self._pools.items()}

    def is_decided(self) -> bool:
        """Return whether every timed case is decided, but for those of little time (`MINOR_FRAC`)."""
        minor_s = MINOR_FRAC * sum(self._total_s.values())
        return self.is_timed and all(decision(judgement) != "undecided" for case, judgement in self.judgements().items()
                                     if case not in self._total_s or self._total_s[case] >= minor_s)


def turn_decisions(sides: Sequence[Group]) -> pd.DataFrame:
    """Return what the turns of a comparison decided.

    Columns: case; side; decision, of `DECISIONS`; separation, as in `separation`, null without one.
    """
    timed: list[Any] = list(ratios(sides, "case").dropna(subset=["ratio"]).itertuples(index=False))
    rows = [[row.case, row.side, decision(row), separation(sides, row.case, row.side)] for row in timed]
    return pd.DataFrame(rows, columns=["case", "side", "decision", "separation"], dtype="object")


def separation(sides: Sequence[Group], case: str, side: str) -> str | None:
    """Return 'faster' or 'slower' if every run of a group was that against every run of the baseline.

    None if the times overlap, or if a group has fewer than two runs.
    """
    base, new = run_times(sides, case, side)
    if min(len(base), len(new)) < 2:
        return None
    if max(new) < min(base):
        return "faster"
    return "slower" if min(new) > max(base) else None
