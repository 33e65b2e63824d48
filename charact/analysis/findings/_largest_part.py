"""The part of a watched program's iterations that takes the most time."""

from typing import NamedTuple

from charact.analysis.findings._watched_case import watched_cases
from charact.analysis.profile.breakdown import operator_types
from charact.record.reader import Run


class LargestPart(NamedTuple):
    """The longest phase of a case's typical iteration, and what takes most of this phase; None if not known."""

    case: str
    phase: str
    share_frac: float
    """Share of the iteration."""
    operator_type: str | None
    type_frac: float | None
    """Share of the phase under the profiler."""
    line: str | None
    line_frac: float | None
    """Share of the phase's samples."""


def largest_part(run: Run) -> LargestPart | None:
    """Return the largest part of the case with the longest total time; None if no iteration was timed."""
    cases = [case for case in watched_cases(run) if case.iteration_s > 0]
    if not cases:
        return None
    case = max(cases, key=lambda one: one.iteration_s * one.num_iterations)
    phase = max(case.phase_s, key=case.phase_s.__getitem__)
    types = operator_types(run)
    is_named = types["operator_type"] != "other"  # "other" says nothing about the operators
    longest = types[(types["case"] == case.name) & (types["phase"] == phase) & is_named].head(1)
    kind, type_frac = (None, None) if longest.empty else longest.iloc[0][["operator_type", "share_frac"]]
    line = next(iter(case.lines(phase)), None)
    return LargestPart(case.name, phase, case.phase_s[phase] / case.iteration_s, kind, type_frac,
                       None if line is None else str(line.place), None if line is None else line.share_frac)
