"""Reader of the profiler's event tree: phases, layers, operators and allocations in one walk.

The tree comes directly from Kineto's results. `torch.profiler`'s own `events()` and `key_averages()` create a Python
object per event, which takes 60 to 290 ms for one ResNet-18 iteration; the walk takes a few.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import profile

from charact.core.gap_phases import with_gaps
from charact.core.operator_types import operator_type, own_operator_type
from charact.core.timeline import phase_at
from charact.core.trace_marks import KERNEL_PREFIX, LAYER_PREFIX, PHASE_PREFIX, RELEASE_PREFIX

_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")
_BEFORE_KERNEL = ("view", "allocation")
"""Operator types of what compiled code may do between the mark of a kernel and the kernel."""


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
    calls_itself: bool = False
    """Whether an operator of the same name called it: the same call, for another layout or device."""
    caller: "Operator | None" = None
    """Innermost enclosing operator."""
    inputs: Any = ()
    """Recorded arguments, if the tree is read with them: tensors' shapes, strides and types, and single numbers."""
    dtype: str | None = None
    """Type of the first floating-point tensor input."""
    recomputed: bool = False
    """Whether a layer's forward that runs inside a backward called it."""


@dataclass(slots=True)
class Allocation:
    """A block allocated (bytes > 0) or freed (bytes < 0) by PyTorch's allocator."""

    time_ns: int
    address: int
    num_bytes: int
    device: str
    operator_end_ns: int
    """End of the outermost enclosing operator; the event's own time outside of all operators."""
    layer: str | None = None
    operator: str | None = None
    """Outermost enclosing operator that is not an autograd node."""


@dataclass
class EventTree:
    """Phases, operators, and allocated and released blocks of a profile; all times in ns."""

    marks: list[tuple[int, int, str]] = field(default_factory=list)
    """Start, end and name of each phase annotation, in order of time."""
    phases: list[tuple[int, int, str]] = field(default_factory=list)
    """The same, including gaps that have a phase."""
    operators: list[Operator] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    releases: list[tuple[int, int]] = field(default_factory=list)
    """Time of each release of a block older than the iteration, and the block's index in `BlockOwners.before`."""
    out_of_memory_ns: int | None = None
    """Time of the last failed allocation, or None. Some libraries retry with less."""

    def phase_at(self, time_ns: int) -> str | None:
        """Return the phase at a time; None between phases."""
        return phase_at(self.phases, time_ns)


def read_event_tree(profiler: profile, *, with_inputs: bool = False) -> EventTree:
    """Read the events of a stopped profiler."""
    assert profiler.profiler is not None
    return read_results(profiler.profiler.kineto_results, with_inputs=with_inputs)


def read_results(results: Any, *, with_inputs: bool = False) -> EventTree:
    """Read Kineto's results."""
    roots = results.experimental_event_tree()
    walk = _Walk(with_inputs)
    # Other threads (autograd's, on CUDA) have no phase annotations: read them last, and attribute them by time.
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
    """Context of an event."""

    phase: str | None = None
    layer: str | None = None
    operator_type: str | None = None
    operator_end_ns: int | None = None
    operator: str | None = None
    caller: Operator | None = None
    """Innermost enclosing operator."""
    recomputes: bool = False
    """Whether a layer's forward runs inside a backward."""
    kernel_layer: str | None = None
    """Layer of the next kernel of compiled code, if it is marked."""


class _Walk:
    def __init__(self, with_inputs: bool) -> None:
        self.tree = EventTree()
        self._with_inputs = with_inputs
        self._layer_of_sequence: dict[int, str | None] = {}

    def visit(self, event: Any, context: _Context) -> int:
        """Record an event and its descendants; return the time (ns) that is not self time of the enclosing operator."""
        name: str = event.name
        extra, time_ns = event.extra_fields, event.start_time_ns
        if name == "[memory]":
            self.tree.allocations.append(Allocation(
                time_ns, extra.ptr, extra.alloc_size, str(extra.device), context.operator_end_ns or time_ns,
                context.layer, context.operator))
            return 0
        if name == "[OutOfMemory]":
            self.tree.out_of_memory_ns = max(time_ns, self.tree.out_of_memory_ns or 0)
            return 0
        # Events without a sequence number are Python calls, kernels or runtime calls, not operators.
        if hasattr(extra, "sequence_number"):
            if name.startswith(PHASE_PREFIX):
                phase = name.removeprefix(PHASE_PREFIX)
                self.tree.marks.append((time_ns, event.end_time_ns, phase))
                context = _Context(phase=phase)
            elif name.startswith(LAYER_PREFIX):
                context = _Context(context.phase, name.removeprefix(LAYER_PREFIX), None, context.operator_end_ns,
                                   context.operator, context.caller, context.phase == "backward")
            elif name.startswith(RELEASE_PREFIX):
                self.tree.releases.append((time_ns, int(name.removeprefix(RELEASE_PREFIX))))
            elif name.startswith(KERNEL_PREFIX):
                context.kernel_layer = name.removeprefix(KERNEL_PREFIX)
            elif not name.startswith(_ANNOTATIONS) and (
                    own_operator_type(name) is not None or extra.scope.name != "USER_SCOPE"):
                return self._operator(event, extra, name, context)
        return sum(self.visit(child, context) for child in event.children)

    def _operator(self, event: Any, extra: Any, name: str, context: _Context) -> int:
        sequence: int = extra.sequence_number
        kind = operator_type(name, context.operator_type)
        layer = context.kernel_layer or context.layer
        if context.kernel_layer is not None:
            if kind not in _BEFORE_KERNEL:
                context.kernel_layer = None
        elif sequence >= 0:
            if context.phase != "backward":
                # Nested operators share the number; the last one to start created the autograd node.
                self._layer_of_sequence[sequence] = layer
            elif layer is None:
                layer = self._layer_of_sequence.get(sequence)
        duration: int = event.duration_time_ns
        caller = context.caller
        calls_itself = caller is not None and caller.name == name
        inputs = extra.inputs
        if caller is not None and calls_itself:
            shapes, dtype = caller.input_shapes, caller.dtype
        else:
            shapes, dtype = _shapes(inputs), _floating_dtype(inputs) if inputs else None
        operator = Operator(context.phase, name, kind, layer, shapes, duration, event.correlation_id,
                            event.start_time_ns, calls_itself, caller, inputs if self._with_inputs else (), dtype,
                            context.recomputes)
        self.tree.operators.append(operator)
        if children := event.children:
            # A backward node calls the operators that do the work.
            is_node = name.startswith("autograd::") or (context.phase == "backward" and "::" not in name)
            inner = _Context(context.phase, layer, kind, context.operator_end_ns or event.end_time_ns,
                             context.operator or (None if is_node else name), operator, context.recomputes)
            operator.self_ns -= sum(self.visit(child, inner) for child in children)
        return duration


def _shapes(inputs: list[Any]) -> str:
    shapes: list[Any] = []
    for value in inputs:
        if hasattr(value, "sizes"):
            shapes.append(value.sizes)
        elif isinstance(value, list) and value and hasattr(value[0], "sizes"):
            shapes.append(f"{len(value)}_tensors")
    return str(shapes).replace(" ", "").replace("'", '"')


def _floating_dtype(inputs: list[Any]) -> str | None:
    """Return the type of the first floating-point tensor that is no single number; None if there is none.

    Numbers do not count: PyTorch passes those of Python as float64 tensors.
    """
    for value in inputs:
        first = value[0] if isinstance(value, list) and value else value
        dtype = getattr(first, "dtype", None)
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point and first.sizes:
            return str(dtype).removeprefix("torch.")
    return None
