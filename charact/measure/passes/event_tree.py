"""Reading the profiler's event tree: phases, layers, operators and allocations, in one walk.

The tree comes from Kineto's results directly. `torch.profiler`'s own `events()` and `key_averages()` build a Python
object an event and cost 60 to 290 ms for one ResNet-18 iteration; the walk costs a few (see benchmarks/).
"""

from dataclasses import dataclass, field
from typing import Any

from torch.profiler import profile

from charact.core.operator_types import operator_type, own_operator_type
from charact.core.trace_marks import LAYER_PREFIX, PHASE_PREFIX, RELEASE_PREFIX, phase_at, with_gaps

_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")


@dataclass(slots=True)
class Operator:
    """One call of an operator."""

    phase: str | None
    name: str
    operator_type: str
    layer: str | None
    input_shapes: str
    self_ns: int
    correlation_id: int
    start_ns: int = 0


@dataclass(slots=True)
class Allocation:
    """A block handed out (bytes > 0) or given back (bytes < 0) by PyTorch's allocator."""

    time_ns: int
    address: int
    num_bytes: int
    device: str
    operator_end_ns: int
    """When the outermost operator around it ended; the time itself where it lies outside of any."""
    layer: str | None = None
    operator: str | None = None
    """The outermost operator around it that is not one of autograd's nodes."""


@dataclass
class EventTree:
    """What a profiled stretch holds."""

    marks: list[tuple[int, int, str]] = field(default_factory=list)
    """Start, end, name of each mark around a phase, by time."""
    phases: list[tuple[int, int, str]] = field(default_factory=list)
    """The same with the gaps that have a phase, too."""
    operators: list[Operator] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    releases: list[tuple[int, int]] = field(default_factory=list)
    """Time and number of each mark of a release."""
    out_of_memory_ns: int | None = None
    """When there was last no memory for a block; None where there always was. Some libraries try again with less."""

    def phase_at(self, time_ns: int) -> str | None:
        """Name of the phase that a moment lies in; None between phases."""
        return phase_at(self.phases, time_ns)


def read_event_tree(profiler: profile) -> EventTree:
    """Walk the events of a profiler that has stopped."""
    assert profiler.profiler is not None
    return read_results(profiler.profiler.kineto_results)


def read_results(results: Any) -> EventTree:
    """The same of what Kineto gave."""
    roots = results.experimental_event_tree()
    walk = _Walk()
    # Other threads (autograd's, on CUDA) hold no phase marks: they are read last, and placed by time.
    marked = [root for root in roots if root.name.startswith(("ProfilerStep#", PHASE_PREFIX))]
    for root in marked:
        walk.visit(root, _Context())
    for root in roots:
        if root not in marked:
            walk.visit(root, _Context(phase=phase_at(walk.tree.marks, root.start_time_ns)))
    tree = walk.tree
    tree.phases = with_gaps(tree.marks)
    for operator in tree.operators:
        operator.phase = operator.phase or tree.phase_at(operator.start_ns)
    tree.allocations.sort(key=lambda allocation: allocation.time_ns)
    return tree


@dataclass(slots=True)
class _Context:
    """What encloses an event."""

    phase: str | None = None
    layer: str | None = None
    operator_type: str | None = None
    operator_end_ns: int | None = None
    operator: str | None = None


class _Walk:
    def __init__(self) -> None:
        self.tree = EventTree()
        self._layer_of_sequence: dict[int, str | None] = {}

    def visit(self, event: Any, context: _Context) -> int:
        """Record an event and all below it; returns how much of the enclosing operator's time its operators took."""
        name: str = event.name
        if name == "[memory]":
            self._allocation(event, context)
            return 0
        if name == "[OutOfMemory]":
            self.tree.out_of_memory_ns = max(event.start_time_ns, self.tree.out_of_memory_ns or 0)
            return 0
        extra = event.extra_fields
        # What has no sequence number is a call into Python, a kernel or a runtime call: no operator.
        if hasattr(extra, "sequence_number"):
            if name.startswith(PHASE_PREFIX):
                phase = name.removeprefix(PHASE_PREFIX)
                self.tree.marks.append((event.start_time_ns, event.end_time_ns, phase))
                context = _Context(phase=phase)
            elif name.startswith(LAYER_PREFIX):
                context = _Context(context.phase, name.removeprefix(LAYER_PREFIX), None, context.operator_end_ns,
                                   context.operator)
            elif name.startswith(RELEASE_PREFIX):
                self.tree.releases.append((event.start_time_ns, int(name.removeprefix(RELEASE_PREFIX))))
            elif not _is_annotation(name, extra):
                return self._operator(event, extra, name, context)
        return sum(self.visit(child, context) for child in event.children)

    def _operator(self, event: Any, extra: Any, name: str, context: _Context) -> int:
        sequence: int = extra.sequence_number
        layer = context.layer
        if sequence >= 0:
            if context.phase != "backward":
                # Nested operators share the number; the last to start made the autograd node.
                self._layer_of_sequence[sequence] = layer
            elif layer is None:
                layer = self._layer_of_sequence.get(sequence)
        kind = operator_type(name, context.operator_type)
        duration: int = event.duration_time_ns
        operator = Operator(context.phase, name, kind, layer, _shapes(extra.inputs), duration,
                            event.correlation_id, event.start_time_ns)
        self.tree.operators.append(operator)
        if children := event.children:
            inner = _Context(context.phase, layer, kind, context.operator_end_ns or event.end_time_ns,
                             context.operator or (None if _is_autograd_node(name, context.phase) else name))
            operator.self_ns -= sum(self.visit(child, inner) for child in children)
        return duration

    def _allocation(self, event: Any, context: _Context) -> None:
        extra = event.extra_fields
        time_ns: int = event.start_time_ns
        self.tree.allocations.append(Allocation(time_ns, extra.ptr, extra.alloc_size, str(extra.device),
                                                context.operator_end_ns or time_ns, context.layer,
                                                context.operator))


def _is_annotation(name: str, extra: Any) -> bool:
    """Whether an event is a span that someone named (an iteration, an optimizer's step), not an operator."""
    return name.startswith(_ANNOTATIONS) or (own_operator_type(name) is None and extra.scope.name == "USER_SCOPE")


def _is_autograd_node(name: str, phase: str | None) -> bool:
    """Whether an operator is a node of the backward pass, which calls the operators that do the work."""
    return name.startswith("autograd::") or (phase == "backward" and "::" not in name)


def _shapes(inputs: list[Any]) -> str:
    """Shapes of the tensor inputs as JSON; a list of tensors is told by its length."""
    shapes: list[Any] = []
    for value in inputs:
        if hasattr(value, "sizes"):
            shapes.append(value.sizes)
        elif isinstance(value, list) and value and hasattr(value[0], "sizes"):
            shapes.append(f"{len(value)}_tensors")
    return str(shapes).replace(" ", "").replace("'", '"')
