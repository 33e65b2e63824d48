"""Inputs of bricks: weights from a pool, so that they are cold in cache, and freshly written activations."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from charact.bricks.suite.brick import Brick, BrickInput, canonical
from charact.bricks.suite.captured_graph import TensorType, type_of
from charact.bricks.value_distributions import draw
from charact.execution.out_of_memory import free_host_bytes
from charact.measure.microbench.operation_timing import cache_bytes

_WEIGHTS_FRAC, _OTHERS_FRAC = 0.2, 0.1
"""Shares of the free memory for tensors held between visits. Drawing tensors for each visit costs set-up time, and
freshly drawn weights are still cached."""

Tensors = dict[int, Tensor]
"""Tensors by the index of the brick's input."""


class InputPool:
    """Tensors that are drawn once and held while memory allows; the others are drawn again for each visit.

    Weights come from a weight pool: each call gets a different slice.

    Args:
        bricks: all bricks that will be called.
        device: device of the tensors.
        pool_bytes: limit of the weights, and a second one of the other tensors; by default shares of the free memory.
        seed: of the random values.
    """

    def __init__(self, bricks: Iterable[Brick], device: torch.device, pool_bytes: int | None = None,
                 seed: int = 0) -> None:
        self.device = device
        self._generator = torch.Generator().manual_seed(seed)
        free = free_host_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
        weights_bytes, self._left_bytes = (
            int(frac * free) if pool_bytes is None else pool_bytes for frac in (_WEIGHTS_FRAC, _OTHERS_FRAC))
        self._kept: dict[str, Tensor] = {}
        self._of_visit: dict[str, Tensor] = {}
        self.weight_pool = WeightPool(bricks, device, weights_bytes, self._generator)
        """Pool of weights and buffers; see `is_pooled`."""

    def pristine(self, of: BrickInput, key: str) -> Tensor:
        """Return a tensor for an input, which the caller must not change."""
        for there in (self._kept, self._of_visit):
            if key in there:
                return there[key]
        drawn: Tensor = draw(of, of.sample, self.device, self._generator)
        num_bytes = drawn.untyped_storage().nbytes()
        if num_bytes > self._left_bytes:
            self._of_visit[key] = drawn
        else:
            self._left_bytes -= num_bytes
            self._kept[key] = drawn
        return drawn

    def end_visit(self) -> None:
        """Release the tensors that were drawn for one visit."""
        self._of_visit.clear()


class Arguments:
    """Argument tensors of a brick.

    In training, inputs that require gradients are new leaves without gradients of an earlier call; an input that is
    written in place is a clone of its leaf.
    """

    def __init__(self, brick: Brick, pool: InputPool, *, training: bool) -> None:
        self._brick, self._pool, self._training = brick, pool, training
        self._keys = [key_of(each) for each in brick.inputs]

    def weights(self) -> Tensors:
        """Return the next weights and buffers; those that the brick changes are copies."""
        tensors: Tensors = {}
        for number, each in enumerate(self._brick.inputs):
            if each.kind in ("weight", "buffer"):
                tensor = (self._pool.weight_pool.next(each) if is_pooled(each)
                          else self._pool.pristine(each, self._keys[number]))
                tensors[number] = copied(tensor) if number in self._brick.written else tensor
        return tensors

    def others(self) -> Tensors:
        """Return freshly written activations, and constants; constants are copied only if the brick changes them.

        A repeated input shares the memory of the earlier one if that has an effect and is possible.
        """
        tensors: Tensors = {}
        for number, each in enumerate(self._brick.inputs):
            if each.kind in ("weight", "buffer"):
                continue
            first = None if each.repeated is None else tensors.get(each.repeated)
            if first is not None and tuple(first.shape) == each.shape and first.stride() == each.stride:
                tensors[number] = first
            elif (first is not None and self._brick.written and str(first.dtype) == f"torch.{each.dtype}"
                  and each.storage_elements <= first.untyped_storage().nbytes() // first.element_size()):
                tensors[number] = first.as_strided(each.shape, each.stride)
            else:
                pristine = self._pool.pristine(each, self._keys[number])
                is_kept = each.kind == "constant" and number not in self._brick.written
                tensors[number] = pristine if is_kept else copied(pristine)
        return tensors

    def call_with(self, tensors: Tensors) -> list[Tensor]:
        """Return the list of arguments; in training with new leaves."""
        if not self._training:
            return [tensors[number] for number in range(len(tensors))]
        leaves: dict[int, Tensor] = {}  # a repeated input is one leaf
        arguments = []
        for number, each in enumerate(self._brick.inputs):
            argument = tensors[number]
            if each.requires_grad:
                if id(argument) not in leaves:
                    leaf = argument.detach().requires_grad_()
                    leaves[id(argument)] = leaf.clone() if number in self._brick.written else leaf
                argument = leaves[id(argument)]
            arguments.append(argument)
        return arguments


def copied(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, also for expanded tensors and for views with gaps."""
    if tensor.is_contiguous():
        return tensor.clone()
    reached = type_of(tensor).storage_elements
    return tensor.as_strided((reached,), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def key_of(of: BrickInput) -> str:
    """Return a key that is equal for inputs that can use the same tensor."""
    sample = hashlib.sha256(canonical(of.sample).encode()).hexdigest()
    return f"{of.kind}-{of.dtype}-{of.shape}-{of.stride}-{sample}"


_CACHE_MULTIPLE = 2
"""Maximum size of a ring buffer in multiples of the last-level cache: no slice is still cached when it is reused."""
_UNKNOWN_CACHE_BYTES = 48_000_000
"""Maximum size of a ring buffer if the size of the cache is unknown (bytes)."""
_LINE_BYTES = 64
"""Alignment of weights: a cache line, as for PyTorch's own memory."""


@dataclass
class _RingBuffer:
    """A ring buffer of values, with the offset of the next slice."""

    values: Tensor
    place: int = 0

    def next(self, type: TensorType) -> Tensor:
        line = max(1, _LINE_BYTES // self.values.element_size())
        if self.place + type.storage_elements > self.values.numel():
            self.place = 0
        taken = self.values.as_strided(type.shape, type.stride, self.place)
        self.place += math.ceil(type.storage_elements / line) * line
        return taken


class WeightPool:
    """Ring buffers that return a different slice for each weight.

    A layer's time does not depend on the values of its weights. Weights of one dtype and similar scale (`1 /
    sqrt(fan_in)` rounded to a power of two) therefore share a ring buffer. Its length is the largest reuse distance of
    the bricks that use it, at most twice the last-level cache. Memory does not grow with the number of weights.

    *Error*: among models that fit into the cache, smaller ones see larger reuse distances than their own.
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
                num_bytes = each.storage_elements * itemsize
                largest_bytes[key] = max(largest_bytes[key], num_bytes)
        most_bytes = _CACHE_MULTIPLE * cache_bytes(device) or _UNKNOWN_CACHE_BYTES
        self._num_bytes: dict[str, int] = {}
        left_bytes = limit_bytes
        # Even shares of the limit. Large weights are served first; a buffer that cannot hold its largest one gets none.
        for number, key in enumerate(sorted(touched_bytes, key=lambda key: -largest_bytes[key])):
            share_bytes = left_bytes // (len(touched_bytes) - number)
            num_bytes = max(largest_bytes[key], min(touched_bytes[key], most_bytes, share_bytes))
            self._num_bytes[key] = num_bytes if num_bytes <= left_bytes else 0
            left_bytes -= self._num_bytes[key]
        self.num_bytes = limit_bytes - left_bytes
        """Planned size of all ring buffers (bytes), before rounding up to whole rows."""
        self._buffers: dict[str, _RingBuffer] = {}

    def next(self, of: BrickInput) -> Tensor:
        """Return a weight, which the caller must not change; drawn each time if there is no memory for a buffer."""
        key = _key_of(of)
        if not self._num_bytes[key]:
            return draw(of, of.sample, self._device, self._generator)
        if key not in self._buffers:
            fan_in = 4 ** _scale(of)
            num_rows = math.ceil(self._num_bytes[key] / _dtype(of).itemsize / fan_in)
            type = TensorType(of.dtype, (num_rows, fan_in), (fan_in, 1))
            self._buffers[key] = _RingBuffer(draw(type, of.sample, self._device, self._generator).reshape(-1))
        return self._buffers[key].next(of)


def is_pooled(of: BrickInput) -> bool:
    """Return whether an input comes from the weight pool: a weight or buffer whose distribution stores no values."""
    return of.kind in ("weight", "buffer") and "weight" in of.sample


def _key_of(of: BrickInput) -> str:
    return f"{of.dtype}-{_scale(of)}-{canonical(of.sample)}"


def _scale(of: BrickInput) -> int:
    """Return log2(sqrt(fan_in)), rounded: random weights are divided by sqrt(fan_in). 0 for positive values."""
    if of.sample["weight"] == "positive":
        return 0
    shape = of.shape
    return round(math.log2(max(1, math.prod(shape[1:] if len(shape) > 1 else shape))) / 2)


def _dtype(of: BrickInput) -> torch.dtype:
    found: torch.dtype = getattr(torch, of.dtype)
    return found
