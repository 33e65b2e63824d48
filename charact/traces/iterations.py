"""Iterations of a trace: those that it marks, else those that end with the optimizer's steps, else all of it."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Literal

from charact.core.timeline import Iteration
from charact.traces.events import LOADER, OPTIMIZER, Mark, TraceEvents
from charact.traces.outline import Outline

_STEP = f"{OPTIMIZER}step"
_LIGHT_FRAC = 0.1
"""Share of the others' work up to which an iteration at an edge has hardly any."""
_SHORT_FRAC = 0.5
"""Share of the others' length up to which an iteration with hardly any work is partial."""


@dataclass(frozen=True)
class FoundIterations:
    """Iterations by time, without phases yet, and how they were found."""

    iterations: list[Iteration]
    marks: Literal["steps", "optimizer"] | None
    """What marks them; None if all of the trace is one."""
    num_partial: int = 0
    """Number of partial ones at the trace's edges, which were left out."""


def find_iterations(events: TraceEvents, outlined: Outline) -> FoundIterations:
    """Return the iterations that a trace marks; without marks, all of it is one.

    The profiler opens a mark after the last step, too: an iteration at an edge is partial, and left out, if it has no
    work, or less than a tenth of the others' in less than half of their time. Launches have to be found before.
    """
    steps: list[Iteration] = []
    for step in sorted(events.steps, key=lambda step: (step.start_ns, step.end_ns)):
        if step.start_ns < step.end_ns and (not steps or step.start_ns >= steps[-1].end_ns):
            steps.append(Iteration(step.start_ns, step.end_ns))
    if events.steps:
        whole = _without_partial(steps, events, outlined)
        return FoundIterations(whole, "steps", len(steps) - len(whole))
    ended = _by_optimizer(events, outlined)
    if len(ended) > 1:
        whole = _without_partial(ended, events, outlined)
        return FoundIterations(whole, "optimizer", len(ended) - len(whole))
    ends = [(span.start_ns, span.end_ns) for spans in (events.operators, events.marks, events.modules, events.device)
            for span in spans]
    ends += [(launch.start_ns, launch.start_ns) for launch in events.launches.values()]
    return FoundIterations([Iteration(min(start for start, _ in ends), max(end for _, end in ends))] if ends else [],
                           None)


def _without_partial(iterations: list[Iteration], events: TraceEvents, outlined: Outline) -> list[Iteration]:
    if len(iterations) < 2:
        return iterations
    work = [(span.start_ns, span.end_ns - span.start_ns) for span in (*outlined.operators, *outlined.nodes)]
    work += [(event.launched_ns, event.end_ns - event.start_ns) for event in events.device
             if event.launched_ns is not None]
    work.sort()
    amounts = []
    for each in iterations:
        inside = work[bisect_left(work, (each.start_ns, 0)):bisect_left(work, (each.end_ns, 0))]
        amounts.append((len(inside), sum(length_ns for _, length_ns in inside), each.host_ns))
    first, last = 0, len(iterations)
    if _is_partial(amounts[-1], amounts[:-1]):
        last -= 1
    if last > 1 and _is_partial(amounts[0], amounts[1:last]):
        first = 1
    return iterations[first:last]


def _is_partial(edge: tuple[int, int, int], others: Sequence[tuple[int, int, int]]) -> bool:
    number, work_ns, length_ns = (median(values) for values in zip(*others, strict=True))
    if not number:
        return False
    is_light = edge[0] < _LIGHT_FRAC * number or edge[1] < _LIGHT_FRAC * work_ns
    return is_light and (edge[0] == 0 or edge[2] < _SHORT_FRAC * length_ns)


def _by_optimizer(events: TraceEvents, outlined: Outline) -> list[Iteration]:
    """Return iterations that end at the first other work after an optimizer's step.

    Of several optimizers, the one that steps most often counts, of equally frequent ones the one that steps last. What
    follows the last step belongs to no iteration.
    """
    marks = sorted((mark for mark in events.marks if mark.name.startswith(OPTIMIZER)), key=lambda mark: mark.start_ns)
    steps = [mark for mark in marks if mark.name.startswith(_STEP)]
    if not steps:
        return []
    numbers = Counter(mark.name for mark in steps)
    name = max(reversed(steps), key=lambda mark: numbers[mark.name]).name
    starts = _starts_of_work(events, outlined, marks)
    iterations: list[Iteration] = []
    begin_ns = min([marks[0].start_ns, *starts[:1]])
    ended_ns: int | None = None
    for step in (step for step in steps if step.name == name):
        if ended_ns is not None:
            following = bisect_left(starts, ended_ns)
            if following < len(starts) and starts[following] < step.start_ns:
                iterations.append(Iteration(begin_ns, starts[following]))
                begin_ns = starts[following]
        ended_ns = step.end_ns
    if ended_ns is not None and begin_ns < ended_ns:
        iterations.append(Iteration(begin_ns, ended_ns))
    return iterations


def _starts_of_work(events: TraceEvents, outlined: Outline, optimizer: Sequence[Mark]) -> list[int]:
    """Return the starts of fetches, operators, modules and backward passes outside of the optimizer's marks."""
    begins = [mark.start_ns for mark in optimizer]
    ends = list(accumulate((mark.end_ns for mark in optimizer), max))
    starts = [span.start_ns for spans in (outlined.operators, outlined.modules, outlined.nodes, events.backwards)
              for span in spans]
    starts += [mark.start_ns for mark in events.marks if mark.name.startswith(LOADER)]

    def is_outside(start_ns: int) -> bool:
        place = bisect_left(begins, start_ns + 1) - 1
        return place < 0 or start_ns >= ends[place]

    return sorted(filter(is_outside, starts))
