"""Results of operators on fake tensors, without PyTorch's fake kernels where that is simple and much faster."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor


def run(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator on fake or real tensors; fake tensors with values, such as step counts, are computed."""
    if args and isinstance(args[0], FakeTensor):
        if is_in_place(operator) and args[0].constant is None:
            return args[0]
        if operator in _RULES:
            return _RULES[operator](*args, **kwargs)
    return operator(*args, **kwargs)


def _batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, variance: Tensor | None,
                training: bool, momentum: float, epsilon: float) -> tuple[Tensor, ...]:
    """Return outputs, and mean and deviation by channel; PyTorch's fake kernel takes 7 ms for each new shape."""
    num_channels = x.shape[1] if training else 0
    dtype = next(tensor.dtype for tensor in (weight, mean, x) if tensor is not None)
    return torch.empty_like(x), *(x.new_empty(num_channels, dtype=dtype) for _ in range(2))


def _batch_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None,
                         variance: Tensor | None, saved_mean: Tensor | None, saved_deviation: Tensor | None,
                         training: bool, epsilon: float, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Return the requested gradients of input, weights and biases."""
    of_channels = [x.new_empty(x.shape[1], dtype=x.dtype if weight is None else weight.dtype) if each else None
                   for each in wanted[1:]]
    return torch.empty_like(x) if wanted[0] else None, *of_channels


def _recurrent_backward(*args: Any) -> tuple[Tensor, ...]:
    """Return gradients; PyTorch's fake kernel returns one tensor for both biases at first, later two."""
    of_x, *of_weights, of_bias, _, of_hidden, of_cell = torch.ops.aten.mkldnn_rnn_layer_backward.default(*args)
    return of_x, *of_weights, of_bias, torch.empty_like(of_bias), of_hidden, of_cell


_RULES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: _batch_norm,
    torch.ops.aten.native_batch_norm_backward.default: _batch_norm_backward,
    torch.ops.aten.mkldnn_rnn_layer_backward.default: _recurrent_backward,
}


COMPOSITE = DispatchKey.CompositeImplicitAutograd
"""Dispatch key of composite operators."""


@cache
def is_composite(operator: Any) -> bool:
    """Return whether an operator is composite on a CPU: computed by calling other operators."""
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(operator.name(), COMPOSITE) and not has(operator.name(), DispatchKey.CPU)


def is_cast_whole(operator: Any) -> bool:
    """Return whether autocast on a CPU has a rule for an operator; it converts the parts of others."""
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has(operator.name(), DispatchKey.AutocastCPU))


@cache
def is_in_place(operator: Any) -> bool:
    """Return whether an operator writes into its first tensor and returns it with the same shape."""
    schema = operator._schema
    if len(schema.returns) != 1 or not schema.name.endswith("_") or torch.Tag.inplace_view in operator.tags:
        return False
    into, back = schema.arguments[0].alias_info, schema.returns[0].alias_info
    return into is not None and back is not None and into.is_write and into.before_set == back.before_set
