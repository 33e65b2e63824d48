"""Operators on fake tensors: their results, the parts of composite ones, and those that autograd runs in place."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_aten = torch.ops.aten
_has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key

COMPOSITE = DispatchKey.CompositeImplicitAutograd
"""Dispatch key of composite operators."""
_INTO_ZEROS = {
    _aten.scatter.src: _aten.scatter_.src, _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.index_add.default: _aten.index_add_.default, _aten.index_put.default: _aten.index_put_.default,
    _aten.put.default: _aten.put_.default,
}
"""Operators that write into new zeros in the gradients of `max`, `gather`, `index_select`, indexing and `take`."""
_ACCUMULATE = 3
"""Argument of `index_put` and `put` that is true in these gradients."""


def run(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator on fake or real tensors, without PyTorch's fake kernel where that is simple and much faster.

    Fake tensors with values, such as step counts, are computed.
    """
    if args and isinstance(args[0], FakeTensor):
        if is_in_place(operator) and args[0].constant is None and args[0].layout == torch.strided:
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
    of_channels = [x.new_empty(x.shape[1], dtype=x.dtype if weight is None else weight.dtype) if is_wanted else None
                   for is_wanted in wanted[1:]]
    return torch.empty_like(x) if wanted[0] else None, *of_channels


def _recurrent_backward(*args: Any) -> tuple[Tensor, ...]:
    """Return gradients; PyTorch's fake kernel returns one tensor for both biases at first, later two."""
    of_x, *of_weights, of_bias, _, of_hidden, of_cell = _aten.mkldnn_rnn_layer_backward.default(*args)
    return of_x, *of_weights, of_bias, torch.empty_like(of_bias), of_hidden, of_cell


_RULES: dict[Any, Callable[..., Any]] = {
    _aten.native_batch_norm.default: _batch_norm,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.mkldnn_rnn_layer_backward.default: _recurrent_backward,
}


@cache
def is_composite(operator: Any) -> bool:
    """Return whether an operator is composite on a CPU: computed by calling other operators."""
    return bool(_has_kernel(operator.name(), COMPOSITE) and not _has_kernel(operator.name(), DispatchKey.CPU))


def is_cast_whole(operator: Any) -> bool:
    """Return whether CPU autocast casts the inputs of this operator.

    For a composite operator without a rule, it casts those of the operators that it calls.
    """
    return bool(_has_kernel(operator.name(), DispatchKey.AutocastCPU))


@cache
def is_in_place(operator: Any) -> bool:
    """Return whether an operator writes into its first tensor and returns it with the same shape."""
    schema = operator._schema
    if len(schema.returns) != 1 or not schema.name.endswith("_") or torch.Tag.inplace_view in operator.tags:
        return False
    into, back = schema.arguments[0].alias_info, schema.returns[0].alias_info
    return into is not None and back is not None and into.is_write and into.before_set == back.before_set


def in_place_in_backward(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the in-place operator that a real backward pass calls, or the operator itself.

    If a tensor has several uses, autograd adds the later gradients to the first one in place, unless another reference
    to it exists. Gradients of indexing write into new zeros in place. Under a dispatch mode autograd does neither.

    Source: pytorch/pytorch, `torch/csrc/autograd/input_buffer.cpp` (`can_accumulate_inplace`) and
    `torch/csrc/autograd/FunctionsManual.cpp`: both avoid in-place operators if `isTensorSubclassLike` holds, which it
    does for any tensor under a dispatch mode. Checked against requests in CUDA memory snapshots
    (`benchmarks/README.md`).
    """
    if operator is not _aten.add.Tensor and operator not in _INTO_ZEROS:
        return operator
    if torch.is_grad_enabled() or torch._C._current_autograd_node() is None:
        return operator
    first = args[0]
    is_dense = first.numel() * first.itemsize == first.untyped_storage().nbytes() and 0 not in first.stride()
    tensors, storages = _reference_counts(first)
    least_tensors, least_storages = least_references()
    if not is_dense or storages > least_storages:
        return operator
    if operator is not _aten.add.Tensor:
        is_sum = operator not in (_aten.index_put.default, _aten.put.default) or args[_ACCUMULATE:] == (True,)
        return _INTO_ZEROS[operator] if is_sum else operator
    is_sum = len(args) == 2 and not kwargs and isinstance(args[1], Tensor) and first.shape == args[1].shape
    return _aten.add_.Tensor if is_sum and first.dtype == args[1].dtype and tensors <= least_tensors else operator


def _reference_counts(tensor: Tensor) -> tuple[int, int]:
    """Return the reference counts of tensor and storage; only private functions of PyTorch have them."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


@cache
def least_references() -> tuple[int, int]:
    """Return the reference counts of tensor and storage for a gradient that only autograd holds.

    The counts include the dispatcher's references. The first call runs a backward pass: it must happen outside of
    `__torch_dispatch__`.
    """
    counts: list[tuple[int, int]] = []

    class Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is _aten.add.Tensor and not torch.is_grad_enabled():
                counts.append(_reference_counts(args[0]))
            return func(*args, **(kwargs or {}))

    with (_disable_current_modes(), torch.inference_mode(False), torch.enable_grad(),
          Sums()):  # type: ignore[no-untyped-call]
        middle = torch.ones(2, requires_grad=True).exp()
        torch.cat([middle.exp(), middle.exp()]).sum().backward()  # type: ignore[no-untyped-call]
    return counts[0]
