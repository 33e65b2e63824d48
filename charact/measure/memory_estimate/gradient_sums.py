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

    If a tensor has several uses, autograd adds the later gradients to the first one in place, unless another reference
    to it exists. Gradients of indexing write into new zeros in place.
    """
    if operator is not _aten.add.Tensor and operator not in _INTO_ZEROS:
        return operator
    if torch.is_grad_enabled() or torch._C._current_autograd_node() is None or not _is_dense(args[0]):
        return operator
    tensors, storages = _reference_counts(args[0])
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
