"""Dtypes of operations, references and tolerances of their results, and repeated backward passes on one graph."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from charact.execution.precision import unsupported_reason as float_unsupported_reason

DTYPES = {
    "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8,
}  # fmt: skip
ROUNDING = {"fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11, "int8": 0.0}
"""Largest relative error of rounding a number."""
_NUM_CHECKED = 64
"""Number of checked rows and columns of a product."""


def number_refusal(precision: str, device: torch.device, *, int8: str | None = None) -> str | None:
    """Return why a precision of operations is not supported on a device; None if it is.

    `int8` is the reason of a kind of operation without int8.
    """
    return int8 if precision == "int8" else float_unsupported_reason(precision, device)


def pointwise_refusal(name: str, precision: str, device: torch.device) -> str | None:
    """Return the reason for an operation without matrix products; only those can use TF32 and int8."""
    if precision in ("tf32", "int8"):
        return f"{precision} is for products of matrices, {name} has none: use --precision fp32"
    return number_refusal(precision, device)


def sum_tolerance(precision: str, num_terms: int, *, kept_in: str = "fp32") -> float:
    """Return the allowed error of sums of products, over the largest of them.

    Factors and results are rounded to the precision, and partial results on some GPUs: four times its rounding. Sums
    have the type `kept_in`; its errors are random and grow as the root of the number of terms: four times that. Sums of
    integers are exact.
    """
    if precision == "int8":
        return 0.0
    return 4 * (ROUNDING[precision] + math.sqrt(num_terms) * ROUNDING[kept_in])


def spread_indices(size: int, count: int) -> torch.Tensor:
    """Return evenly spaced indices below a size, from the first to the last; all of them if `count` is larger."""
    return torch.linspace(0, size - 1, min(size, count), dtype=torch.float64).round().long()


def checked_product(m: int, n: int, device: torch.device) -> tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]:
    """Return reference and compared part of a product of M×K and K×N: some rows and columns, with both ends."""
    rows, columns = (spread_indices(size, _NUM_CHECKED).to(device) for size in (m, n))

    def reference(a: Tensor, b: Tensor) -> Tensor:
        return a.to_dense()[rows].cpu().double() @ b[:, columns].cpu().double()

    return reference, lambda c: c[rows][:, columns]


def with_graph(forward: Callable[..., Tensor], tensors: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Return the result of a forward pass, a random gradient by it, and its input tensors.

    Tensors with gradients must require them.
    """
    with torch.enable_grad():
        result = forward(*tensors)
    gradient = torch.randn(result.shape, generator=generator, device=result.device).to(result.dtype)
    return [result, gradient, *tensors]


def gradients(result: Tensor, gradient: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return gradients of the tensors that require one, from `with_graph`; repeatable."""
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    return torch.autograd.grad(result, wanted, gradient, retain_graph=True)


def reserve_copy(result: Tensor, *_: Tensor) -> Tensor:
    """Copy the reserve of a recurrent layer of cuDNN or MIOpen, as `gradients` does.

    The backward pass changes the reserve, so autograd copies it if the graph is kept.
    *Source*: pytorch/pytorch, `tools/autograd/derivatives.yaml`, `_cudnn_rnn` and `miopen_rnn`.
    """
    reserve: Tensor | None = getattr(result.grad_fn, "_saved_result3", None)
    return torch.empty(0) if reserve is None else reserve.clone()


def flattened(parts: Sequence[Any]) -> Tensor:
    """Return several tensors as one vector in float64 on the CPU."""
    return torch.cat([part.detach().double().cpu().flatten() for part in parts])
