"""Attribution of a trace's events to iterations and phases, and of launches to operators."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from charact.traces.device import find_launches
from charact.traces.events import TraceEvents
from charact.traces.phases import Iteration, find_iterations, find_phases
from charact.traces.threads import Outline, outline


class Places:
    """Lookup of the iteration and phase at a time on the host."""

    def __init__(self, iterations: Sequence[Iteration]) -> None:
        self._iterations = iterations
        self._starts = [iteration.start_ns for iteration in iterations]
        self._spans = [span for iteration in iterations for span in iteration.spans]
        self._span_starts = [span.start_ns for span in self._spans]

    def phase(self, moment_ns: int | None) -> str | None:
        """Return the phase at a time, `other` between phases; None outside all iterations."""
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
class AttributedTrace:
    """A trace's events with their iterations and phases."""

    kept: TraceEvents
    outlined: Outline
    iterations: list[Iteration]
    places: Places
    marked: bool
    """Whether the trace marks iterations; otherwise all of it is one."""
    own_marks: bool
    """Whether the phases come from charact's own annotations."""


def attribute(kept: TraceEvents) -> AttributedTrace:
    """Find iterations, phases, layers and launching operators of a trace, and store them in its events."""
    outlined = outline(kept)
    find_launches(kept)
    iterations, marked = find_iterations(kept)
    own_marks = find_phases(kept, outlined, iterations)
    return AttributedTrace(kept, outlined, iterations, Places(iterations), marked, own_marks)
