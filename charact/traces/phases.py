"""Iterations and phases of a trace, from charact's annotations, else from PyTorch's own; nesting of its operators.

Traces of other programs mark iterations (`ProfilerStep`), data loading (`DataLoader`) and updates (`Optimizer`). The
backward pass is recognized by calls of `backward` or autograd nodes, the forward pass by calls of modules or by the
operators before the backward pass. All of these phases are inferred.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from charact.core.gap_phases import with_gaps
from charact.core.operator_types import operator_type, own_operator_type
from charact.core.timeline import Interval, Iteration, phase_at
from charact.core.trace_marks import LAYER_PREFIX, PHASE_PREFIX
from charact.traces.device import find_launches, union
from charact.traces.events import BEFORE_ALL_NS, FORWARDS, LOADER, OPTIMIZER, Mark, Operator, Thread, TraceEvents

Spanned = TypeVar("Spanned", Mark, Operator)
Spans = Sequence[Mark] | Sequence[Operator]

_LOSS_MODULE = re.compile(r"(Loss|Criterion)(_\d+)?$")
_ZERO_GRAD = f"{OPTIMIZER}zero_grad"
_NODE = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")


@dataclass
class Outline:
    """The outermost spans of a trace's threads, by time."""

    main: Thread | None = None
    """The thread of the program's loop; None if no operators were recorded."""
    nodes: list[Operator] = field(default_factory=list)
    """Outermost autograd nodes of every thread."""
    operators: list[Operator] = field(default_factory=list)
    """Outermost operators of the main thread that are not autograd nodes."""
    modules: list[Mark] = field(default_factory=list)
    """Outermost calls of modules in the main thread."""


@dataclass(slots=True)
class _Open:
    """A span that has not ended."""

    end_ns: int
    operator: Operator | None
    """The innermost running operator."""
    layer: str | None
    in_backward: bool
    in_module: bool


def outline(events: TraceEvents) -> Outline:
    """Set every operator's self time, type and layer, and return the outermost spans.

    The layer of a backward operator is that of the forward operator with the same sequence number. A call of a module
    (recorded if the profiler had stacks enabled) is a layer with its own name, such as Conv2d_3.
    """
    outlined = Outline(_main_thread(events))
    layer_of_sequence: dict[int, str | None] = {}
    threads: defaultdict[Thread, list[Operator | Mark]] = defaultdict(list)
    for operator in events.operators:
        threads[operator.thread].append(operator)
    layers = [mark for mark in events.marks if mark.name.startswith(LAYER_PREFIX)]
    for mark in (*(layers or events.modules), *events.forwards):
        threads[mark.thread].append(mark)
    # Forward operators first: backward ones in other threads use their layers.
    for thread in sorted(threads, key=lambda thread: thread != outlined.main):
        is_main, stack = thread == outlined.main, [_Open(BEFORE_ALL_NS, None, None, False, False)]
        for span in sorted(threads[thread], key=lambda span: (span.start_ns, -span.end_ns)):
            while len(stack) > 1 and stack[-1].end_ns <= span.start_ns:
                stack.pop()
            around = stack[-1]
            if isinstance(span, Mark):
                if is_main and not around.in_module and not around.in_backward:
                    outlined.modules.append(span)
                name = around.layer if span.name.startswith(FORWARDS) else span.name.removeprefix(LAYER_PREFIX)
                stack.append(_Open(span.end_ns, around.operator, name, around.in_backward, True))
                continue
            caller, is_node = around.operator, bool(_NODE.search(span.name))
            in_backward = around.in_backward or is_node
            span.self_ns = span.end_ns - span.start_ns
            if caller is not None:
                caller.self_ns = max(0, caller.self_ns - span.self_ns)
            elif is_node:
                outlined.nodes.append(span)
            elif is_main:
                outlined.operators.append(span)
            span.operator_type = operator_type(span.name, caller.operator_type if caller else None)
            span.layer = around.layer
            if span.sequence is not None:
                if not in_backward:
                    # Nested operators share the number; the last to start created the autograd node.
                    layer_of_sequence[span.sequence] = span.layer
                elif span.layer is None:
                    span.layer = layer_of_sequence.get(span.sequence)
            stack.append(_Open(span.end_ns, span, span.layer, in_backward, around.in_module))
    outlined.nodes.sort(key=lambda node: node.start_ns)
    return outlined


def _main_thread(events: TraceEvents) -> Thread | None:
    """Return the thread of the iterations' annotations, else of most module calls, else of most forward operators."""
    forward = [operator for operator in events.operators if not _NODE.search(operator.name)]
    ranked: list[Sequence[Mark | Operator]] = [events.steps, events.modules, forward, events.operators]
    for spans in ranked:
        total: defaultdict[Thread, int] = defaultdict(int)
        for span in spans:
            total[span.thread] += span.end_ns - span.start_ns
        if total:
            return max(total, key=lambda thread: total[thread])
    return None


def find_iterations(events: TraceEvents) -> list[Iteration]:
    """Return iterations by time, without phases yet: those that the trace marks; without marks, all of it is one."""
    iterations: list[Iteration] = []
    for step in sorted(events.steps, key=lambda step: (step.start_ns, step.end_ns)):
        if step.start_ns < step.end_ns and (not iterations or step.start_ns >= iterations[-1].end_ns):
            iterations.append(Iteration(step.start_ns, step.end_ns))
    if events.steps:
        return iterations
    ends = [(span.start_ns, span.end_ns)
            for spans in (events.operators, events.marks, events.modules, events.device) for span in spans]
    ends += [(launch.start_ns, launch.start_ns) for launch in events.launches.values()]
    return [Iteration(min(start for start, _ in ends), max(end for _, end in ends))] if ends else []


def find_phases(events: TraceEvents, outlined: Outline, iterations: Sequence[Iteration]) -> list[Iteration]:
    """Return the iterations with their phases: from charact's own annotations, else from PyTorch's."""
    marks = [(mark.start_ns, mark.end_ns, mark.name.removeprefix(PHASE_PREFIX)) for mark in events.phase_marks]
    if not marks:
        finder = _Finder(events, outlined)
        return [replace(each, intervals=finder.intervals(each.start_ns, each.end_ns)) for each in iterations]
    marked = set(marks)
    intervals = [Interval(span[2], span[0], span[1], inferred=span not in marked,
                          evidence="charact’s mark" if span in marked else "between charact’s marks")
                 for span in with_gaps(marks)]
    apart = within(intervals, min(each.start_ns for each in intervals), max(each.end_ns for each in intervals))
    ends_ns = [each.end_ns for each in apart]
    with_phases = []
    for iteration in iterations:
        first = bisect_right(ends_ns, iteration.start_ns)
        last = bisect_left(apart, iteration.end_ns, key=lambda each: each.start_ns)
        with_phases.append(replace(
            iteration, intervals=within(apart[first:last], iteration.start_ns, iteration.end_ns)))
    return with_phases


def within(intervals: Iterable[Interval], start_ns: int, end_ns: int) -> list[Interval]:
    """Return intervals by time within another, clipped to it; where two overlap, the first continues."""
    inside: list[Interval] = []
    reached_ns = start_ns
    for interval in sorted(intervals, key=lambda each: (each.start_ns, -each.end_ns)):
        begin_ns, until_ns = max(interval.start_ns, reached_ns), min(interval.end_ns, end_ns)
        if begin_ns < until_ns:
            inside.append(replace(interval, start_ns=begin_ns, end_ns=until_ns))
            reached_ns = until_ns
    return inside


def _inferred(phase: str, start_ns: int, end_ns: int, evidence: str) -> Interval:
    return Interval(phase, start_ns, end_ns, inferred=True, evidence=evidence)


class _Finder:
    """Infers phases of iterations without charact's annotations."""

    def __init__(self, events: TraceEvents, outlined: Outline) -> None:
        main = outlined.main
        self._marks = sorted((mark for mark in events.marks if mark.thread == main
                              and mark.name.startswith((LOADER, OPTIMIZER))), key=lambda mark: mark.start_ns)
        self._backwards = sorted((call for call in events.backwards if call.thread == main),
                                 key=lambda call: call.start_ns)
        # Operators of the loader and the optimizer are covered by their annotations.
        self._operators = _outside(outlined.operators, [*self._marks, *self._backwards])
        self._modules = _outside(outlined.modules, self._backwards)
        self._nodes = outlined.nodes
        kinds: tuple[Spans, ...] = (self._operators, self._modules, self._marks)
        self._starts = sorted(span.start_ns for spans in kinds for span in spans)
        self._uploads = sorted(event.launched_ns for event in events.device
                               if event.launched_ns is not None and "HtoD" in event.name)
        self._trains = bool(outlined.nodes or any(mark.name.startswith(OPTIMIZER) for mark in self._marks))

    def intervals(self, start_ns: int, end_ns: int) -> list[Interval]:
        """Return the intervals of the iteration with that start and end."""
        marks = _of(self._marks, start_ns, end_ns)
        marked = [_inferred("data", mark.start_ns, mark.end_ns, "DataLoader’s mark") if mark.name.startswith(LOADER)
                  else _inferred("update", mark.start_ns, mark.end_ns, "optimizer’s mark") for mark in marks]
        zeroing = {mark.start_ns for mark in marks if mark.name.startswith(_ZERO_GRAD)}
        fixed = within([*marked, *self._backward(start_ns, end_ns)], start_ns, end_ns)
        between: list[Interval] = []
        reached_ns, after = end_ns, None
        for interval in reversed([Interval("other", start_ns, start_ns), *fixed]):
            between += self._between(interval.end_ns, reached_ns, after)
            reached_ns = interval.start_ns
            if interval.start_ns not in zeroing:  # zero_grad may be between a forward and its backward
                after = interval.phase
        intervals = within([*fixed, *between], start_ns, end_ns)
        if not intervals or any(each.evidence == "DataLoader’s mark" for each in intervals):
            return intervals
        # Without a marked loader, the time before anything else is data loading.
        first = next((each for each in intervals if each.phase != "data"), intervals[-1])
        until_ns = max((each.end_ns for each in intervals if each.phase == "data" and each.end_ns <= first.start_ns),
                       default=first.start_ns)
        fetch = _inferred("data", start_ns, until_ns, "before the first operator or mark")
        return within([fetch, *intervals], start_ns, intervals[-1].end_ns)

    def _backward(self, start_ns: int, end_ns: int) -> list[Interval]:
        """Return backward passes: calls of `backward`, else uninterrupted runs of autograd nodes."""
        calls = _of(self._backwards, start_ns, end_ns)
        if calls:
            return [_inferred("backward", call.start_ns, call.end_ns, "call of backward") for call in calls]
        runs: list[Interval] = []
        for node in _of(self._nodes, start_ns, end_ns):
            follows = bool(runs) and (bisect_left(self._starts, runs[-1].end_ns)
                                      == bisect_left(self._starts, node.start_ns))
            begin_ns = runs.pop().start_ns if follows else node.start_ns
            runs.append(_inferred("backward", begin_ns, max(node.end_ns, begin_ns), "autograd’s nodes"))
        return runs

    def _between(self, start_ns: int, end_ns: int, after: str | None) -> list[Interval]:
        """Return forward and loss in a gap, and copies of a batch to the device before them."""
        modules = _of(self._modules, start_ns, end_ns)
        operators = _of(self._operators, start_ns, end_ns)
        intervals: list[Interval] = []
        uploads = self._leading_uploads(operators, modules)
        if uploads:
            intervals.append(_inferred("data", uploads[0].start_ns, uploads[-1].end_ns, "copy to the device"))
            operators = operators[operators.index(uploads[-1]) + 1:]
        if not modules and self._trains and after != "backward":
            return intervals
        models = [span for span in modules if not _LOSS_MODULE.search(span.name)]
        losses: list[Mark] | list[Operator] = [span for span in modules if _LOSS_MODULE.search(span.name)]
        if not modules:
            losses = [span for span in operators if own_operator_type(span.name) == "loss"][:1]
        loss_ns = losses[0].start_ns if losses else end_ns
        inner: list[Mark] | list[Operator] = models or [span for span in operators if span.start_ns < loss_ns]
        reached_ns = None
        if inner:
            reached_ns = max(span.end_ns for span in inner)
            intervals.append(_inferred("forward", inner[0].start_ns, reached_ns,
                                       "calls of modules" if models else "operators"))
        elif losses:
            reached_ns = losses[0].start_ns
        if reached_ns is not None and after == "backward":
            intervals.append(_inferred("loss", reached_ns, end_ns, "between forward and backward"))
        else:
            intervals += [_inferred("loss", span.start_ns, span.end_ns, "calls of losses") for span in losses]
        return intervals

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


def _of(spans: Sequence[Spanned], start_ns: int, end_ns: int) -> list[Spanned]:
    first = bisect_left(spans, start_ns, key=lambda span: span.start_ns)
    last = bisect_left(spans, end_ns, key=lambda span: span.start_ns)
    return list(spans[first:last])


def _outside(spans: Sequence[Spanned], enclosing: Iterable[Mark]) -> list[Spanned]:
    """Return spans by time that begin in none of others."""
    covered = [(start_ns, end_ns, "") for start_ns, end_ns in union((mark.start_ns, mark.end_ns) for mark in enclosing)]
    return [span for span in sorted(spans, key=lambda span: span.start_ns) if phase_at(covered, span.start_ns) is None]


@dataclass(frozen=True)
class AttributedTrace:
    """A trace's events with their iterations and phases."""

    events: TraceEvents
    outlined: Outline
    iterations: list[Iteration]

    @property
    def marked(self) -> tuple[int, int] | None:
        """Start of the first marked iteration and end of the last one; None if the trace marks none."""
        return (self.iterations[0].start_ns, self.iterations[-1].end_ns) if self.events.steps else None

    def phase_at(self, moment_ns: int | None) -> str | None:
        """Return the phase at a time on the host, `other` between phases; None outside all iterations."""
        if moment_ns is None:
            return None
        number = bisect_right(self.iterations, moment_ns, key=lambda each: each.start_ns) - 1
        if number < 0 or moment_ns > self.iterations[number].end_ns:
            return None
        return self.iterations[number].phase_at(moment_ns)


def attribute(events: TraceEvents) -> AttributedTrace:
    """Find iterations and phases of a trace; layers, callers and launches are set in its events."""
    outlined = outline(events)
    find_launches(events)
    return AttributedTrace(events, outlined, find_phases(events, outlined, find_iterations(events)))
