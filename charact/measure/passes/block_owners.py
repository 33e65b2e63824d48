"""Which blocks of memory hold weights, gradients, optimizer state, the input, and what a workload carries along."""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from charact.measure.passes.marks import mark_release
from charact.record.schema import MEMORY_CATEGORIES

Blocks = dict[int, int]
"""Address -> bytes."""

CUDA_UNIT_BYTES = 512
"""What CUDA's allocator rounds blocks up to, in its own statistics and in the profiler's events."""


@dataclass(frozen=True)
class Held:
    """A block that was there before the iteration."""

    category: str
    address: int
    num_bytes: int


class Holders:
    """Knows, by identity, what is there when an iteration begins; notes, between phases, what came to be held.

    Args:
        device: what is elsewhere is of no interest.
        models: whose weights and gradients are told.
        optimizers: whose state is told.
        carriers: objects whose attributes hold tensors from one iteration to the next, such as a hidden state.
    """

    def __init__(self, device: torch.device, models: Sequence[torch.nn.Module],
                 optimizers: Sequence[torch.optim.Optimizer], carriers: Sequence[Any] = ()) -> None:
        self.device = device
        self._models, self._optimizers, self._carriers = models, optimizers, carriers
        self._finalizers: list[weakref.finalize[..., Any]] = []
        self._forget()

    def _forget(self) -> None:
        self.before: list[Held] = []
        """What was there when the iteration began; a release is marked with the number in this list."""
        self._old: set[int] = set()
        """Addresses of what of it is still there."""
        self.batch: Blocks = {}
        self.input: Blocks = {}
        self.gradients: Blocks = {}
        self.optimizer_state: Blocks = {}

    def begin(self) -> dict[str, int]:
        """An iteration begins; returns bytes by category of what is there by now."""
        self._forget()
        weights = [tensor for model in self._models for tensor in (*model.parameters(), *model.buffers())]
        for category, tensors in (("weights", weights), ("gradients", self._gradients()),
                                  ("optimizer_state", self._state()), ("activations", self._carried())):
            for storage in self._storages(tensors):
                self._hold(category, storage)
        held = dict.fromkeys(MEMORY_CATEGORIES, 0)
        for block in self.before:
            held[block.category] += block.num_bytes
        return held

    def fetched(self, batch: Any) -> None:
        """A batch was fetched or moved to the device: its tensors are input."""
        self.batch = self._blocks(tree_leaves(batch))
        self.input |= self.batch

    def note(self) -> None:
        """A phase has ended."""
        self.gradients |= self._new(self._gradients())
        self.optimizer_state |= self._new(self._state())

    def end(self) -> None:
        """The iteration has ended: what is given back from now on is of no interest."""
        for finalizer in self._finalizers:
            finalizer.detach()
        self._finalizers.clear()

    def _hold(self, category: str, storage: torch.UntypedStorage) -> None:
        """Keep an eye on a block, unless it is known already: the allocator would not tell when it is given back."""
        address = storage.data_ptr()
        if address not in self._old:
            self._finalizers.append(weakref.finalize(storage, self._release, len(self.before), address))
            self._finalizers[-1].atexit = False
            self._old.add(address)
            self.before.append(Held(category, address, self._size(storage)))

    def _release(self, number: int, address: int) -> None:
        mark_release(number)
        self._old.discard(address)  # a new block may be put there

    def _new(self, tensors: Iterable[Any]) -> Blocks:
        return {address: size for address, size in self._blocks(tensors).items() if address not in self._old}

    def _gradients(self) -> list[Any]:
        return [parameter.grad for model in self._models for parameter in model.parameters()]

    def _state(self) -> list[Any]:
        return tree_leaves([list(optimizer.state.values()) for optimizer in self._optimizers])

    def _carried(self) -> list[Any]:
        return tree_leaves([list(vars(carrier).values()) for carrier in self._carriers])

    def _blocks(self, tensors: Iterable[Any]) -> Blocks:
        """Address and bytes of each storage once."""
        return {storage.data_ptr(): self._size(storage) for storage in self._storages(tensors)}

    def _storages(self, tensors: Iterable[Any]) -> list[torch.UntypedStorage]:
        return [part.untyped_storage() for tensor in tensors
                if isinstance(tensor, torch.Tensor) and tensor.device.type == self.device.type
                for part in _parts(tensor)]

    def _size(self, storage: torch.UntypedStorage) -> int:
        num_bytes: int = storage.nbytes()
        return -(-num_bytes // CUDA_UNIT_BYTES) * CUDA_UNIT_BYTES if self.device.type == "cuda" else num_bytes


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with storage that a tensor is made of: of a sparse one its places and values; none of a lazy one."""
    if is_lazy(tensor):
        return []
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [tensor] if tensor.layout == torch.strided else []
