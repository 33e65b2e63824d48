"""Running the backward pass of an operation alone, again and again on one graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def with_graph(forward: Callable[..., Tensor], tensors: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """The result of a forward pass, a random gradient by it, and the tensors that it was made of.

    Args:
        forward: called with the tensors.
        tensors: those that a gradient is wanted of must require it.
        generator: draws the gradient.
    """
    with torch.enable_grad():
        result = forward(*tensors)
    gradient = torch.randn(result.shape, generator=generator, device=result.device).to(result.dtype)
    return [result, gradient, *tensors]


def gradients(result: Tensor, gradient: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Gradients of those tensors that require one; what `with_graph` returns can be given as often as one likes."""
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    return torch.autograd.grad(result, wanted, gradient, retain_graph=True)


def flattened(parts: Sequence[Any]) -> Tensor:
    """Several tensors as one row of numbers in float64 on the CPU."""
    return torch.cat([part.detach().double().cpu().flatten() for part in parts])
