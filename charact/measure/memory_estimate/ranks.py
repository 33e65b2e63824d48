"""One rank of many on fake tensors: collectives that nothing executes, FSDP2's buffers and DDP's buckets."""

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from charact.core.errors import UserError
from charact.core.memory_curve import Block
from charact.execution.case import Case
from charact.execution.sharding import Shard, shard_by_block
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder

_FIRST_BUCKET_BYTES = 2**20
_BUCKET_BYTES = 25 * 2**20
"""Sizes of DDP's first and of its other buckets by default, a lower limit except for the last."""


@contextlib.contextmanager
def fake_process_group(num_ranks: int) -> Iterator[None]:
    """Make this process rank 0 of a process group whose collectives do nothing."""
    if not dist.is_available():
        raise UserError("this PyTorch was built without torch.distributed: install another build")
    if dist.is_initialized():
        raise UserError("this process has a process group already: estimate before init_process_group, or in another "
                        "process")
    try:
        import torch.distributed._tools.fake_collectives  # rules for collectives on fake tensors
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise UserError(f"PyTorch {torch.__version__} has no fake process group: upgrade it, or leave --parallel "
                        "out") from error
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def shard_of(case: Case) -> Shard | None:
    """Return the function that shards the case's model over its fake ranks; None for other cases."""
    if case.parallel != "fsdp2":
        return None
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed.device_mesh import init_device_mesh

    with unset_fake_temporarily():
        mesh = init_device_mesh("cpu", (case.num_ranks,))
    return partial(shard_by_block, mesh=mesh)


class RankRecorder(Recorder):  # type: ignore[no-untyped-call]
    """Recorder of one rank's iteration.

    FSDP2 frees and allocates the unsharded parameters by resizing their storages, which no dispatch mode sees:
    `resizing` watches it. A block that a collective reads or writes is a communication buffer, unless it holds
    parameters or gradients.
    """

    @contextlib.contextmanager
    def resizing(self) -> Iterator[None]:
        """Record storages that are resized in the context."""
        resize = torch.UntypedStorage.resize_

        def recorded(storage: torch.UntypedStorage, num_bytes: int) -> Any:
            result = resize(storage, num_bytes)
            self._resized(storage, num_bytes)
            return result

        torch.UntypedStorage.resize_ = recorded  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def hold(self, category: str, values: Any) -> None:
        """Set the category of tensors' storages; a DTensor's is that of its local part.

        Parameters that are still gathered when an iteration begins stay `unsharded_weights`.
        """
        local = [getattr(value, "_local_tensor", value) for value in values]
        super().hold(category, [tensor for tensor in local if category != "weights"
                                or self._block_of(tensor).category != "unsharded_weights"])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor calls the operator on its local tensors
        outputs = super().__torch_dispatch__(func, types, args, kwargs)
        name = f"{func.namespace}::{func._overloadpacket.__name__}"
        if name == "fsdp::split_with_sizes_copy":
            self.hold("unsharded_weights", kwargs["out"])
        elif name == "fsdp::chunk_cat":
            self._hold_temporary("gradients", args[0])
        elif func.namespace in ("c10d", "_c10d_functional"):
            self._hold_temporary("communication_buffers", tree_leaves((args, kwargs)))
        return outputs

    def _hold_temporary(self, category: str, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and (block := self._block_of(value)).category == "temporary":
                block.category = category

    def _block_of(self, tensor: torch.Tensor) -> Block:
        """Return the block of a tensor's storage; an empty one without a category if it is unknown."""
        number = self._index_of.get(tensor.untyped_storage()._cdata)
        return Block(0, "") if number is None else self.trace.blocks[number]

    def _resized(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        number = self._index_of.pop(storage._cdata, None)
        if number is not None:
            self.trace.blocks[number].death = self.trace.next_moment()
        if num_bytes:
            self._index_of[storage._cdata] = len(self.trace.blocks)
            self.trace.blocks.append(
                Block(num_bytes, "unsharded_weights", self._phase_now(), self.trace.next_moment()))


def gloo_copies(trace: AllocationTrace) -> list[int]:
    """Return the bytes that gloo allocates inside each operator of a trace: copies of a collective's tensors.

    Read from the allocations of PyTorch 2.13: reduce-scatter copies its input, all-gather its output; all-reduce and
    broadcast copy nothing. NCCL copies nothing through PyTorch's allocator.
    """
    copied = {"c10d::_reduce_scatter_base_": 1, "c10d::_allgather_base_": 0}  # index of the copied tensor
    return [math.prod(op.input_shapes[copied[op.name]]) * op.item_bytes if op.name in copied else 0 for op in trace.ops]


class Buckets:
    """What `DistributedDataParallel` adds to a model: a copy of its gradients, and its broadcast of buffers.

    DDP's own reducer cannot run on fake tensors. Its buckets have the size of the gradients, in fixed groups, and live
    as long as the model. Before a forward pass it copies the buffers, such as a batch norm's means, into one tensor of
    each type, and broadcasts them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.held = [torch.empty(numel, dtype=dtype) for dtype, numel in _bucket_sizes(model)]
        self._buffers: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for buffer in model.buffers():
            self._buffers[buffer.dtype].append(buffer)
        model.register_forward_pre_hook(self._broadcast, prepend=True)

    def _broadcast(self, *_: Any) -> None:
        with torch.no_grad():
            flat = [torch.cat([buffer.detach().view(-1) for buffer in buffers]) for buffers in self._buffers.values()]
            for tensor in flat:
                dist.broadcast(tensor, 0)


def _bucket_sizes(model: nn.Module) -> list[tuple[torch.dtype, int]]:
    """Return type and number of elements of DDP's buckets: gradients in reverse order, until a bucket is full."""
    sizes: list[tuple[torch.dtype, int]] = []
    open_by_type: dict[torch.dtype, int] = defaultdict(int)
    limit_bytes = dict.fromkeys((parameter.dtype for parameter in model.parameters()), _FIRST_BUCKET_BYTES)
    for parameter in reversed([parameter for parameter in model.parameters() if parameter.requires_grad]):
        dtype = parameter.dtype
        open_by_type[dtype] += parameter.numel()
        if open_by_type[dtype] * dtype.itemsize >= limit_bytes[dtype]:
            sizes.append((dtype, open_by_type.pop(dtype)))
            limit_bytes[dtype] = _BUCKET_BYTES
    return [*sizes, *open_by_type.items()]
