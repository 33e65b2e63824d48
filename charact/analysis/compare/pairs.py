"""Facts of matched cases, read in one pass over the runs of all groups, and pairs of their samples."""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.significance import Judgement, Pool, Sample, judged, judged_by_turns, value_of_turns
from charact.analysis.compare.matching import Group, matched_cases
from charact.record.reader import Run

MAX_HELD_RUNS = 8
"""Runs held in memory at once; with more runs, each is released after it is read."""
JUDGEMENT = ["ratio", "low", "high", "p_value", "significant", "reason"]
"""Columns of a ratio to the baseline, as in `significance.judged`."""

Value = TypeVar("Value")
Total = TypeVar("Total")


@dataclass(frozen=True, eq=False)
class Fact(Generic[Value, Total]):
    """A fact of cases: how to read it from a run, and how to accumulate it over the runs of a group.

    `of` takes a run and the identifiers of the cases to read. It may return other cases, and omits those without a
    value. `added` returns the total of the runs so far, None before the first, and the value of another run.
    """

    of: Callable[[Run, Collection[str]], Mapping[str, Value]]
    added: Callable[[Total | None, Value], Total]


class Place(NamedTuple):
    """A run with a matched case: its position in the group, and the case's identifier, status and reason there."""

    run: int
    run_case: str
    status: str
    reason: str | None


Totals = dict[str, dict[str, Any]]
"""A fact by matched case and group."""


@memoize
def places(sides: Sequence[Group]) -> dict[str, dict[str, list[Place]]]:
    """Return the runs with each matched case, by its name and the group's label, as in `matched_cases`."""
    of_cases: dict[str, dict[str, list[Place]]] = {}
    for case, side, *place in matched_cases(sides).itertuples(index=False, name=None):
        of_cases.setdefault(case, {}).setdefault(side, []).append(Place(*place))
    return of_cases


def gathered(sides: Sequence[Group], facts: Sequence[Fact[Any, Any]], cases: Collection[str] | None = None
             ) -> list[Totals]:
    """Return each fact by matched case, or by those named, and group; a group without the fact is left out.

    Facts that are not known yet are read in one pass over the runs that have one of the cases.
    """
    wanted = [case for case in places(sides) if cases is None or case in cases]
    cached: list[Totals] = [sides[0].found.setdefault((tuple(sides), fact), {}) for fact in facts]
    new: list[Totals] = [{case: {} for case in wanted if case not in totals} for totals in cached]
    identifiers: defaultdict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for case in set().union(*new):
        for label, of_side in places(sides)[case].items():
            for place in of_side:
                identifiers[label, place.run][case] = place.run_case
    is_many = sum(len(side.runs) for side in sides) > MAX_HELD_RUNS
    for group, position, run in [(side, position, run) for side in sides for position, run in enumerate(side.runs)]:
        of_run = identifiers.get((group.label, position))
        if of_run is None:
            continue
        for fact, totals in zip(facts, new, strict=True):
            names = {case: name for case, name in of_run.items() if case in totals}
            values = fact.of(run, set(names.values())) if names else {}
            for case, name in names.items():
                if name in values:
                    totals[case][group.label] = fact.added(totals[case].get(group.label), values[name])
        if is_many:
            run.release()
        group.on_run(run)
    for totals, added in zip(cached, new, strict=True):
        totals.update(added)  # only now: an unreadable run must not leave partial results
    return [{case: totals[case] for case in wanted} for totals in cached]


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


Samples = dict[str, dict[str, Sample]]
"""Samples of a run, by the case's identifier in it and the part's name."""
Pools = dict[str, Pool]
Measured = Fact[Mapping[str, Sample], Pools]


def measured(samples: Callable[[Run], Samples]) -> Measured:
    """Return the fact of a run's samples."""
    return Fact(lambda run, _: samples(run), _pooled)


def _pooled(pools: Pools | None, samples: Mapping[str, Sample]) -> Pools:
    pools = {} if pools is None else pools
    for name, sample in samples.items():
        pools.setdefault(sys.intern(name), Pool()).add(sample)
    return pools


def pairs(sides: Sequence[Group], fact: Measured, cases: Collection[str] | None = None) -> Iterator[Pair]:
    """Yield matched cases, or those named, of each group except the baseline, in the order of `matched_cases`."""
    (totals,) = gathered(sides, [fact], cases)
    runs = {side.label: side.runs for side in sides}
    baseline, turns = sides[0].label, sides[0].turns
    for case, of_sides in places(sides).items():
        if case not in totals:
            continue
        samples = {side: {name: pool.sample() for name, pool in pools.items()}
                   for side, pools in totals[case].items()}
        reasons = {side: next((place.reason or place.status for place in of_side if place.status != "ok"), None)
                   for side, of_side in of_sides.items()}
        for side, (first, *_) in of_sides.items():
            if side != baseline:
                yield Pair(case, side, samples.get(baseline, {}), samples.get(side, {}), reasons[baseline],
                           reasons[side], (runs[side][first.run], first.run_case),
                           turns is not None and turns.is_sequential)


def typed(rows: Sequence[Sequence[object]], columns: list[str], numbers: list[str]) -> pd.DataFrame:
    """Return a table of `columns`, then `JUDGEMENT`, with the dtypes set; `numbers` are the numeric columns."""
    frame = pd.DataFrame(rows, columns=[*columns, *JUDGEMENT])
    types = dict.fromkeys([*columns, "reason"], "str") | dict.fromkeys([*numbers, *JUDGEMENT[:4]], "float64")
    return frame.astype(types | {"significant": "bool"})
