"""What operators may need inside on a CPU where no run could tell: a range, wide on purpose."""

import math

from charact.core.operator_types import operator_type
from charact.measure.memory_estimate.allocation_trace import Op, Tape
from charact.measure.memory_estimate.calibration import Inner, Range

_NUMBER_BYTES = 4
_SHARES = {"convolution": (0.0, 0.5, 1.5), "recurrent": (0.0, 0.5, 1.5), "normalization": (0.0, 0.0, 0.5)}
"""Of the numbers that an operator reads and writes: how many it holds a second time at the least, likely, and at most.

Measured with oneDNN on one machine, all convolutions of ResNet-18, ResNet-50, VGG16 and Xception at 64 to 224 pixels:
0 to 1.1, mostly 0.5 forward (the output and the weights) and backward (both activations or the weights).
"""


def uncalibrated(tape: Tape) -> Range:
    """The range for every operator of a tape; the types that allocate inside are named as doubted."""
    scenarios = [Inner([], [block.num_bytes for block in tape.blocks]) for _ in range(3)]
    doubted = set()
    for op in tape.ops:
        shares = _SHARES.get(operator_type(op.name), (0.0, 0.0, 0.0))
        if shares[-1]:
            doubted.add(op.name)
        for inner, share in zip(scenarios, shares, strict=True):
            inner.workspaces.append(round(share * _touched_bytes(op)))
    low, likely, high = scenarios
    return Range(low, likely, high, doubted)


def _touched_bytes(op: Op) -> int:
    weights = sum(math.prod(shape) for shape in op.input_shapes)
    return _NUMBER_BYTES * max(op.num_activations, weights)
