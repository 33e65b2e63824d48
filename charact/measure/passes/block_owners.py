"""Owners of memory blocks: weights, gradients, optimizer state, input, and tensors kept between iterations."""

import contextlib
import gc
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from charact.measure.passes.marks import mark_release
from charact.record.schema import MEMORY_CATEGORIES

Blocks = dict[int, int]
"""Block size in bytes by address."""

CUDA_UNIT_BYTES = 512
"""Granularity of CUDA's allocator in bytes, also in its statistics and in profiler events."""


@dataclass(frozen=True)
class InitialBlock:
    """A block that existed before the iteration."""

    category: str
    address: int
    num_bytes: int


_OF_RANKS = ("unsharded_weights", "communication_buffers")
"""Categories that only a program of several ranks has."""


class BlockOwners:
    """Blocks with known owners, at the start of an iteration and after each of its phases.

    Args:
        device: of the blocks; others are ignored.
        models: owners of weights and gradients.
        optimizers: owners of optimizer state.
        carriers: objects whose attributes hold tensors between iterations, such as a hidden state.
        others: whether to count all other live tensors, such as a copy of the weights, as `unknown`, and the buckets of
            `DistributedDataParallel`. It has no effect on CUDA, whose allocator's statistics include them.
    """

    def __init__(self, device: torch.device, models: Sequence[torch.nn.Module],
                 optimizers: Sequence[torch.optim.Optimizer], carriers: Sequence[Any] = (), *,
                 others: bool = False) -> None:
        self.device, self._others = device, others and device.type == "cpu"
        self._models, self._optimizers, self._carriers = models, optimizers, carriers
        self._finalizers: list[weakref.finalize[..., Any]] = []
        self._forget()

    def _forget(self) -> None:
        self.before: list[InitialBlock] = []
        """Blocks at the start of the iteration; a release mark contains the index in this list."""
        self._old: set[int] = set()
        """Addresses of those blocks that still exist."""
        self.batch: Blocks = {}
        self.input: Blocks = {}
        self.gradients: Blocks = {}
        self.optimizer_state: Blocks = {}

    def is_on_device(self, name: str) -> bool:
        """Return whether a name, such as `cuda:1`, is the device's, or one of its kind if it has no index."""
        return name == str(self.device) or (self.device.index is None and name.partition(":")[0] == self.device.type)

    def begin(self) -> dict[str, int]:
        """Record the blocks at the start of an iteration; return their bytes by category."""
        self._forget()
        weights = [tensor for model in self._models for tensor in (*model.parameters(), *model.buffers())]
        for category, tensors in (("weights", weights), ("gradients", self._gradients()),
                                  ("optimizer_state", self._state()), ("activations", self._carried())):
            for storage in self._storages(tensors):
                self._hold(category, storage)
        if self._others:
            resident_bytes = psutil.Process().memory_info().rss
            for storage in self._storages_of_live_tensors():
                if self._size(storage) <= resident_bytes:  # else it is a mapped file
                    self._hold("unknown", storage)
        held = {category: 0 for category in MEMORY_CATEGORIES if category not in _OF_RANKS}
        for block in self.before:
            held[block.category] += block.num_bytes
        if self._others and (num_bytes := sum(map(_bucket_bytes, self._models))):
            held["communication_buffers"] = num_bytes
        return held

    def fetched(self, batch: Any) -> None:
        """Record a fetched or moved batch as input."""
        self.batch = self._new(tree_leaves(batch))
        self.input |= self.batch

    def note(self) -> None:
        """Record new gradients and optimizer state at the end of a phase."""
        self.gradients |= self._new(self._gradients())
        self.optimizer_state |= self._new(self._state())

    def end(self) -> None:
        """Stop to record releases at the end of the iteration."""
        for finalizer in self._finalizers:
            finalizer.detach()
        self._finalizers.clear()

    def _hold(self, category: str, storage: torch.UntypedStorage) -> None:
        """Record the release of a new block by a finalizer: the allocator does not report it."""
        address = storage.data_ptr()
        if address not in self._old:
            self._finalizers.append(weakref.finalize(storage, self._release, len(self.before), address))
            self._finalizers[-1].atexit = False
            self._old.add(address)
            self.before.append(InitialBlock(category, address, self._size(storage)))

    def _release(self, number: int, address: int) -> None:
        mark_release(number)
        self._old.discard(address)  # a new block may get the address

    def _new(self, tensors: Iterable[Any]) -> Blocks:
        return {address: size for address, size in self._blocks(tensors).items() if address not in self._old}

    def _gradients(self) -> list[Any]:
        return [parameter.grad for model in self._models for parameter in model.parameters()]

    def _state(self) -> list[Any]:
        return tree_leaves([list(optimizer.state.values()) for optimizer in self._optimizers])

    def _carried(self) -> list[Any]:
        return tree_leaves([list(vars(carrier).values()) for carrier in self._carriers])

    def _blocks(self, tensors: Iterable[Any]) -> Blocks:
        """Return address and bytes of each distinct storage."""
        return {storage.data_ptr(): self._size(storage) for storage in self._storages(tensors)}

    def _storages(self, tensors: Iterable[Any]) -> list[torch.UntypedStorage]:
        return [part.untyped_storage() for tensor in tensors
                if isinstance(tensor, torch.Tensor) and self.is_on_device(str(tensor.device))
                for part in _parts(tensor)]

    def _storages_of_live_tensors(self) -> list[torch.UntypedStorage]:
        """Return the storages of all tensors that Python knows; a tensor without a storage is left out."""
        storages = []
        for tensor in [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]:
            with contextlib.suppress(Exception):  # subclasses of others may do anything
                storages += [one for one in self._storages([tensor])
                             if one.device.type == self.device.type and one.nbytes() and one.data_ptr()]
        return storages

    def _size(self, storage: torch.UntypedStorage) -> int:
        num_bytes: int = storage.nbytes()
        return -(-num_bytes // CUDA_UNIT_BYTES) * CUDA_UNIT_BYTES if self.device.type == "cuda" else num_bytes


def _bucket_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of the buckets in which `DistributedDataParallel` reduces gradients, next to the gradients."""
    bytes_of_buckets = 0
    for module in model.modules():
        if isinstance(module, DistributedDataParallel) and not module.gradient_as_bucket_view:
            facts = module._get_ddp_logging_data()  # type: ignore[no-untyped-call]
            sizes = facts.get("rebuilt_bucket_sizes") or facts.get("bucket_sizes") or ""
            bytes_of_buckets += sum(int(size) for size in str(sizes).split(",") if size.strip())
    return bytes_of_buckets


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors with storage: those inside a sparse tensor or a wrapper (DTensor); none of a lazy one."""
    if is_lazy(tensor):
        return []
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        inner = [getattr(tensor, name) for name in names]  # DTensor names its mesh, too
        return [part for one in inner if isinstance(one, torch.Tensor) for part in _parts(one)]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor] if tensor.layout == torch.strided else []
