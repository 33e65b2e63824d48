"""Weights that bricks are called with: parts of long belts, so that none was used lately when its turn comes."""

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

_NUM_CACHES = 2
"""A belt is at most so many times as long as the last cache, which holds nothing of it then when it comes round."""
_UNKNOWN_CACHE_BYTES = 48_000_000
_LINE_BYTES = 64
"""Weights begin at a cache's line, as PyTorch's own memory does."""


@dataclass
class _RingBuffer:
    """Values in a row, and the element at which it goes on."""

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
    """Another place for each weight that is taken, as far from the one before as in a model.

    How long a layer takes does not depend on what its weights are. So those of one precision and about one scale, `1 /
    sqrt(fan_in)` to the next power of two, come from one belt, part by part, and from its beginning again behind its
    end. It is as long as what the largest of the models that take from it touches in an iteration, as far as the last
    cache can tell, and takes no more memory than that, however many weights there are.

    *Error*: of models that fit into the cache, smaller ones find their weights farther away.

    Args:
        bricks: all that are to be called.
        device: where.
        limit_bytes: what all belts may take.
        generator: of values.
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
        most_bytes = _NUM_CACHES * cache_bytes(device) or _UNKNOWN_CACHE_BYTES
        wanted_bytes = {key: min(touched, most_bytes) for key, touched in touched_bytes.items()}
        self._num_bytes = _shared(limit_bytes, wanted_bytes, largest_bytes)
        self.num_bytes = sum(self._num_bytes.values())
        """What all belts may take."""
        self._buffers: dict[str, _RingBuffer | None] = {}

    def next(self, of: BrickInput) -> Tensor:
        """A weight of its type, which the caller must not change; drawn anew where there is no memory for a belt."""
        key = _key_of(of)
        if key not in self._buffers:
            self._buffers[key] = self._made(of, self._num_bytes[key])
        belt = self._buffers[key]
        return draw(of.type, of.sample, self._device, self._generator) if belt is None else belt.next(of.type)

    def _made(self, of: BrickInput, num_bytes: int) -> _RingBuffer | None:
        """A belt of so many bytes, in whole rows; none where there is no room for it."""
        if not num_bytes:
            return None
        fan_in = 4 ** _scale(of)
        num_rows = math.ceil(num_bytes / _dtype(of).itemsize / fan_in)
        type = TensorType(of.type.dtype, (num_rows, fan_in), (fan_in, 1))
        return _RingBuffer(draw(type, of.sample, self._device, self._generator).reshape(-1))


def _shared(limit_bytes: int, wanted_bytes: dict[str, int], least_bytes: dict[str, int]) -> dict[str, int]:
    """What each belt gets of the limit, evenly but for those that want less or cannot do with it; 0 where none is left.

    Those that cannot do with an even share get what they need first.
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
    """Whether an input is a weight or buffer of which nothing is told but that it is one."""
    return of.kind in ("weight", "buffer") and "weight" in of.sample


def _key_of(of: BrickInput) -> str:
    return f"{of.type.dtype}-{_scale(of)}-{canonical(of.sample)}"


def _scale(of: BrickInput) -> int:
    """Binary logarithm of what values are divided by, the square root of the number that a result is a sum of."""
    if of.sample["weight"] == "positive":
        return 0
    shape = of.type.shape
    return round(math.log2(max(1, math.prod(shape[1:] if len(shape) > 1 else shape))) / 2)


def _dtype(of: BrickInput) -> torch.dtype:
    found: torch.dtype = getattr(torch, of.type.dtype)
    return found
