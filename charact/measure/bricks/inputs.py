"""Inputs of bricks: weights from a pool, and freshly written activations."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from charact.bricks.brick import Brick, BrickInput, canonical
from charact.bricks.captured_graph import ITEM_BYTES
from charact.bricks.value_distributions import draw, storage_elements
from charact.core.bounded_reading import limit_bytes
from charact.core.errors import UserError
from charact.execution.case_outcome import size
from charact.execution.out_of_memory import free_host_bytes
from charact.measure.bricks.weight_pool import WeightPool, is_pooled

_WEIGHTS_FRAC, _OTHERS_FRAC = 0.2, 0.1
"""Shares of the free memory for tensors held between visits. Drawing tensors for each visit costs set-up time, and
freshly drawn weights are still cached."""

MOST_BRICK_BYTES = 16 * 2**30
"""Default memory limit of a brick (bytes)."""

Tensors = dict[int, Tensor]
"""Tensors by the index of the brick's input."""


def check_size(brick: Brick) -> None:
    """Check that a brick's inputs, weights included, are within the memory limit of a brick.

    Raises:
        UserError: they are not.
    """
    num_bytes = sum(storage_elements(each.type.shape, each.type.stride) * ITEM_BYTES[each.type.dtype]
                    for each in brick.inputs)
    if num_bytes > (limit := most_bytes()):
        raise UserError(f"its inputs take {size(num_bytes)}, the limit is {size(limit)}: raise it with --max-bytes if "
                        "you trust the suite")


def most_bytes() -> int:
    """Return the memory limit of a brick (bytes), applied to its inputs and to its further allocations."""
    return limit_bytes(MOST_BRICK_BYTES)


class InputPool:
    """Tensors that are drawn once and held while memory allows; the others are drawn again for each visit.

    Weights come from a weight pool: each call gets a different slice.

    Args:
        bricks: all bricks that will be called.
        device: device of the tensors.
        pool_bytes: limit of weights, and limit of all other tensors; by default shares of the free memory.
        seed: of the values.
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
        """Pool of weights and buffers whose distribution holds no values."""

    def pristine(self, of: BrickInput, key: str) -> Tensor:
        """Return a tensor for an input, which the caller must not change."""
        for there in (self._kept, self._of_visit):
            if key in there:
                return there[key]
        drawn: Tensor = draw(of.type, of.sample, self.device, self._generator)
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
        found: Tensors = {}
        for number, each in enumerate(self._brick.inputs):
            if each.kind in ("weight", "buffer"):
                taken = (self._pool.weight_pool.next(each) if is_pooled(each)
                         else self._pool.pristine(each, self._keys[number]))
                found[number] = copied(taken) if number in self._brick.written else taken
        return found

    def others(self) -> Tensors:
        """Return freshly written activations, and constants; constants are copied only if the brick changes them."""
        found: Tensors = {}
        for number, each in enumerate(self._brick.inputs):
            if each.kind in ("weight", "buffer"):
                continue
            first = None if each.repeated is None else found.get(each.repeated)
            if first is not None and (shared := _sharing(first, self._brick, each)) is not None:
                found[number] = shared
            else:
                pristine = self._pool.pristine(each, self._keys[number])
                kept = each.kind == "constant" and number not in self._brick.written
                found[number] = pristine if kept else copied(pristine)
        return found

    def restored(self, others: Tensors) -> Tensors:
        """Return the same activations, or fresh ones if the brick changes any."""
        return self.others() if self._brick.written & others.keys() else others

    def call_with(self, tensors: Tensors) -> list[Tensor]:
        """Return the list of arguments; in training with new leaves."""
        if not self._training:
            return [tensors[number] for number in range(len(tensors))]
        leaves: dict[int, Tensor] = {}  # a repeated input is one leaf
        return [self._leaf(number, tensors[number], leaves) for number in range(len(tensors))]

    def _leaf(self, number: int, tensor: Tensor, leaves: dict[int, Tensor]) -> Tensor:
        if not self._brick.inputs[number].requires_grad:
            return tensor
        if id(tensor) not in leaves:
            leaf = tensor.detach().requires_grad_()
            leaves[id(tensor)] = leaf.clone() if number in self._brick.written else leaf
        return leaves[id(tensor)]


def _sharing(first: Tensor, brick: Brick, of: BrickInput) -> Tensor | None:
    """Return a view of an earlier input's memory, or None if sharing has no effect or is not possible."""
    if tuple(first.shape) == of.type.shape and first.stride() == of.type.stride:
        return first
    elements = first.untyped_storage().nbytes() // first.element_size()
    same_type = str(first.dtype).removeprefix("torch.") == of.type.dtype
    if not brick.written or not same_type or storage_elements(of.type.shape, of.type.stride) > elements:
        return None
    return first.as_strided(of.type.shape, of.type.stride)


def copied(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, also for expanded tensors and for views with gaps."""
    if tensor.is_contiguous():
        return tensor.clone()
    reached = storage_elements(tensor.shape, tensor.stride())
    return tensor.as_strided((reached,), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def key_of(of: BrickInput) -> str:
    """Return a key that is equal for inputs that can use the same tensor."""
    sample = hashlib.sha256(canonical(of.sample).encode()).hexdigest()
    return f"{of.kind}-{of.type}-{sample}"
