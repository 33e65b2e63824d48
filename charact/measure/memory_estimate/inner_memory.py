"""Internal memory of operators: what they allocate in addition to their outputs, measured or as a modelled range."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from charact.measure.memory_estimate.allocation_trace import AllocationTrace
from charact.measure.memory_estimate.modelled_memory import Modelled, modelled
from charact.measure.memory_estimate.operator_calls import OperatorCall
from charact.measure.memory_estimate.operator_memory import CallMemory, OperatorMemory
from charact.measure.memory_estimate.replay import HostAllocator, replay
from charact.record.manifest_passes import Workspaces

_NEGLIGIBLE_FRAC = 1e-4
"""A call is measured only if it could raise its phase's peak by more than this share."""
_CALLS_A_ROUND = 4
"""Calls that are measured before the certain peaks are computed again."""


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
        self._tried: set[OperatorCall] = set()
        """Calls that this search tried to measure."""
        self._set_sizes()
        self._model = {call: modelled(trace.ops[places[0]], self._sizes) for call, places in self._places.items()}
        self._known |= memory.cached(self._places)
        curve, _ = replay(trace, HostAllocator(), [0] * len(trace.ops), self._sizes)
        self._totals = [snapshot.total_bytes for snapshot in curve.snapshots]

    def run(self) -> None:
        """Measure calls, the largest first, until no other can exceed the peak of its phase."""
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

    def range(self) -> Range:
        """Return the internal memory of all operators."""
        certain = self._certain()
        workspaces: tuple[list[int], ...] = [], [], []
        uncertain = set()
        for number, op in enumerate(self._trace.ops):
            amounts = Modelled(0, 0, 0)
            if op.call is not None and op.call in self._known:
                amounts = Modelled(*[self._inside(number)] * 3)
            elif op.call is not None and self._excess(number, certain) > 0:  # it cannot be measured
                amounts = self._model[op.call]
                uncertain.add(op.name)
            elif op.call is not None:
                likely = min(self._model[op.call].likely, certain[op.phase] - self._totals[number])
                amounts = Modelled(*[likely] * 3)
            for inner, amount in zip(workspaces, amounts, strict=True):
                inner.append(round(amount))
        low, likely_inner, high = (Inner(inner, self._sizes) for inner in workspaces)
        return Range(low, likely_inner, high, uncertain)

    def facts(self) -> Workspaces:
        """Return how many calls were measured and modelled, and why."""
        certain = self._certain()
        failed = [call for call, places in self._places.items() if call not in self._known
                  and any(self._excess(number, certain) > 0 for number in places)]
        return Workspaces("modelled" if failed else "measured", len(self._known), len(failed),
                          self._memory.reason(failed[0]) if failed else None)

    def _certain(self) -> dict[str, float]:
        """Return the largest total of each phase that is certain to be reached."""
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
        """Return the measured internal memory of an operator, without its outputs."""
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
                self._use_sizes(calls[operator])

    def _use_sizes(self, calls: Sequence[OperatorCall]) -> None:
        """Set the sizes of the blocks that calls make to those measured."""
        for call in calls:
            for number in self._places[call]:
                blocks = self._trace.ops[number].made
                if call in self._known and len(blocks) == len(self._known[call].output_bytes):
                    for block, num_bytes in zip(blocks, self._known[call].output_bytes, strict=True):
                        self._sizes[block] = num_bytes
