"""Iterations and phases of a trace: from charact's annotations, else from PyTorch's own.

Traces of other programs mark iterations (`ProfilerStep`), data loading (`DataLoader`) and updates (`Optimizer`). The
backward pass is recognized by calls of `backward` or autograd nodes, the forward pass by calls of modules or by the
operators before the backward pass. All of these phases are inferred.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from charact.core.operator_types import own_operator_type
from charact.core.timeline import phase_at, with_gaps
from charact.core.trace_marks import PHASE_PREFIX
from charact.record.schema import PHASES
from charact.traces.device import find_launches
from charact.traces.events import BEFORE_ALL_NS, LOADER, OPTIMIZER, STEP, Mark, Operator, TraceEvents
from charact.traces.threads import Outline, outline

Spanned = TypeVar("Spanned", Mark, Operator)
Spans = Sequence[Mark] | Sequence[Operator]

_LOSS_MODULE = re.compile(r"(Loss|Criterion)(_\d+)?$")
_PHASE_MARKS = {PHASE_PREFIX + phase for phase in PHASES}
_ZERO_GRAD = f"{OPTIMIZER}zero_grad"


@dataclass(frozen=True)
class Span:
    """An interval of an iteration on the host's clock with one phase."""

    start_ns: int
    end_ns: int
    phase: str
    evidence: str
    """How the phase was recognized."""
    inferred: bool = True


@dataclass
class Iteration:
    """An iteration on the host's clock; its spans are in order and do not overlap."""

    start_ns: int
    end_ns: int
    spans: list[Span] = field(default_factory=list)


def find_iterations(kept: TraceEvents) -> tuple[list[Iteration], bool]:
    """Return iterations by time, without phases yet, and whether the trace marks them; otherwise all of it is one."""
    steps = sorted((mark.start_ns, mark.end_ns) for mark in kept.marks if mark.name.startswith(STEP))
    if steps:
        iterations: list[Iteration] = []
        for start_ns, end_ns in steps:
            if start_ns < end_ns and (not iterations or start_ns >= iterations[-1].end_ns):
                iterations.append(Iteration(start_ns, end_ns))
        return iterations, True
    ends = [(span.start_ns, span.end_ns)
            for spans in (kept.operators, kept.marks, kept.modules, kept.device) for span in spans]
    ends += [(launch.start_ns, launch.start_ns) for launch in kept.launches.values()]
    if not ends:
        return [], False
    return [Iteration(min(start for start, _ in ends), max(end for _, end in ends))], False


def find_phases(kept: TraceEvents, outlined: Outline, iterations: Sequence[Iteration]) -> bool:
    """Set the phases of the iterations; returns whether they come from charact's own annotations."""
    marks = [(mark.start_ns, mark.end_ns, mark.name.removeprefix(PHASE_PREFIX))
             for mark in kept.marks if mark.name in _PHASE_MARKS]
    if marks:
        marked = set(marks)
        spans = [Span(*span, "charact’s mark" if span in marked else "between charact’s marks", span not in marked)
                 for span in with_gaps(marks)]
        apart = within(spans, min(span.start_ns for span in spans), max(span.end_ns for span in spans))
        ends_ns = [span.end_ns for span in apart]
        for iteration in iterations:
            first = bisect_right(ends_ns, iteration.start_ns)
            last = bisect_left(apart, iteration.end_ns, key=lambda span: span.start_ns)
            iteration.spans = within(apart[first:last], iteration.start_ns, iteration.end_ns)
        return True
    finder = _Finder(kept, outlined)
    for iteration in iterations:
        iteration.spans = finder.spans(iteration.start_ns, iteration.end_ns)
    return False


def within(spans: Iterable[Span], start_ns: int, end_ns: int) -> list[Span]:
    """Return spans by time within an interval, clipped to it; where two overlap, the first continues."""
    inside: list[Span] = []
    reached_ns = start_ns
    for span in sorted(spans, key=lambda one: (one.start_ns, -one.end_ns)):
        begin_ns, until_ns = max(span.start_ns, reached_ns), min(span.end_ns, end_ns)
        if begin_ns < until_ns:
            inside.append(Span(begin_ns, until_ns, span.phase, span.evidence, span.inferred))
            reached_ns = until_ns
    return inside


class _Finder:
    """Infers phases of iterations without charact's annotations."""

    def __init__(self, kept: TraceEvents, outlined: Outline) -> None:
        main = outlined.main
        self._marks = sorted((mark for mark in kept.marks if mark.thread == main
                              and mark.name.startswith((LOADER, OPTIMIZER))), key=lambda mark: mark.start_ns)
        self._backwards = sorted((call for call in kept.backwards if call.thread == main),
                                 key=lambda call: call.start_ns)
        # Operators of the loader and the optimizer are covered by their annotations.
        self._operators = _outside(outlined.operators, [*self._marks, *self._backwards])
        self._modules = _outside(outlined.modules, self._backwards)
        self._nodes = outlined.nodes
        kinds: tuple[Spans, ...] = (self._operators, self._modules, self._marks)
        self._starts = sorted(span.start_ns for spans in kinds for span in spans)
        self._uploads = sorted(event.launched_ns for event in kept.device
                               if event.launched_ns is not None and "HtoD" in event.name)
        self._trains = bool(outlined.nodes or any(mark.name.startswith(OPTIMIZER) for mark in self._marks))

    def spans(self, start_ns: int, end_ns: int) -> list[Span]:
        """Return the spans of the iteration with that start and end."""
        marked = [Span(mark.start_ns, mark.end_ns, *(("data", "DataLoader’s mark") if mark.name.startswith(LOADER)
                                                     else ("update", "optimizer’s mark")))
                  for mark in _of(self._marks, start_ns, end_ns)]
        zeroing = {mark.start_ns for mark in _of(self._marks, start_ns, end_ns) if mark.name.startswith(_ZERO_GRAD)}
        fixed = within([*marked, *self._backward(start_ns, end_ns)], start_ns, end_ns)
        found: list[Span] = []
        reached_ns, after = end_ns, None
        for span in reversed([Span(start_ns, start_ns, "other", ""), *fixed]):
            found += self._between(span.end_ns, reached_ns, after)
            reached_ns = span.start_ns
            if span.start_ns not in zeroing:  # zero_grad may be between a forward and its backward
                after = span.phase
        spans = within([*fixed, *found], start_ns, end_ns)
        return self._with_fetch(spans, start_ns)

    def _backward(self, start_ns: int, end_ns: int) -> list[Span]:
        """Return backward passes: calls of `backward`, else uninterrupted runs of autograd nodes."""
        calls = _of(self._backwards, start_ns, end_ns)
        if calls:
            return [Span(call.start_ns, call.end_ns, "backward", "call of backward") for call in calls]
        others = self._starts
        runs: list[Span] = []
        for node in _of(self._nodes, start_ns, end_ns):
            follows = bool(runs) and bisect_left(others, runs[-1].end_ns) == bisect_left(others, node.start_ns)
            begin_ns = runs.pop().start_ns if follows else node.start_ns
            runs.append(Span(begin_ns, max(node.end_ns, begin_ns), "backward", "autograd’s nodes"))
        return runs

    def _between(self, start_ns: int, end_ns: int, after: str | None) -> list[Span]:
        """Return forward and loss in a gap, and copies of a batch to the device before them."""
        modules = _of(self._modules, start_ns, end_ns)
        operators = _of(self._operators, start_ns, end_ns)
        found: list[Span] = []
        uploads = self._leading_uploads(operators, modules)
        if uploads:
            found.append(Span(uploads[0].start_ns, uploads[-1].end_ns, "data", "copy to the device"))
            operators = operators[operators.index(uploads[-1]) + 1:]
        if not modules and self._trains and after != "backward":
            return found
        models = [span for span in modules if not _LOSS_MODULE.search(span.name)]
        losses: list[Mark] | list[Operator] = [span for span in modules if _LOSS_MODULE.search(span.name)]
        if not modules:
            losses = [span for span in operators if own_operator_type(span.name) == "loss"][:1]
        loss_ns = losses[0].start_ns if losses else end_ns
        inner: list[Mark] | list[Operator] = models or [span for span in operators if span.start_ns < loss_ns]
        evidence = "calls of modules" if models else "operators"
        reached_ns = None
        if inner:
            reached_ns = max(span.end_ns for span in inner)
            found.append(Span(inner[0].start_ns, reached_ns, "forward", evidence))
        elif losses:
            reached_ns = losses[0].start_ns
        if reached_ns is not None and after == "backward":
            found.append(Span(reached_ns, end_ns, "loss", "between forward and backward"))
        else:
            found += [Span(span.start_ns, span.end_ns, "loss", "calls of losses") for span in losses]
        return found

    def _leading_uploads(self, operators: Sequence[Operator], modules: Sequence[Mark]) -> list[Operator]:
        """Return operators before the forward pass that copy to the device, in order."""
        before: list[Operator] = []
        for operator in operators:
            uploads = (bisect_left(self._uploads, operator.start_ns) < bisect_left(self._uploads, operator.end_ns))
            if uploads and (not modules or operator.start_ns < modules[0].start_ns):
                before.append(operator)
            elif not modules:
                break
        return before

    def _with_fetch(self, spans: list[Span], start_ns: int) -> list[Span]:
        """Add the time before anything else as data loading, if no loader is marked."""
        if not spans or any(span.evidence == "DataLoader’s mark" for span in spans):
            return spans
        uploads = [span for span in spans if span.phase == "data"]
        first = next((span for span in spans if span.phase != "data"), spans[-1])
        until_ns = max((span.end_ns for span in uploads if span.end_ns <= first.start_ns), default=first.start_ns)
        fetch = Span(start_ns, until_ns, "data", "before the first operator or mark")
        return within([fetch, *spans], start_ns, spans[-1].end_ns)


def _of(spans: Sequence[Spanned], start_ns: int, end_ns: int) -> list[Spanned]:
    """Return spans that begin in an interval."""
    first = bisect_left(spans, start_ns, key=lambda span: span.start_ns)
    last = bisect_left(spans, end_ns, key=lambda span: span.start_ns)
    return list(spans[first:last])


def _outside(spans: Sequence[Spanned], enclosing: Iterable[Mark]) -> list[Spanned]:
    """Return spans by time that are in none of others."""
    kept, edges = [], sorted((mark.start_ns, mark.end_ns) for mark in enclosing)
    number, reached_ns = 0, BEFORE_ALL_NS
    for span in sorted(spans, key=lambda one: one.start_ns):
        while number < len(edges) and edges[number][0] <= span.start_ns:
            reached_ns = max(reached_ns, edges[number][1])
            number += 1
        if span.start_ns >= reached_ns:
            kept.append(span)
    return kept


class Places:
    """Lookup of the iteration and phase at a time on the host."""

    def __init__(self, iterations: Sequence[Iteration]) -> None:
        self._iterations = iterations
        self._starts = [iteration.start_ns for iteration in iterations]
        self._spans = [(span.start_ns, span.end_ns, span.phase) for iteration in iterations for span in iteration.spans]

    def phase(self, moment_ns: int | None) -> str | None:
        """Return the phase at a time, `other` between phases; None outside all iterations."""
        if moment_ns is None:
            return None
        number = bisect_right(self._starts, moment_ns) - 1
        if number < 0 or moment_ns > self._iterations[number].end_ns:
            return None
        return phase_at(self._spans, moment_ns) or "other"


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
