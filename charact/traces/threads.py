"""Nesting of operators in a trace: caller, layer and backward pass of each operator."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from charact.core.operator_types import operator_type
from charact.core.trace_marks import LAYER_PREFIX
from charact.traces.events import FORWARDS, STEP, Mark, Operator, Thread, TraceEvents

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


def outline(kept: TraceEvents) -> Outline:
    """Set every operator's self time, type and layer, and return the outermost spans.

    The layer of a backward operator is that of the forward operator with the same sequence number. A call of a module
    (recorded if the profiler had stacks enabled) is a layer with its own name, such as Conv2d_3.
    """
    found = Outline(_main_thread(kept))
    layer_of_sequence: dict[int, str | None] = {}
    threads: defaultdict[Thread, list[Operator | Mark]] = defaultdict(list)
    for operator in kept.operators:
        threads[operator.thread].append(operator)
    layers = [mark for mark in kept.marks if mark.name.startswith(LAYER_PREFIX)]
    for mark in (*(layers or kept.modules), *kept.forwards):
        threads[mark.thread].append(mark)
    # Forward operators first: backward ones in other threads use their layers.
    for thread in sorted(threads, key=lambda one: one != found.main):
        _walk(threads[thread], found, layer_of_sequence, is_main=thread == found.main)
    found.nodes.sort(key=lambda node: node.start_ns)
    return found


def _main_thread(kept: TraceEvents) -> Thread | None:
    """Return the thread of the iterations' annotations, else of most module calls, else of most forward operators."""
    steps = [mark for mark in kept.marks if mark.name.startswith(STEP)]
    candidates = [[operator for operator in kept.operators if not _NODE.search(operator.name)], kept.operators]
    ranked: list[Sequence[Mark | Operator]] = [steps, kept.modules, *candidates]
    for spans in ranked:
        total: defaultdict[Thread, int] = defaultdict(int)
        for span in spans:
            total[span.thread] += span.end_ns - span.start_ns
        if total:
            return max(total, key=lambda thread: total[thread])
    return None


def _walk(spans: list[Operator | Mark], found: Outline, layer_of_sequence: dict[int, str | None], *,
          is_main: bool) -> None:
    """Process one thread's spans from the outermost in."""
    spans.sort(key=lambda span: (span.start_ns, -span.end_ns))
    outside = _Open(0, None, None, False, False)
    stack: list[_Open] = []
    for span in spans:
        while stack and stack[-1].end_ns <= span.start_ns:
            stack.pop()
        around = stack[-1] if stack else outside
        if isinstance(span, Mark):
            if is_main and not around.in_module and not around.in_backward:
                found.modules.append(span)
            name = around.layer if span.name.startswith(FORWARDS) else span.name.removeprefix(LAYER_PREFIX)
            stack.append(_Open(span.end_ns, around.operator, name, around.in_backward, True))
            continue
        is_node = bool(_NODE.search(span.name))
        if around.operator is None:
            if is_node:
                found.nodes.append(span)
            elif is_main:
                found.operators.append(span)
        in_backward = around.in_backward or is_node
        _describe(span, around, layer_of_sequence, in_backward)
        stack.append(_Open(span.end_ns, span, span.layer, in_backward, around.in_module))


def _describe(operator: Operator, around: _Open, layer_of_sequence: dict[int, str | None], in_backward: bool) -> None:
    caller = around.operator
    length_ns = operator.end_ns - operator.start_ns
    operator.self_ns = length_ns
    if caller is not None:
        caller.self_ns = max(0, caller.self_ns - length_ns)
    operator.operator_type = operator_type(operator.name, caller.operator_type if caller else None)
    operator.layer = around.layer
    if operator.sequence is not None:
        if not in_backward:
            # Nested operators share the number; the last to start created the autograd node.
            layer_of_sequence[operator.sequence] = operator.layer
        elif operator.layer is None:
            operator.layer = layer_of_sequence.get(operator.sequence)
