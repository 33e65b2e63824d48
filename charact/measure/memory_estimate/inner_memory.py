"""Internal memory of operators: what they allocate in addition to their outputs, measured or as a modelled range."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from charact.core.operator_types import operator_type
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Op
from charact.measure.memory_estimate.operator_memory import CallMemory, Layout, OperatorCall, OperatorMemory
from charact.measure.memory_estimate.replay import HostAllocator, replay
from charact.record.manifest_passes import Workspaces

_NEGLIGIBLE_FRAC = 1e-4
"""A call is measured only if it could raise its phase's peak by more than this share."""
_CALLS_A_ROUND = 4
"""Calls that are measured before the certain peaks are computed again."""
_VECTOR_CHANNELS = 16
"""Channels of oneDNN's blocked layouts are padded to a multiple of this."""
_MATRIX_BLOCK = 64
"""Rows and columns of oneDNN's copies of 16-bit matrices are padded to a multiple of this."""
_MIN_HIGH_BYTES = 2**17
"""Minimum of the upper end: reductions and threads have buffers of this order."""
_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")


@dataclass(frozen=True)
class Inner:
    """Internal memory of each operator of a trace, and the size of each block (bytes)."""

    workspaces: list[int]
    sizes: list[int]


@dataclass(frozen=True)
class Range:
    """Minimum, likely and maximum internal memory."""

    low: Inner
    likely: Inner
    high: Inner
    uncertain: set[str]
    """Names of operators whose memory is modelled, with a wide range."""
    scarce: Inner | None = None
    """Maximum where memory is scarce and operators take algorithms that need less; `high` by default."""

    def with_more(self, more: Sequence[int]) -> "Range":
        """Return the range with bytes added to the internal memory of each operator."""
        low, likely, high = (replace(inner, workspaces=[sum(pair) for pair in zip(inner.workspaces, more, strict=True)])
                             for inner in (self.low, self.likely, self.high))
        return replace(self, low=low, likely=likely, high=high)


def measured_inner(trace: AllocationTrace, memory: OperatorMemory) -> tuple[Range, Workspaces]:
    """Return the internal memory of a trace's operators on this CPU, and facts about its measurement.

    Two kinds of calls are measured: the smallest call of each operator, to check the sizes of its outputs, and each
    call that may decide the peak of a phase. A call may decide it if the model's upper end exceeds the largest total
    that is certain. All others keep the model's likely value, at most up to that total.

    `num_measured`: distinct calls with measured memory; `num_modelled`: calls that may decide a peak but cannot run
    alone; `reason`: why the first of these cannot.
    """
    search = _PeakSearch(trace, memory)
    search.measure_what_decides()
    return search.result()


class _PeakSearch:
    """Search of the operators that decide the peaks of phases."""

    def __init__(self, trace: AllocationTrace, memory: OperatorMemory) -> None:
        self._trace, self._memory = trace, memory
        self._sizes = [block.num_bytes for block in trace.blocks]
        self._places: dict[OperatorCall, list[int]] = defaultdict(list)
        """Indices of the operators with this call."""
        for number, op in enumerate(trace.ops):
            if op.call is not None:
                self._places[op.call].append(number)
        self._known: dict[OperatorCall, CallMemory] = {}
        self._tried: set[OperatorCall] = set()
        """Calls that this search tried to measure."""
        self._set_sizes()
        self._model = {call: modelled(trace.ops[places[0]], self._sizes) for call, places in self._places.items()}
        self._known |= memory.cached(self._places)
        curve, _ = replay(trace, HostAllocator(), [0] * len(trace.ops), self._sizes)
        self._totals = [snapshot.total_bytes for snapshot in curve.snapshots]

    def measure_what_decides(self) -> None:
        while True:
            certain = self._certain()
            excess: dict[OperatorCall, float] = {}
            for call, places in self._places.items():
                most = max(self._excess(number, certain) for number in places)
                if most > 0 and call not in self._known and call not in self._tried:
                    excess[call] = most
            if not excess:
                return
            self._measure(sorted(excess, key=lambda call: -excess[call])[:_CALLS_A_ROUND])

    def result(self) -> tuple[Range, Workspaces]:
        certain = self._certain()
        ranges: list[Modelled] = []
        failed: dict[OperatorCall, str] = {}  # calls that may decide a peak but cannot be measured, and their operators
        for number, op in enumerate(self._trace.ops):
            if op.call is None:
                ranges.append(Modelled(0, 0, 0))
            elif op.call in self._known:
                ranges.append(Modelled(*[self._inside(number)] * 3))
            elif self._excess(number, certain) > 0:
                ranges.append(self._model[op.call])
                failed[op.call] = op.name
            else:
                likely = min(self._model[op.call].likely, certain[op.phase] - self._totals[number])
                ranges.append(Modelled(*[likely] * 3))
        low, likely_inner, high = (Inner([round(amounts[index]) for amounts in ranges], self._sizes)
                                   for index in range(3))
        return Range(low, likely_inner, high, set(failed.values())), Workspaces(
            "modelled" if failed else "measured", len(self._known), len(failed),
            self._memory.reason(next(iter(failed))) if failed else None)

    def _certain(self) -> dict[str, float]:
        certain: dict[str, float] = defaultdict(float)
        for number, op in enumerate(self._trace.ops):
            inside = self._inside(number) if op.call in self._known else 0
            certain[op.phase] = max(certain[op.phase], self._totals[number] + inside)
        return certain

    def _excess(self, number: int, certain: Mapping[str, float]) -> float:
        """Return by how much the upper end of an operator's model exceeds the certain peak of its phase."""
        op = self._trace.ops[number]
        assert op.call is not None
        return self._totals[number] + self._model[op.call].high - (1 + _NEGLIGIBLE_FRAC) * certain[op.phase]

    def _inside(self, number: int) -> int:
        op = self._trace.ops[number]
        assert op.call is not None
        return max(0, self._known[op.call].peak_bytes - sum(self._sizes[made] for made in op.made))

    def _measure(self, calls: Sequence[OperatorCall]) -> None:
        def expected_bytes(call: OperatorCall) -> float:
            op = self._trace.ops[self._places[call][0]]
            return sum(self._sizes[made] for made in op.made) + modelled(op, self._sizes).likely

        self._tried.update(calls)
        self._memory.measure(calls, expected_bytes)
        self._known |= self._memory.cached(calls)

    def _set_sizes(self) -> None:
        """Correct the sizes of outputs that fake kernels get wrong.

        The smallest call of each operator runs; if its outputs differ from the trace, all calls of the operator run. An
        operator whose smallest call agrees is taken to be right at all sizes. Examples of wrong ones are workspaces of
        oneDNN's recurrent layers (empty), and the mean of a loss, which keeps an element for each input.
        """
        calls: dict[Any, list[OperatorCall]] = defaultdict(list)
        for call in self._places:
            calls[call.operator].append(call)
        smallest = {operator: min(alike, key=lambda call: call.input_bytes) for operator, alike in calls.items()}
        self._measure(list(smallest.values()))
        for operator, call in smallest.items():
            blocks = self._trace.ops[self._places[call][0]].made
            if call in self._known and self._known[call].output_bytes != tuple(self._sizes[block] for block in blocks):
                self._measure(calls[operator])
                for other in calls[operator]:
                    output_bytes = self._known[other].output_bytes if other in self._known else ()
                    for number in self._places[other]:
                        made = self._trace.ops[number].made
                        if other in self._known and len(made) == len(output_bytes):
                            for block, num_bytes in zip(made, output_bytes, strict=True):
                                self._sizes[block] = num_bytes


class Modelled(NamedTuple):
    """Modelled internal memory of an operator (bytes)."""

    low: float
    likely: float
    high: float


def modelled(op: Op, blocks: Sequence[int]) -> Modelled:
    """Return the range of an operator's internal memory on a CPU, from its tensors.

    The upper end is a copy of each tensor, in float32 for 16-bit types. Libraries pad copies to blocks: oneDNN pads the
    channels of each group of a convolution, and the rows and columns of a 16-bit matrix. A convolution may copy twice.
    It may also unfold its input, into an element for each kernel position and output pixel: of the whole batch or, in
    oneDNN, of one image per thread. A recurrent layer keeps all gates.

    *Error*: `benchmarks/README.md` has the number of random calls that exceeded the upper end.
    """
    if op.call is None:
        return Modelled(0, 0, 0)
    layouts = list(op.call.layouts())
    touched = sum(map(_dense_bytes, layouts)) + sum(blocks[number] for number in op.made)
    wider = 2 if op.item_bytes == 2 else 1
    kind = operator_type(op.name)
    if op.name in _CONVOLUTIONS:
        return Modelled(0, 0.5 * touched, _MIN_HIGH_BYTES + _convolution_bytes(op, layouts, blocks))
    if kind == "recurrent":
        return Modelled(0, 0.5 * touched, _MIN_HIGH_BYTES + 4 * wider * touched)
    if kind == "GEMM" and op.item_bytes == 2:
        padded = sum(_dense_bytes(layout, _MATRIX_BLOCK) for layout in layouts)
        return Modelled(0, 0, _MIN_HIGH_BYTES + 2 * (padded + sum(blocks[number] for number in op.made)))
    return Modelled(0, 0, _MIN_HIGH_BYTES + wider * touched)


def _dense_bytes(layout: Layout, block: int = 1) -> int:
    """Return the bytes of a tensor without gaps and repetitions, its last two sizes rounded up to `block`."""
    outer, inner = layout.shape[:-2], layout.shape[-2:]
    return math.prod(outer) * math.prod(-(-size // block) * block for size in inner) * layout.dtype.itemsize


def _convolution_bytes(op: Op, layouts: Sequence[Layout], blocks: Sequence[int]) -> int:
    *images, weight = [layout for layout in layouts if len(layout.shape) > 2]
    assert op.call is not None
    names = [argument.name for argument in op.call.operator._schema.arguments]
    given = dict(zip(names, op.call.args, strict=False)) | dict(op.call.kwargs)
    groups, is_transposed = int(given["groups"]), bool(given["transposed"])
    kernel, channels = math.prod(weight.shape[2:]), (weight.shape[0] // groups, weight.shape[1])
    num_outputs, num_inputs = channels[::-1] if is_transposed else channels
    if len(images) == 2:
        outputs, inputs = images  # backward: gradients of both have the same sizes
        input_pixels, output_pixels = math.prod(inputs.shape[2:]), math.prod(outputs.shape[2:])
    else:
        (inputs,) = images
        num_elements = sum(blocks[number] for number in op.made) // weight.dtype.itemsize
        num_planes = max(1, inputs.shape[0] * groups * num_outputs)
        input_pixels, output_pixels = math.prod(inputs.shape[2:]), num_elements // num_planes
    num_images, num_threads = inputs.shape[0], torch.get_num_threads()
    # Twice: an expanded gradient is made dense first, a transposed convolution accumulates first.
    copies = 2 * num_images * groups * (input_pixels * _padded(num_inputs) + output_pixels * _padded(num_outputs))
    weights = (4 + 2 * num_threads) * groups * math.prod(map(_padded, channels)) * kernel
    unfolds_batch = op.library is None or op.library.startswith("Slow")
    unfolded = kernel * groups * weight.shape[1] * (input_pixels if is_transposed else output_pixels)
    return (copies + weights + 2 * unfolded * (num_images if unfolds_batch else num_threads)
            ) * max(4, weight.dtype.itemsize)


def _padded(number: int) -> int:
    return -(-number // _VECTOR_CHANNELS) * _VECTOR_CHANNELS
