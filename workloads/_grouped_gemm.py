"""Products of groups of rows, each with a matrix of its own, as operators that PyTorch traces, counts and compiles.

Shapes do not depend on the sizes of the groups, so the operators run on fake tensors. On CUDA in bf16 each is one
kernel of PyTorch. In other types, and in PyTorch before 2.10, the groups are multiplied one by one; on CUDA the host
then waits for their sizes.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula


@torch.library.custom_op("charact::grouped_gemm", mutates_args=())
def grouped_gemm(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return each row (in,) of x times the transposed matrix of its group, of weights (groups, out, in).

    Group g has the rows from ends[g - 1] to ends[g], which is int32.
    """
    if _in_one_kernel(x):
        return functional.grouped_mm(x, weights.mT, offs=ends)
    outputs = x.new_empty(x.shape[0], weights.shape[1])
    for group, rows in _groups(ends):
        torch.mm(x[rows], weights[group].mT, out=outputs[rows])
    return outputs


@torch.library.custom_op("charact::grouped_gemm_gradient", mutates_args=())
def grouped_gemm_gradient(gradients: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """Return the gradients of the weights, (groups, out, in), from those of the outputs, (rows, out)."""
    if _in_one_kernel(x):
        return functional.grouped_mm(gradients.mT, x, offs=ends)
    outputs = x.new_empty(ends.shape[0], gradients.shape[1], x.shape[1])
    for group, rows in _groups(ends):
        torch.mm(gradients[rows].mT, x[rows], out=outputs[group])
    return outputs


def _in_one_kernel(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.bfloat16 and hasattr(functional, "grouped_mm")


def _groups(ends: Tensor) -> Iterator[tuple[int, slice]]:
    return enumerate(slice(first, end) for first, end in pairwise([0, *ends.tolist()]))


@grouped_gemm.register_fake
def _(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weights.shape[1])


@grouped_gemm_gradient.register_fake
def _(gradients: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], gradients.shape[1], x.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weights, ends = ctx.saved_tensors
    gradients = gradients.contiguous()  # a sum's are expanded, which the kernels do not take
    of_x, of_weights, _ = ctx.needs_input_grad
    return (grouped_gemm(gradients, weights.mT, ends) if of_x else None,
            grouped_gemm_gradient(gradients, x, ends) if of_weights else None, None)


grouped_gemm.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.charact.grouped_gemm)
def _flop(x: torch.Size, weights: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * x[0] * weights[1] * weights[2]


@register_flop_formula(torch.ops.charact.grouped_gemm_gradient)
def _gradient_flop(gradients: torch.Size, x: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * x[0] * x[1] * gradients[1]
