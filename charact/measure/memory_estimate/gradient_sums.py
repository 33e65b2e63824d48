"""Operators that autograd runs in place in a real backward pass, but not under a dispatch mode.

Source: pytorch/pytorch, `torch/csrc/autograd/input_buffer.cpp` (`can_accumulate_inplace`) and
`torch/csrc/autograd/FunctionsManual.cpp`: both avoid in-place operators if `isTensorSubclassLike` holds, which it does
for any tensor under a dispatch mode. Checked against requests in CUDA memory snapshots (`benchmarks/README.md`).
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_aten = torch.ops.aten

_INTO_ZEROS = {
    _aten.scatter.src: _aten.scatter_.src, _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.index_add.default: _aten.index_add_.default, _aten.index_put.default: _aten.index_put_.default,
    _aten.put.default: _aten.put_.default,
}
"""Operators that write into new zeros in the gradients of `max`, `gather`, `index_select`, indexing and `take`."""
_ACCUMULATE = 3
"""Argument of `index_put` and `put` that is true in these gradients."""


def in_place_in_backward(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the in-place operator that a real backward pass calls, or the operator itself.

    Autograd adds the gradients of a tensor's uses into the first one, if nothing else refers to that; and some of its
    formulas write into new zeros.
    """
    if operator is not _aten.add.Tensor and operator not in _INTO_ZEROS:
        return operator
    if torch.is_grad_enabled() or torch._C._current_autograd_node() is None or not _is_dense(args[0]):
        return operator
    tensors, storages = _references(args[0])
    least_tensors, least_storages = least_references()
    if storages > least_storages:
        return operator
    if operator is not _aten.add.Tensor:
        is_sum = operator not in (_aten.index_put.default, _aten.put.default) or args[_ACCUMULATE:] == (True,)
        return _INTO_ZEROS[operator] if is_sum else operator
    is_sum = len(args) == 2 and not kwargs and isinstance(args[1], Tensor) and args[0].shape == args[1].shape
    return _aten.add_.Tensor if is_sum and args[0].dtype == args[1].dtype and tensors <= least_tensors else operator


def _is_dense(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes() and 0 not in tensor.stride()


def _references(tensor: Tensor) -> tuple[int, int]:
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


@cache
def least_references() -> tuple[int, int]:
    """Return the references of a gradient that only autograd holds, which include those of the dispatcher.

    Call it first outside of dispatched operators, where autograd works.
    """
    found: list[tuple[int, int]] = []

    class Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is _aten.add.Tensor and not torch.is_grad_enabled():
                found.append(_references(args[0]))
            return func(*args, **(kwargs or {}))

    with _disable_current_modes(), torch.enable_grad(), Sums():  # type: ignore[no-untyped-call]
        middle = torch.ones(2, requires_grad=True).exp()
        torch.cat([middle.exp(), middle.exp()]).sum().backward()  # type: ignore[no-untyped-call]
    return found[0]
