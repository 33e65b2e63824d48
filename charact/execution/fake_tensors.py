"""Cases on fake tensors, which have shapes and types but no values: they need no memory and little time."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)

from charact.core.errors import UserError
from charact.execution.attention import FUSED, unsupported_reason
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.precision import PRECISIONS
from charact.execution.sharding import Shard

_AS_COMPUTED = {"fp16": "bf16", "tf32": "fp32", "int8-weights": "fp32"}
"""Substitutes with equal work and sizes, because fake tensors have no values to scale by."""


class _FakeTensors(FakeTensorMode):
    """Fake tensors whose sparse gradients have as many values as real ones: PyTorch's fake kernels lose them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _BAG_BACKWARD and args[_IS_SPARSE]:
            gradient, indices, num_rows = args[0], args[1], args[_NUM_ROWS]
            with self:
                values = gradient.new_empty(indices.numel(), gradient.shape[1])
                return _sparse(indices[None], values, (num_rows, gradient.shape[1]))
        if func is _CLONE and args[0].layout == torch.sparse_coo:
            parts = args[0]._indices(), args[0]._values()
            with self:
                # A real backward pass keeps contiguous parts of a gradient; among fake tensors it asks for a copy.
                is_kept = all(part.is_contiguous() for part in parts)
                if torch._C._current_autograd_node() is None or not is_kept:
                    parts = parts[0].clone(), parts[1].clone()
                return _sparse(*parts, args[0].shape)
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


_BAG_BACKWARD, _CLONE = torch.ops.aten._embedding_bag_backward.default, torch.ops.aten.clone.default
_NUM_ROWS, _IS_SPARSE = 6, 9
"""Arguments of an embedding bag's backward."""
_sparse = partial(torch.sparse_coo_tensor, check_invariants=False)


def fake_case(case: Case) -> Case:
    """Return the case for fake tensors: on the CPU, whatever its device."""
    return replace(case, device=torch.device("cpu"), channels_last=False, compiled=False,
                   precision=_AS_COMPUTED.get(case.precision, case.precision),
                   attention=case.attention if case.device.type == "cpu" or case.attention in (None, "math")
                   else FUSED)


@contextlib.contextmanager
def fake_tensors(case: Case, fake: FakeTensorMode | None = None) -> Iterator[FakeTensorMode]:
    """Make new tensors fake, with the case's type of weights as default: fake tensors cannot be converted.

    Fake tensors of different modes cannot be combined: pass `fake` to use an existing mode.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(PRECISIONS[fake_case(case).precision].weights)
    try:
        with fake or _FakeTensors() as entered, fake_modules():
            yield entered
    finally:
        torch.set_default_dtype(before)


def fake_loop(case: Case, batches: Iterator[Any], fake: FakeTensorMode, shard: Shard | None = None) -> Loop:
    """Return a loop over fake batches; a model that reads values on creation is created with real tensors.

    `shard` shards the model over fake ranks.

    Optimizers use foreach updates if they would on the case's device.

    Raises:
        UserError: the case's device has no such backend of attention.
    """
    if reason := unsupported_reason(case.attention, case.device):
        raise UserError(reason)
    on_cpu = fake_case(case)
    try:
        loop = Loop(on_cpu, batches, shard=shard)
    except DataDependentOutputException:
        with unset_fake_temporarily():
            dataset = on_cpu.dataset()
            model = on_cpu.workload.prepare(on_cpu.workload.variant).model(dataset)
            _replace_tensors(model, fake)
        loop = Loop(on_cpu, batches, dataset=dataset, model=model, shard=shard)
    if case.device.type == "cuda":
        choose_foreach(loop.optimizers)
    return loop


def _replace_tensors(model: nn.Module, fake: FakeTensorMode) -> None:
    """Replace parameters and buffers by fake tensors; shared ones stay shared."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in made:
                    faked: torch.Tensor = fake.from_tensor(tensor.detach())
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(faked, tensor.requires_grad) if is_parameter else faked
                if tensor is not None:
                    tensors[name] = made[id(tensor)]  # type: ignore[assignment]


@contextlib.contextmanager
def fake_modules(created: Callable[[nn.Parameter], object] = id) -> Iterator[None]:
    """Let modules convert (`Module.to`) and copy fake parameters, and skip drawing truncated normal values.

    PyTorch cannot swap or deep-copy fake parameters, and draws until no value is out of range.

    `created` is called with each copied parameter.
    """
    apply: Any = nn.Module._apply
    draw = nn.init._no_grad_trunc_normal_
    copy: Any = torch.Tensor.__deepcopy__

    def convert(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        if not any(isinstance(parameter, FakeTensor) for parameter in module._parameters.values()):
            return apply(module, fn, recurse)
        for child in module.children() if recurse else ():
            child._apply(fn)  # type: ignore[no-untyped-call]
        for parameter in [one for one in module._parameters.values() if one is not None]:
            parameter.data = fn(parameter.data)
        module._buffers.update({name: fn(buffer) for name, buffer in module._buffers.items() if buffer is not None})
        return module

    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not isinstance(tensor, FakeTensor):
            return copy(tensor, memo)
        if id(tensor) not in memo:
            clone = tensor.detach().clone()
            if isinstance(tensor, nn.Parameter):
                clone = nn.Parameter(clone, tensor.requires_grad)
                created(clone)
            memo[id(tensor)] = clone
        return memo[id(tensor)]

    def skip(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else draw(tensor, *args, **kwargs)

    with (patch.object(nn.Module, "_apply", convert), patch.object(nn.init, "_no_grad_trunc_normal_", skip),
          patch.object(torch.Tensor, "__deepcopy__", copied)):
        yield


def choose_foreach(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Set optimizers to foreach updates, PyTorch's default for parameters on a GPU."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = True
