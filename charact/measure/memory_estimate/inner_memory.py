"""Internal memory of operators: what they allocate in addition to their outputs, as a range."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from charact.core.operator_types import operator_type
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Op

_NUMBER_BYTES = 4
_SHARES = {"convolution": (0.0, 0.5, 1.5), "recurrent": (0.0, 0.5, 1.5), "normalization": (0.0, 0.0, 0.5)}
"""Internal copies relative to the elements that an operator reads and writes: minimum, likely, maximum.

Measured with oneDNN on one machine for all convolutions of ResNet-18, ResNet-50, VGG16 and Xception at 64 to 224
pixels: 0 to 1.1, mostly 0.5 forward (output and weights) and backward (both activations, or the weights).
"""


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
    """Names of operators whose memory no feature set explains; their range is wide."""

    def with_more(self, more: Sequence[int]) -> "Range":
        """Return the range with more internal memory of each operator (bytes)."""
        low, likely, high = (replace(inner, workspaces=[sum(pair) for pair in zip(inner.workspaces, more, strict=True)])
                             for inner in (self.low, self.likely, self.high))
        return replace(self, low=low, likely=likely, high=high)


def uncalibrated(trace: AllocationTrace) -> Range:
    """Return the range for every operator of a trace; operators with internal memory are marked as uncertain."""
    scenarios = [Inner([], [block.num_bytes for block in trace.blocks]) for _ in range(3)]
    uncertain = set()
    for op in trace.ops:
        shares = _SHARES.get(operator_type(op.name), (0.0, 0.0, 0.0))
        if shares[-1]:
            uncertain.add(op.name)
        for inner, share in zip(scenarios, shares, strict=True):
            inner.workspaces.append(round(share * _touched_bytes(op)))
    low, likely, high = scenarios
    return Range(low, likely, high, uncertain)


def _touched_bytes(op: Op) -> int:
    weights = sum(math.prod(shape) for shape in op.input_shapes)
    return _NUMBER_BYTES * max(op.num_activations, weights)
