"""A trace whose events are told apart: in which iteration and phase they lie, and which operator launched what."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from charact.traces.device import find_launches
from charact.traces.events import Kept
from charact.traces.phases import Iteration, find_iterations, find_phases
from charact.traces.threads import Outline, outline


class Places:
    """Which iteration and which phase a moment of the host lies in."""

    def __init__(self, iterations: Sequence[Iteration]) -> None:
        self._iterations = iterations
        self._starts = [iteration.start_ns for iteration in iterations]
        self._spans = [span for iteration in iterations for span in iteration.spans]
        self._span_starts = [span.start_ns for span in self._spans]

    def phase(self, moment_ns: int | None) -> str | None:
        """The phase of a moment, `other` between phases; None outside of all iterations."""
        if moment_ns is None:
            return None
        number = bisect_right(self._starts, moment_ns) - 1
        if number < 0 or moment_ns > self._iterations[number].end_ns:
            return None
        place = bisect_right(self._span_starts, moment_ns) - 1
        if place >= 0 and moment_ns < self._spans[place].end_ns:
            return self._spans[place].phase
        return "other"


@dataclass(frozen=True)
class Placed:
    """A trace's events, completed, and where they belong."""

    kept: Kept
    outlined: Outline
    iterations: list[Iteration]
    places: Places
    marked: bool
    """Whether the trace marks iterations: else all of it is one."""
    own_marks: bool
    """Whether charact's own marks told the phases."""


def place(kept: Kept) -> Placed:
    """Find iterations, phases, layers and launchers in a trace; what was kept of it is completed by them."""
    outlined = outline(kept)
    find_launches(kept)
    iterations, marked = find_iterations(kept)
    own_marks = find_phases(kept, outlined, iterations)
    return Placed(kept, outlined, iterations, Places(iterations), marked, own_marks)
