"""Cases in both of two groups of runs, with the samples of both."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from charact.analysis.common.significance import Judgement, Pool, Sample, judged, judged_by_turns, value_of_turns
from charact.analysis.compare.gathering import Fact, Place, gathered, places
from charact.analysis.compare.run_groups import Group
from charact.record.reader import Run

JUDGEMENT = ["ratio", "low", "high", "p_value", "significant", "reason"]
"""Columns of a ratio to the baseline, as in `significance.judged`."""

_NUMBERS = ["ratio", "low", "high", "p_value"]


@dataclass(frozen=True)
class Pair:
    """A case in the baseline and in another group: the samples of its parts, by name, or why there are none.

    `place` is the group's first run of the case, and the case's identifier there. `is_sequential` marks runs whose
    number was decided by their times.
    """

    case: str
    side: str
    base: dict[str, Sample]
    new: dict[str, Sample]
    base_reason: str | None
    new_reason: str | None
    place: tuple[Run, str]
    is_sequential: bool = False

    def values(self, name: str) -> list[float | None]:
        """Return the values of a part in the baseline and here."""
        value = value_of_turns if self.is_sequential else (lambda sample: sample.value)
        return [value(side[name]) if name in side else None for side in (self.base, self.new)]

    def judged(self, name: str) -> Judgement:
        """Return the ratio of a part's values; without one, the reason."""
        base, new = self.base.get(name), self.new.get(name)
        if base is not None and new is not None:
            return judged_by_turns(base, new) if self.is_sequential else judged(base, new)
        if self.base_reason or self.new_reason:
            return Judgement(None, reason=self.new_reason or f"in the baseline: {self.base_reason}")
        if base is None and new is None:
            return Judgement(None, reason="not measured")
        return Judgement(None, reason="not in the baseline" if base is None else "not here")


class Pools:
    """Samples of the parts of a case over the runs of a group, by name."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def add(self, samples: Mapping[str, Sample]) -> None:
        """Add the samples of another run."""
        for name, sample in samples.items():
            if name not in self._pools:
                self._pools[sys.intern(name)] = Pool()
            self._pools[name].add(sample)

    def samples(self) -> dict[str, Sample]:
        """Return one sample for each name."""
        return {name: pool.sample() for name, pool in self._pools.items()}


Measured = Fact[Mapping[str, Sample], Pools]


def measured(samples: Callable[[Run], dict[tuple[str, str], Sample]]) -> Measured:
    """Return the fact of a run's samples, by the case's identifier in it and the part's name."""
    def of(run: Run, cases: Collection[str]) -> dict[str, dict[str, Sample]]:
        found: dict[str, dict[str, Sample]] = {}
        for (case, name), sample in samples(run).items():
            if case in cases:
                found.setdefault(case, {})[name] = sample
        return found

    return Fact(of, Pools)


def pairs(sides: Sequence[Group], fact: Measured, cases: Collection[str] | None = None) -> Iterator[Pair]:
    """Yield matched cases of each group except the baseline, in the order of `matched_cases`.

    Args:
        sides: the baseline first.
        fact: samples to read.
        cases: matched cases to read; None for all.
    """
    (found,) = gathered(sides, [fact], cases)
    runs = {side.label: side.runs for side in sides}
    baseline, turns = sides[0].label, sides[0].turns
    is_sequential = turns is not None and turns.is_sequential
    for case, of_side in places(sides).items():
        if case not in found:
            continue
        base = _samples(found[case], baseline)
        for side, entries in of_side.items():
            if side != baseline:
                place = runs[side][entries[0].run], entries[0].run_case
                yield Pair(case, side, base, _samples(found[case], side), _why_none(of_side[baseline]),
                           _why_none(entries), place, is_sequential)  # fmt: skip


def _samples(found: Mapping[str, Pools], side: str) -> dict[str, Sample]:
    return found[side].samples() if side in found else {}


def _why_none(entries: Sequence[Place]) -> str | None:
    """Return why a case has no samples in one of a group's runs; None if all ended well."""
    return next((entry.reason or entry.status for entry in entries if entry.status != "ok"), None)


def typed(rows: Sequence[Sequence[object]], columns: list[str], numbers: list[str]) -> pd.DataFrame:
    """Return a table of `columns`, then `JUDGEMENT`, with the dtypes set; `numbers` are the numeric columns."""
    frame = pd.DataFrame(rows, columns=[*columns, *JUDGEMENT])
    texts = [column for column in columns if column not in numbers]
    kinds = dict.fromkeys([*texts, "reason"], "str") | dict.fromkeys([*numbers, *_NUMBERS], "float64")
    return frame.astype(kinds | {"significant": "bool"})
