"""Optimizer updates of a model, one for each parameter."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from charact.bricks.captured_graph import CaptureError, Json, TensorType, Update


def updates_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[Update]:
    """Return one update for each trained parameter, with the constructor options of its optimizer.

    Raises:
        CaptureError: an optimizer is not from torch.optim.
    """
    found = []
    for optimizer in optimizers:
        kind = type(optimizer)
        if getattr(torch.optim, kind.__name__, None) is not kind:
            raise CaptureError(f"its optimizer {kind.__name__} is not from torch.optim")
        known = inspect.signature(kind).parameters
        for group in optimizer.param_groups:
            options = {name: _plain(value) for name, value in group.items() if name in known and name != "params"}
            found += [Update(kind.__name__, options, _type(parameter)) for parameter in group["params"]
                      if parameter.requires_grad]
    return found


def _type(tensor: Tensor) -> TensorType:
    return TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())


def _plain(value: Any) -> Json:
    """Convert an option to JSON: a learning rate may be a tensor, betas are a tuple."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, Tensor) else value
