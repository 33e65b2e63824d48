"""Encoding of operator arguments as JSON, and calls of operators with the decoded arguments."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from charact.bricks.aten import literal, operator_of
from charact.bricks.captured_graph import CaptureError, Json, Layer

_USES_CUDNN = {"cudnn_enabled", "cudnn_enable"}


def encoded_call(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], index_of: Callable[[Any], int],
                 value_type: type) -> tuple[list[Json], dict[str, Json]]:
    """Encode the arguments of a call as JSON.

    Arguments that enable cuDNN become true: a capture on a machine without cuDNN must not disable it elsewhere.

    Args:
        operator: the called operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        index_of: returns the index of a value.
        value_type: type of the objects that represent values.

    Raises:
        CaptureError: an argument has no JSON form, such as a random number generator.
    """
    names = [argument.name for argument in operator._schema.arguments]
    listed = [True if name in _USES_CUDNN else _encoded(argument, index_of, value_type)
              for name, argument in zip(names, args, strict=False)]
    return listed, {name: True if name in _USES_CUDNN else _encoded(argument, index_of, value_type)
                    for name, argument in kwargs.items()}


def _encoded(argument: Any, index_of: Callable[[Any], int], value_type: type) -> Json:
    if isinstance(argument, value_type):
        return {"value": index_of(argument)}
    if isinstance(argument, (list, tuple)):
        return [_encoded(each, index_of, value_type) for each in argument]
    if argument is None or isinstance(argument, (bool, str)):
        return argument
    if isinstance(argument, (int, torch.SymInt)):
        return int(argument)
    if isinstance(argument, (float, torch.SymFloat)):
        value = float(argument)
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(argument, complex):
        return {"complex": [argument.real, argument.imag]}
    if isinstance(argument, (torch.dtype, torch.memory_format, torch.layout)):
        return {type(argument).__name__: str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.device):
        return {"device": True}
    raise CaptureError(f"is called with a {type(argument).__name__}, which cannot be stored")


def operator_name(operator: Any) -> str:
    """Return the full name of an ATen operator, such as `aten.conv2d.default`.

    Raises:
        CaptureError: it is not an ATen operator: running it would need the model's libraries.
    """
    if not isinstance(operator, OpOverload) or operator.namespace != "aten":
        raise CaptureError(f"its operator {operator} is not a PyTorch operator")
    return str(operator)


def call(layer: Layer, values: Mapping[int, Tensor], device: torch.device) -> list[Any]:
    """Run a layer and return its results, one for each of its outputs."""
    args = [_decoded(argument, values, device) for argument in layer.args]
    kwargs = {name: _decoded(argument, values, device) for name, argument in layer.kwargs.items()}
    result = operator_of(layer.operator)(*args, **kwargs)
    return list(result) if layer.several else [result]


def _decoded(argument: Json, values: Mapping[int, Tensor], device: torch.device) -> Any:
    if isinstance(argument, list):
        return [_decoded(each, values, device) for each in argument]
    if not isinstance(argument, dict):
        return argument
    return values[argument["value"]] if argument.keys() == {"value"} else literal(argument, device)
