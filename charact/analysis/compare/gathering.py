"""Facts of matched cases, read in one pass over the runs of all groups."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from charact.analysis.compare.matching import matched_cases
from charact.analysis.compare.run_groups import Group, memoize_comparison
from charact.record.reader import Run

MAX_HELD_RUNS = 8
"""Runs held in memory at once; with more runs, each is released after it is read."""

Value = TypeVar("Value")
Added = TypeVar("Added", contravariant=True)


class Total(Protocol[Added]):
    """Accumulator of a fact over the runs of a group that have a case."""

    def add(self, value: Added, /) -> None:
        """Add the value of one run."""


Summed = TypeVar("Summed", bound=Total[Any])


@dataclass(frozen=True, eq=False)
class Fact(Generic[Value, Summed]):
    """A fact of cases: how to read it from a run, and how to accumulate it over the runs of a group.

    `of` takes a run and the identifiers of the cases to read. It may return other cases, and omits those without a
    value.
    """

    of: Callable[[Run, Collection[str]], Mapping[str, Value]]
    total: Callable[[], Summed]


class Place(NamedTuple):
    """A run with a matched case: its position in the group, and the case's identifier, status and reason there."""

    run: int
    run_case: str
    status: str
    reason: str | None


@memoize_comparison
def places(sides: Sequence[Group]) -> dict[str, dict[str, list[Place]]]:
    """Return the runs with each matched case, by its name and the group's label, as in `matched_cases`."""
    found: dict[str, dict[str, list[Place]]] = {}
    for case, side, *place in matched_cases(sides).itertuples(index=False, name=None):
        found.setdefault(case, {}).setdefault(side, []).append(Place(*place))
    return found


def gathered(
    sides: Sequence[Group], facts: Sequence[Fact[Any, Any]], cases: Collection[str] | None = None
) -> list[dict[str, dict[str, Any]]]:
    """Return each fact by matched case and group; a group without the fact is left out.

    Facts that are not known yet are read in one pass over the runs that have one of the cases.

    Args:
        sides: the baseline first.
        facts: facts to read.
        cases: matched cases to read; None for all.
    """
    where = places(sides)
    wanted = [case for case in where if cases is None or case in cases]
    known = [sides[0].found.setdefault((tuple(sides), fact), {}) for fact in facts]
    missing = [{case for case in wanted if case not in found} for found in known]
    new: list[dict[str, dict[str, Any]]] = [{case: {} for case in names} for names in missing]
    if any(missing):
        _gather(sides, list(zip(facts, new, missing, strict=True)))
    for found, added in zip(known, new, strict=True):
        found.update(added)  # only now: an unreadable run must not leave partial results
    return [{case: found[case] for case in wanted} for found in known]


def _gather(sides: Sequence[Group],
            gathering: list[tuple[Fact[Any, Any], dict[str, dict[str, Any]], set[str]]]) -> None:
    held = _by_run(sides, set().union(*(names for _, _, names in gathering)))
    is_many = sum(len(side.runs) for side in sides) > MAX_HELD_RUNS
    for side in sides:
        for position, run in enumerate(side.runs):
            if (side.label, position) not in held:
                continue
            for fact, found, names in gathering:
                there = {case: of_run for case, of_run in held[side.label, position].items() if case in names}
                _add(fact, found, side.label, run, there)
            if is_many:
                run.release()
            side.on_run(run)


def _by_run(sides: Sequence[Group], wanted: Collection[str]) -> dict[tuple[str, int], dict[str, str]]:
    """Return which of the wanted cases each run has, with their identifiers there."""
    held: dict[tuple[str, int], dict[str, str]] = {}
    for case, of_side in places(sides).items():
        if case in wanted:
            for side, found in of_side.items():
                for place in found:
                    held.setdefault((side, place.run), {})[case] = place.run_case
    return held


def _add(fact: Fact[Any, Any], found: dict[str, dict[str, Any]], side: str, run: Run, cases: Mapping[str, str]) -> None:
    """Add one run's values of the cases, given by name with their identifiers in the run."""
    values = fact.of(run, set(cases.values())) if cases else {}
    for case, of_run in cases.items():
        if of_run in values:
            if side not in found[case]:
                found[case][side] = fact.total()
            found[case][side].add(values[of_run])
