"""How far a sweep is, and when it is expected to end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from charact.sweeps.definition import SweepCase
from charact.sweeps.directory import Outcome, State, SweepDirectory

_DONE: tuple[State, ...] = ("ok", "failed")


@dataclass(frozen=True)
class CaseStatus:
    """A case with its state and the outcome of its last attempt."""

    case: SweepCase
    state: State
    outcome: Outcome | None

    @property
    def is_done(self) -> bool:
        """Whether the case has ended, and is not run again."""
        return self.state in _DONE


def statuses(directory: SweepDirectory, cases: Sequence[SweepCase]) -> list[CaseStatus]:
    """Return the state of each case."""
    return [CaseStatus(case, directory.state(case), directory.outcome(case)) for case in cases]


def counts(found: Sequence[CaseStatus]) -> dict[State, int]:
    """Return the number of cases in each state."""
    number = Counter(one.state for one in found)
    return {state: number[state] for state in ("ok", "failed", "killed", "running", "waiting")}


def remaining_s(found: Sequence[CaseStatus]) -> float | None:
    """Return the expected time of the cases that are not done (s): the sum of `expected_times`; None if not known."""
    times = expected_times(found)
    waiting = [one.case for one in found if not one.is_done]
    return sum(times[case] for case in waiting) if all(case in times for case in waiting) and (
        times or not waiting) else None


def expected_times(found: Sequence[CaseStatus]) -> dict[SweepCase, float]:
    """Return the expected time of each case that is not done (s), from the times of those that are.

    A case that --retry repeats takes as long as the last time. Another takes the average of the cases with the same
    command, workload, mode and node, else of any node, else of the same command, else of all. Empty if no time is
    known.

    *Error*: cases of one workload may differ by their sizes; running cases count in full.
    """
    times: dict[tuple[str, ...], list[float]] = {}
    for one in found:
        if one.outcome is not None and (one.is_done or one.state == "waiting"):
            for key in [(one.case.id,), *_keys(one.case)]:
                times.setdefault(key, []).append(one.outcome.seconds)
    return {one.case: mean(next(times[key] for key in [(one.case.id,), *_keys(one.case)] if key in times))
            for one in found if times and not one.is_done}


def _keys(case: SweepCase) -> list[tuple[str, ...]]:
    options = dict(case.options)
    near = case.command, options.get("workload", ""), options.get("mode", "")
    return [(*near, case.node or ""), near, (case.command,), ()]
