"""Repeated backward passes of an operation on one graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


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
