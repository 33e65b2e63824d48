"""Names of charact's annotations in the profiler's trace, and phases by time. Imports no torch."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

PHASE_PREFIX = "charact.phase:"
LAYER_PREFIX = "charact.layer:"
RELEASE_PREFIX = "charact.release:"

Moment = TypeVar("Moment", int, float)


def phase_at(phases: Sequence[tuple[float, float, str]], moment: float) -> str | None:
    """Return the name of the phase at a time; None between phases.

    Args:
        phases: start, end and name of each, in order of their starts; they do not overlap.
        moment: in the unit of the starts and ends.
    """
    index = bisect_right(phases, moment, key=lambda phase: phase[0]) - 1
    return phases[index][2] if index >= 0 and moment < phases[index][1] else None


def with_gaps(phases: Sequence[tuple[Moment, Moment, str]]) -> list[tuple[Moment, Moment, str]]:
    """Return the phases by time, with the gaps between them that have an unambiguous phase.

    Between the end of a forward and the start of its backward, a loss is computed by hand. Without a marked forward, as
    in a function that was compiled whole, the gap before the loss is the forward.
    """
    filled: list[tuple[Moment, Moment, str]] = []
    gaps: list[tuple[Moment, Moment, str]] = []  # used if a backward follows
    in_gap, reached = "forward", None
    for start, end, name in sorted(phases):
        if reached is not None and reached < start:
            gaps.append((reached, start, in_gap))
        if name == "backward":
            filled += gaps
        if name in ("forward", "backward", "loss"):
            in_gap = "loss"
        if name in ("forward", "backward") or (in_gap == "forward" and name in ("data", "update")):
            gaps = []
        filled.append((start, end, name))
        reached = end
    return sorted(filled)
