"""Phases of a trace's iterations, from charact's annotations, else from the program's own and PyTorch's.

Programs name phases in annotations, and PyTorch marks data loading (`DataLoader`) and updates (`Optimizer`). Where
neither does, the backward pass is recognized by calls of `backward` or autograd nodes, the forward pass by calls of
modules or by the operators before the backward pass. Those phases are inferred.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from charact.core.gap_phases import with_gaps
from charact.core.operator_types import own_operator_type
from charact.core.timeline import Interval, Iteration, phase_at
from charact.core.trace_marks import PHASE_PREFIX
from charact.traces.device_events import find_launches, union
from charact.traces.events import BEFORE_ALL_NS, FORWARDS, LOADER, OPTIMIZER, Mark, Operator, TraceEvents
from charact.traces.iterations import FoundIterations, find_iterations
from charact.traces.named_phases import phase_of_name
from charact.traces.outline import Outline, outline

Spanned = TypeVar("Spanned", Mark, Operator)
Spans = Sequence[Mark] | Sequence[Operator]

_LOSS_MODULE = re.compile(r"(Loss|Criterion)(_\d+)?$")
_LOADERS_MARK = "DataLoader’s mark"
_OF_MODELS = frozenset(["GEMM", "attention", "convolution", "embedding", "normalization", "recurrent"])
"""Operator types that belong to a model and not to a loss."""
_LAUNCH_NS = 50_000
"""A copy to an idle device starts within this time."""
_ZERO_GRAD = f"{OPTIMIZER}zero_grad"


def find_phases(events: TraceEvents, outlined: Outline, iterations: Sequence[Iteration], *,
                has_iterations: bool = True) -> list[Iteration]:
    """Return the iterations with their phases: from charact's own annotations, else from the program's and PyTorch's.

    `has_iterations`: whether the trace marks them.
    """
    marks = [(mark.start_ns, mark.end_ns, mark.name.removeprefix(PHASE_PREFIX)) for mark in events.phase_marks]
    if not marks:
        finder = _Finder(events, outlined, has_iterations=has_iterations)
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


@dataclass(frozen=True)
class _Upload:
    """A copy from the host to the device."""

    launched_ns: int
    start_ns: int
    free_ns: int
    """When the device had finished what was launched before."""


class _Finder:
    """Finds phases of iterations without charact's annotations: those that the program names, and by rules."""

    def __init__(self, events: TraceEvents, outlined: Outline, *, has_iterations: bool) -> None:
        main = outlined.main
        self._named = sorted((mark for mark in events.named if mark.thread == main), key=lambda mark: mark.start_ns)
        self._marks = sorted((mark for mark in events.marks if mark.thread == main
                              and mark.name.startswith((LOADER, OPTIMIZER))), key=lambda mark: mark.start_ns)
        self._backwards = sorted((call for call in events.backwards if call.thread == main),
                                 key=lambda call: call.start_ns)
        # Operators of the loader, the optimizer and named phases are covered by their annotations.
        self._operators = _outside(outlined.operators, [*self._named, *self._marks, *self._backwards])
        self._modules = _outside(outlined.modules, [*self._named, *self._backwards])
        self._nodes = _outside(outlined.nodes, self._named)
        kinds: tuple[Spans, ...] = (self._operators, self._modules, self._marks)
        self._starts = sorted(span.start_ns for spans in kinds for span in spans)
        self._uploads = _uploads(events)
        self._trains = bool(outlined.nodes or any(mark.name.startswith(OPTIMIZER) for mark in self._marks))
        fetches = self._trains and has_iterations
        self._launches = sorted(launch.start_ns for launch in events.launches.values()
                                if launch.thread == main) if fetches else []
        self._fetches = fetches

    def intervals(self, start_ns: int, end_ns: int) -> list[Interval]:
        """Return the intervals of the iteration with that start and end."""
        marks, named = _of(self._marks, start_ns, end_ns), _of(self._named, start_ns, end_ns)
        marked = [_inferred("data", mark.start_ns, mark.end_ns, _LOADERS_MARK) if mark.name.startswith(LOADER)
                  else _inferred("update", mark.start_ns, mark.end_ns, "optimizer’s mark") for mark in marks]
        marked += [Interval(phase_of_name(mark.name) or "other", mark.start_ns, mark.end_ns,
                            evidence="the program’s annotation") for mark in named]
        phases = {phase_of_name(mark.name) for mark in named}
        zeroing = {mark.start_ns for mark in marks if mark.name.startswith(_ZERO_GRAD)}
        backward = [] if "backward" in phases else self._backward(start_ns, end_ns)
        fixed = within([*_innermost(marked), *backward], start_ns, end_ns)
        between: list[Interval] = []
        reached_ns, after = end_ns, None
        for interval in reversed([Interval("other", start_ns, start_ns), *fixed]):
            if "forward" in phases:
                between += self._between_named(interval.end_ns, reached_ns, phases)
            else:
                between += self._between(interval.end_ns, reached_ns, after)
            reached_ns = interval.start_ns
            if interval.start_ns not in zeroing:  # zero_grad may be between a forward and its backward
                after = interval.phase
        intervals = within([*fixed, *between], start_ns, end_ns)
        if not self._fetches or phases or any(each.evidence == _LOADERS_MARK for each in intervals):
            return intervals
        # Without a marked loader, a training's host fetches the batch before it does anything else.
        first_ns = min((each.start_ns for each in intervals), default=end_ns)
        for starts in (self._starts, self._launches):
            place = bisect_left(starts, start_ns)
            first_ns = min(first_ns, starts[place]) if place < len(starts) else first_ns
        return within([_inferred("data", start_ns, first_ns, "before the first operator or mark"), *intervals],
                      start_ns, end_ns)

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

    def _between_named(self, start_ns: int, end_ns: int, phases: AbstractSet[str | None]) -> list[Interval]:
        """Return losses in a gap of an iteration whose forward pass is named, and copies to the device.

        Other work there, such as waiting for other ranks, is not the loss.
        """
        operators = _of(self._operators, start_ns, end_ns)
        intervals = [] if "data" in phases else self._leading_uploads(operators, end_ns)
        if "loss" not in phases:
            losses: Spans = [span for span in _of(self._modules, start_ns, end_ns) if _LOSS_MODULE.search(span.name)]
            losses = losses or [span for span in operators if own_operator_type(span.name) == "loss"]
            intervals += [_inferred("loss", span.start_ns, span.end_ns, "calls of losses") for span in losses]
        return intervals

    def _between(self, start_ns: int, end_ns: int, after: str | None) -> list[Interval]:
        """Return forward and loss in a gap, and copies of a batch to the device before them."""
        modules = _of(self._modules, start_ns, end_ns)
        operators = _of(self._operators, start_ns, end_ns)
        intervals = self._leading_uploads(operators, modules[0].start_ns if modules else None)
        if intervals and not modules:
            operators = [span for span in operators if span.start_ns >= intervals[-1].end_ns]
        if not modules and self._trains and after not in ("backward", "loss"):
            return intervals
        models = [span for span in modules if not _LOSS_MODULE.search(span.name)]
        losses: list[Mark] | list[Operator] = [span for span in modules if _LOSS_MODULE.search(span.name)]
        wrapped = bool(models) and all(span.name.startswith(FORWARDS) for span in models)
        if not modules or (wrapped and not losses):
            losses = [span for span in operators if own_operator_type(span.name) == "loss"][:1]
        loss_ns = losses[0].start_ns if losses else end_ns
        inner: list[Mark] | list[Operator] = models or [span for span in operators if span.start_ns < loss_ns]
        reached_ns = None
        if inner:
            begin_ns, reached_ns = inner[0].start_ns, max(span.end_ns for span in inner)
            if wrapped:  # perhaps around a part of the model
                rest = [span for span in operators if span.start_ns < loss_ns and span.operator_type in _OF_MODELS]
                begin_ns = min([begin_ns, *(span.start_ns for span in rest)])
                reached_ns = max([reached_ns, *(span.end_ns for span in rest)])
            intervals.append(_inferred("forward", begin_ns, reached_ns, "calls of modules" if models else "operators"))
        elif losses:
            reached_ns = losses[0].start_ns
        if reached_ns is not None and after == "backward":
            intervals.append(_inferred("loss", reached_ns, end_ns, "between forward and backward"))
        elif after != "loss":
            intervals += [_inferred("loss", span.start_ns, span.end_ns, "calls of losses") for span in losses]
        return intervals

    def _leading_uploads(self, operators: Sequence[Operator], forward_ns: int | None) -> list[Interval]:
        """Return operators that copy to the device before the forward pass; in a training, consecutive ones are joined.

        A copy that waits for most of its operator's time is not data loading while it waits.
        """
        intervals: list[Interval] = []
        follows = False
        for operator in operators:
            place = bisect_left(self._uploads, operator.start_ns, key=lambda upload: upload.launched_ns)
            upload = self._uploads[place] if place < len(self._uploads) else None
            is_upload = upload is not None and upload.launched_ns < operator.end_ns
            if upload is not None and is_upload and (forward_ns is None or operator.start_ns < forward_ns):
                length_ns, begin_ns = operator.end_ns - operator.start_ns, operator.start_ns
                if upload.start_ns < operator.end_ns and upload.start_ns - upload.launched_ns > length_ns / 2:
                    begin_ns = upload.start_ns
                elif upload.start_ns - max(upload.launched_ns, upload.free_ns) > max(length_ns, _LAUNCH_NS):
                    continue  # queued behind work that the trace lacks
                if follows and self._trains and begin_ns == operator.start_ns:
                    begin_ns = intervals.pop().start_ns
                intervals.append(_inferred("data", begin_ns, operator.end_ns, "copy to the device"))
                follows = True
            elif forward_ns is None:
                break
            else:
                follows = False
        return intervals


def _uploads(events: TraceEvents) -> list[_Upload]:
    """Return the copies from the host to the device, by their launches."""
    launched = sorted((event for event in events.device if event.launched_ns is not None),
                      key=lambda event: event.launched_ns or 0) if any(
                          "HtoD" in event.name for event in events.device) else []
    uploads, free_ns = [], BEFORE_ALL_NS
    for event in launched:
        if "HtoD" in event.name and event.launched_ns is not None:
            uploads.append(_Upload(event.launched_ns, event.start_ns, free_ns))
        free_ns = max(free_ns, event.end_ns)
    return uploads


def _innermost(intervals: Iterable[Interval]) -> list[Interval]:
    """Return nested intervals without overlap: at each time the innermost one counts.

    What a backward pass calls again, as checkpointing does, remains backward.
    """
    apart: list[Interval] = []
    open_: list[Interval] = []
    reached_ns = BEFORE_ALL_NS

    def emit(until_ns: int) -> None:
        if open_ and reached_ns < until_ns:
            apart.append(replace(open_[-1], start_ns=reached_ns, end_ns=until_ns))

    for each in sorted(intervals, key=lambda each: (each.start_ns, -each.end_ns)):
        while open_ and open_[-1].end_ns <= each.start_ns:
            emit(open_[-1].end_ns)
            reached_ns = max(reached_ns, open_.pop().end_ns)
        emit(each.start_ns)
        reached_ns = max(reached_ns, each.start_ns)
        repeats = bool(open_) and open_[-1].phase == "backward" and each.phase in ("forward", "loss")
        open_.append(replace(each, phase="backward") if repeats else each)
    while open_:
        emit(open_[-1].end_ns)
        reached_ns = max(reached_ns, open_.pop().end_ns)
    return apart


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
    found: FoundIterations

    @property
    def marked(self) -> tuple[int, int] | None:
        """Start of the first marked iteration and end of the last one; None if the trace marks none."""
        if self.found.marks is None or not self.iterations:
            return None
        return self.iterations[0].start_ns, self.iterations[-1].end_ns

    @cached_property
    def launch_phases(self) -> list[str | None]:
        """Phases in which the device's events were launched, in their order; None outside all iterations."""
        return [self.phase_at(event.launched_ns) for event in self.events.device]

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
    found = find_iterations(events, outlined)
    return AttributedTrace(events, outlined, find_phases(
        events, outlined, found.iterations, has_iterations=found.marks is not None), found)
