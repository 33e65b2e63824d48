"""Internal memory of operators: what they allocate in addition to their outputs, measured or as a modelled range."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from charact.core.operator_types import operator_type
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Op
from charact.measure.memory_estimate.operator_calls import OperatorCall
from charact.measure.memory_estimate.operator_memory import CallMemory, OperatorMemory
from charact.measure.memory_estimate.replay import HostAllocator, replay

_NEGLIGIBLE_FRAC = 1e-4
"""Share of a phase's peak below which an operator's internal memory is not worth a measurement."""
_CALLS_A_ROUND = 4
_VECTOR_CHANNELS = 16
"""Channels of oneDNN's blocked layouts are padded to a multiple of this."""


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

    def with_more(self, more: Sequence[int]) -> "Range":
        """Return the range with more internal memory of each operator (bytes)."""
        low, likely, high = (replace(inner, workspaces=[sum(pair) for pair in zip(inner.workspaces, more, strict=True)])
                             for inner in (self.low, self.likely, self.high))
        return replace(self, low=low, likely=likely, high=high)


class Modelled(NamedTuple):
    """Modelled internal memory of an operator (bytes)."""

    low: float
    likely: float
    high: float


def modelled(op: Op, blocks: Sequence[int]) -> Modelled:
    """Return the range of an operator's internal memory on a CPU, from its tensors.

    An operator copies its tensors at most once, into a layout that it can compute with. A convolution copies them up to
    twice (in 16 bit via float32), with channels padded to oneDNN's vectors; PyTorch's own kernels also unfold the
    input, an element of each kernel position for each output. A recurrent layer keeps all gates.

    Args:
        op: the operator.
        blocks: bytes of the trace's blocks.
    """
    if op.call is None:
        return Modelled(0, 0, 0)
    outputs = sum(blocks[number] for number in op.made)
    touched = op.call.input_bytes + outputs
    kind = operator_type(op.name)
    if kind == "convolution":
        padded = outputs + sum(layout.num_bytes * max(1.0, _VECTOR_CHANNELS / layout.shape[1])
                               for layout in op.call.layouts() if len(layout.shape) > 2)
        return Modelled(0, 0.5 * touched, 4 * padded + 2 * _unfolded_bytes(op))
    if kind == "recurrent":
        return Modelled(0, 0.5 * touched, 4 * touched)
    return Modelled(0, 0, touched)


def _unfolded_bytes(op: Op) -> int:
    """Return the bytes of a convolution's unfolded input, if PyTorch's own kernel computes it."""
    assert op.call is not None
    if op.library is not None and "Mkldnn" in op.library:
        return 0
    tensors = [layout for layout in op.call.layouts() if len(layout.shape) > 2]
    weight = tensors[-1]
    largest = max(math.prod((layout.shape[0], *layout.shape[2:])) for layout in tensors[:-1])
    return weight.dtype.itemsize * largest * max(weight.shape[:2]) * math.prod(weight.shape[2:])


def measured_inner(trace: AllocationTrace, memory: OperatorMemory) -> tuple[Range, dict[str, int | str | None]]:
    """Return the internal memory of a trace's operators on this CPU, and facts about its measurement.

    Only operators that may decide the peak of a phase are measured: those for which the upper end of the model exceeds
    the largest total that is certain. All others keep the model's likely value, below that total.

    The facts: num_measured, calls that decide a phase's peak; num_modelled, those of them that cannot be run alone;
    reason, why the first of these cannot.
    """
    search = _PeakSearch(trace, memory)
    search.run()
    return search.range(), search.facts()


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
        # Fake tensors do not have the size of oneDNN's workspaces between forward and backward.
        unsized = [call for call, places in self._places.items()
                   if any(self._sizes[made] == 0 for made in trace.ops[places[0]].made)]
        self._measure(unsized)
        for call in unsized:
            self._set_sizes(call)
        self._model = {call: modelled(trace.ops[places[0]], self._sizes) for call, places in self._places.items()}
        self._known |= memory.cached(self._places)
        held = replay(trace, HostAllocator(), [0] * len(trace.ops), self._sizes).snapshots
        self._totals = [snapshot.total_bytes for snapshot in held]

    def run(self) -> None:
        """Measure calls, the largest first, until no other can exceed the peak of its phase."""
        while True:
            certain = self._certain()
            excess: dict[OperatorCall, float] = {}
            for call, places in self._places.items():
                if call in self._known or self._memory.reason(call) is not None:
                    continue
                most = max(self._totals[number] + self._model[call].high
                           - (1 + _NEGLIGIBLE_FRAC) * certain[self._trace.ops[number].phase] for number in places)
                if most > 0:
                    excess[call] = most
            if not excess:
                return
            self._measure(sorted(excess, key=lambda call: -excess[call])[:_CALLS_A_ROUND])

    def range(self) -> Range:
        """Return the internal memory of all operators."""
        certain = self._certain()
        workspaces: tuple[list[int], ...] = [], [], []
        uncertain = set()
        for number, op in enumerate(self._trace.ops):
            amounts = Modelled(0, 0, 0)
            if op.call is not None and op.call in self._known:
                amounts = Modelled(*[self._inside(number)] * 3)
            elif op.call is not None and self._memory.reason(op.call) is not None:
                amounts = self._model[op.call]
                uncertain.add(op.name)
            elif op.call is not None:
                likely = min(self._model[op.call].likely, certain[op.phase] - self._totals[number])
                amounts = Modelled(*[likely] * 3)
            for inner, amount in zip(workspaces, amounts, strict=True):
                inner.append(round(amount))
        low, likely_inner, high = (Inner(inner, self._sizes) for inner in workspaces)
        return Range(low, likely_inner, high, uncertain)

    def facts(self) -> dict[str, int | str | None]:
        """Return how many calls were measured and modelled, and why."""
        reasons = [reason for call in self._places if (reason := self._memory.reason(call)) is not None]
        return {"num_measured": len(self._known), "num_modelled": len(reasons),
                "reason": reasons[0] if reasons else None}

    def _certain(self) -> dict[str, float]:
        """Return the largest total of each phase that is certain to be reached."""
        certain: dict[str, float] = defaultdict(float)
        for number, op in enumerate(self._trace.ops):
            inside = self._inside(number) if op.call in self._known else 0
            certain[op.phase] = max(certain[op.phase], self._totals[number] + inside)
        return certain

    def _inside(self, number: int) -> int:
        """Return the measured internal memory of an operator, without its outputs."""
        op = self._trace.ops[number]
        assert op.call is not None
        return max(0, self._known[op.call].peak_bytes - sum(self._sizes[made] for made in op.made))

    def _measure(self, calls: Sequence[OperatorCall]) -> None:
        def expected_bytes(call: OperatorCall) -> float:
            op = self._trace.ops[self._places[call][0]]
            return sum(self._sizes[made] for made in op.made) + modelled(op, self._sizes).likely

        self._memory.measure(calls, expected_bytes)
        self._known |= self._memory.cached(calls)

    def _set_sizes(self, call: OperatorCall) -> None:
        """Set the sizes of the blocks that a call makes to those measured."""
        for number in self._places[call]:
            made = self._trace.ops[number].made
            if call in self._known and len(made) == len(self._known[call].output_bytes):
                for block, num_bytes in zip(made, self._known[call].output_bytes, strict=True):
                    self._sizes[block] = num_bytes
