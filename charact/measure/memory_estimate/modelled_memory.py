"""Modelled internal memory of operators on a CPU: a range, for operators that cannot run alone."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from charact.core.operator_types import operator_type
from charact.measure.memory_estimate.allocation_trace import Op
from charact.measure.memory_estimate.operator_calls import Layout

_VECTOR_CHANNELS = 16
"""Channels of oneDNN's blocked layouts are padded to a multiple of this."""
_MATRIX_BLOCK = 64
"""Rows and columns of oneDNN's copies of 16-bit matrices are padded to a multiple of this."""
_MIN_HIGH_BYTES = 2**17
"""Minimum of the upper end: reductions and threads have buffers of this order."""


_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")


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

    Args:
        op: the operator.
        blocks: bytes of the trace's blocks.
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
    """Return the most that a convolution copies and unfolds."""
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
