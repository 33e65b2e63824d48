"""Facts of the matched cases of several sides, gathered in one pass over the runs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from charact.analysis.compare.matching import matched_cases
from charact.analysis.compare.run_groups import Side, once_a_comparison
from charact.record.reader import Run

MAX_HELD_RUNS = 8
"""Up to this many runs stay in memory; with more, each run is released after it is read."""

Value = TypeVar("Value")
Added = TypeVar("Added", contravariant=True)


class Total(Protocol[Added]):
    """What is kept of the runs of a side that hold a case."""

    def add(self, value: Added, /) -> None:
        """Add what one run tells of the case."""


Summed = TypeVar("Summed", bound=Total[Any])


@dataclass(frozen=True, eq=False)
class Fact(Generic[Value, Summed]):
    """A fact of cases: what one run tells of them, and where that is added up over the runs of a side.

    `of` takes the run and the identifiers of the cases there that are wanted; it may tell of others, too, and leaves
    out those that it knows nothing of.
    """

    of: Callable[[Run, Collection[str]], Mapping[str, Value]]
    total: Callable[[], Summed]


class Place(NamedTuple):
    """A run of a side that holds a matched case: its position, and the case's identifier, status and reason there."""

    run: int
    run_case: str
    status: str
    reason: str | None


@once_a_comparison
def places(sides: Sequence[Side]) -> dict[str, dict[str, list[Place]]]:
    """Return where each matched case is, by its name and the side's label, as in `matched_cases`."""
    found: dict[str, dict[str, list[Place]]] = {}
    for case, side, *place in matched_cases(sides).itertuples(index=False, name=None):
        found.setdefault(case, {}).setdefault(side, []).append(Place(*place))
    return found


def gathered(
    sides: Sequence[Side], facts: Sequence[Fact[Any, Any]], cases: Collection[str] | None = None
) -> list[dict[str, dict[str, Any]]]:
    """Return each fact by matched case and side; a side of which no run tells it is left out.

    What is not known yet is gathered for all facts in one pass over the runs that hold one of the cases.

    Args:
        sides: the baseline first.
        facts: what is wanted.
        cases: of these matched cases only; None for all.
    """
    where = places(sides)
    wanted = [case for case in where if cases is None or case in cases]
    known = [sides[0].found.setdefault((tuple(sides), fact), {}) for fact in facts]
    missing = [{case for case in wanted if case not in found} for found in known]
    new: list[dict[str, dict[str, Any]]] = [{case: {} for case in names} for names in missing]
    if any(missing):
        _gather(sides, list(zip(facts, new, missing, strict=True)))
    for found, added in zip(known, new, strict=True):
        found.update(added)  # only now: a run that cannot be read leaves nothing half gathered
    return [{case: found[case] for case in wanted} for found in known]


def _gather(sides: Sequence[Side], gathering: list[tuple[Fact[Any, Any], dict[str, dict[str, Any]], set[str]]]) -> None:
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


def _by_run(sides: Sequence[Side], wanted: Collection[str]) -> dict[tuple[str, int], dict[str, str]]:
    """Return which of the wanted cases each run holds, with their identifiers there."""
    held: dict[tuple[str, int], dict[str, str]] = {}
    for case, of_side in places(sides).items():
        if case in wanted:
            for side, found in of_side.items():
                for place in found:
                    held.setdefault((side, place.run), {})[case] = place.run_case
    return held


def _add(fact: Fact[Any, Any], found: dict[str, dict[str, Any]], side: str, run: Run, cases: Mapping[str, str]) -> None:
    """Add what a run tells of the cases, which are given with their identifiers there."""
    told = fact.of(run, set(cases.values())) if cases else {}
    for case, of_run in cases.items():
        if of_run in told:
            if side not in found[case]:
                found[case][side] = fact.total()
            found[case][side].add(told[of_run])
