"""Weight pool: slices of shared ring buffers, so that each call reads weights that are cold in cache."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from charact.bricks.brick import Brick, BrickInput, canonical
from charact.bricks.captured_graph import TensorType
from charact.bricks.value_distributions import draw, storage_elements
from charact.measure.microbench.operation_timing import cache_bytes

_CACHE_MULTIPLE = 2
"""Maximum length of a ring buffer in multiples of the last-level cache, which evicts a slice before its next use."""
_UNKNOWN_CACHE_BYTES = 48_000_000
_LINE_BYTES = 64
"""Alignment of weights: a cache line, as for PyTorch's own memory."""


@dataclass
class _RingBuffer:
    """A ring buffer of values, with the offset of the next slice."""

    values: Tensor
    place: int = 0

    def next(self, type: TensorType) -> Tensor:
        size = storage_elements(type.shape, type.stride)
        line = max(1, _LINE_BYTES // self.values.element_size())
        if self.place + size > self.values.numel():
            self.place = 0
        taken = self.values.as_strided(type.shape, type.stride, self.place)
        self.place += math.ceil(size / line) * line
        return taken


class WeightPool:
    """Ring buffers that return a different slice for each weight, at the reuse distance of the brick's model.

    A layer's time does not depend on the values of its weights. Weights of one dtype and similar scale (`1 /
    sqrt(fan_in)` rounded to a power of two) therefore share a ring buffer. Its length is the largest reuse distance of
    the bricks that use it, limited by the last-level cache. Memory does not grow with the number of weights.

    *Error*: among models that fit into the cache, smaller ones see larger reuse distances than their own.

    Args:
        bricks: all bricks that will be called.
        device: device of the weights.
        limit_bytes: maximum size of all ring buffers.
        generator: of the values.
    """

    def __init__(self, bricks: Iterable[Brick], device: torch.device, limit_bytes: int, generator: torch.Generator
                 ) -> None:
        self._device, self._generator = device, generator
        touched_bytes: dict[str, int] = defaultdict(int)
        largest_bytes: dict[str, int] = defaultdict(int)
        for brick in bricks:
            for each in filter(is_pooled, brick.inputs):
                key, itemsize = _key_of(each), _dtype(each).itemsize
                touched_bytes[key] = max(touched_bytes[key], brick.context_bytes)
                num_bytes = storage_elements(each.type.shape, each.type.stride) * itemsize
                largest_bytes[key] = max(largest_bytes[key], num_bytes)
        most_bytes = _CACHE_MULTIPLE * cache_bytes(device) or _UNKNOWN_CACHE_BYTES
        wanted_bytes = {key: min(touched, most_bytes) for key, touched in touched_bytes.items()}
        self._num_bytes = _split_limit(limit_bytes, wanted_bytes, largest_bytes)
        self.num_bytes = sum(self._num_bytes.values())
        """Maximum size of all ring buffers (bytes)."""
        self._buffers: dict[str, _RingBuffer | None] = {}

    def next(self, of: BrickInput) -> Tensor:
        """Return a weight, which the caller must not change; drawn each time if there is no memory for a buffer."""
        key = _key_of(of)
        if key not in self._buffers:
            self._buffers[key] = self._made(of, self._num_bytes[key])
        buffer = self._buffers[key]
        return draw(of.type, of.sample, self._device, self._generator) if buffer is None else buffer.next(of.type)

    def _made(self, of: BrickInput, num_bytes: int) -> _RingBuffer | None:
        """Create a ring buffer of `num_bytes`, rounded up to whole rows, or return None for 0 bytes."""
        if not num_bytes:
            return None
        fan_in = 4 ** _scale(of)
        num_rows = math.ceil(num_bytes / _dtype(of).itemsize / fan_in)
        type = TensorType(of.type.dtype, (num_rows, fan_in), (fan_in, 1))
        return _RingBuffer(draw(type, of.sample, self._device, self._generator).reshape(-1))


def _split_limit(limit_bytes: int, wanted_bytes: dict[str, int], least_bytes: dict[str, int]) -> dict[str, int]:
    """Split the limit evenly among the buffers, up to their wanted and at least their minimum size (bytes).

    Buffers with a large minimum are served first; a buffer whose minimum does not fit gets 0.
    """
    found: dict[str, int] = {}
    left_bytes = limit_bytes
    for number, key in enumerate(sorted(wanted_bytes, key=lambda key: -least_bytes[key])):
        share_bytes = left_bytes // (len(wanted_bytes) - number)
        num_bytes = max(least_bytes[key], min(wanted_bytes[key], share_bytes))
        found[key] = num_bytes if num_bytes <= left_bytes else 0
        left_bytes -= found[key]
    return found


def is_pooled(of: BrickInput) -> bool:
    """Return whether an input comes from the pool: a weight or buffer whose distribution holds no values."""
    return of.kind in ("weight", "buffer") and "weight" in of.sample


def _key_of(of: BrickInput) -> str:
    return f"{of.type.dtype}-{_scale(of)}-{canonical(of.sample)}"


def _scale(of: BrickInput) -> int:
    """Return log2(sqrt(fan_in)), the scale that weights are divided by, rounded."""
    if of.sample["weight"] == "positive":
        return 0
    shape = of.type.shape
    return round(math.log2(max(1, math.prod(shape[1:] if len(shape) > 1 else shape))) / 2)


def _dtype(of: BrickInput) -> torch.dtype:
    found: torch.dtype = getattr(torch, of.type.dtype)
    return found
