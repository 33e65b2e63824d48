"""What charact's marks in the profiler's stream are called, and which phase a moment has by them. No torch in here."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

PHASE_PREFIX = "charact.phase:"
LAYER_PREFIX = "charact.layer:"
RELEASE_PREFIX = "charact.release:"

Moment = TypeVar("Moment", int, float)


def phase_at(phases: Sequence[tuple[float, float, str]], moment: float) -> str | None:
    """Name of the phase that a moment lies in; None between phases.

    Args:
        phases: start, end and name of each, in order of their starts; they do not overlap.
        moment: in the unit of the starts and ends.
    """
    index = bisect_right(phases, moment, key=lambda phase: phase[0]) - 1
    return phases[index][2] if index >= 0 and moment < phases[index][1] else None


def with_gaps(phases: Sequence[tuple[Moment, Moment, str]]) -> list[tuple[Moment, Moment, str]]:
    """Phases by time, and those of the gaps between them that are plainly one, as for the timing of a program.

    From the end of a forward to the start of the backward after it a loss is computed by hand. Where no forward was
    marked, as in a function that was compiled whole, it fills the gap before the loss.
    """
    filled: list[tuple[Moment, Moment, str]] = []
    gaps: list[tuple[Moment, Moment, str]] = []  # what they are if a backward follows
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
