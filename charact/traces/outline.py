"""Nesting of a trace's spans: the outermost ones of each thread, and each operator's self time, type and layer."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from charact.core.operator_types import operator_type
from charact.core.trace_marks import LAYER_PREFIX
from charact.traces.events import BEFORE_ALL_NS, FORWARDS, OPTIMIZER, Mark, Operator, Thread, TraceEvents

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
    """Return the thread of most annotations of iterations, else of optimizer and phases, of modules, of operators."""
    forward = [operator for operator in events.operators if not _NODE.search(operator.name)]
    optimizer = [mark for mark in events.marks if mark.name.startswith(OPTIMIZER)]
    ranked: list[Sequence[Mark | Operator]] = [events.steps, [*optimizer, *events.named], events.modules, forward,
                                               events.operators]
    for spans in ranked:
        total: defaultdict[Thread, int] = defaultdict(int)
        for span in spans:
            total[span.thread] += span.end_ns - span.start_ns
        if total:
            return max(total, key=lambda thread: total[thread])
    return None
