"""Arguments of operators as JSON, and calling an operator with them again."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from charact.bricks.aten import literal, operator_of
from charact.bricks.captured_graph import CaptureError, Json, Layer

_USES_CUDNN = {"cudnn_enabled", "cudnn_enable"}


def encoded_call(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], number: Callable[[Any], int],
                 refers: type) -> tuple[list[Json], dict[str, Json]]:
    """Arguments of a call as JSON.

    Whether cuDNN may be used is said to be so, as it is wherever there is one: a capture on a machine without it
    would forbid it to all others.

    Args:
        operator: what was called.
        args: with what.
        kwargs: and with what by name.
        number: tells which value something stands for.
        refers: type of what stands for values.

    Raises:
        CaptureError: an argument is nothing that JSON can tell, such as a generator of random numbers.
    """
    names = [argument.name for argument in operator._schema.arguments]
    listed = [True if name in _USES_CUDNN else _encoded(argument, number, refers)
              for name, argument in zip(names, args, strict=False)]
    return listed, {name: True if name in _USES_CUDNN else _encoded(argument, number, refers)
                    for name, argument in kwargs.items()}


def _encoded(argument: Any, number: Callable[[Any], int], refers: type) -> Json:
    if isinstance(argument, refers):
        return {"value": number(argument)}
    if isinstance(argument, (list, tuple)):
        return [_encoded(each, number, refers) for each in argument]
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
    raise CaptureError(f"is called with a {type(argument).__name__}, which cannot be kept")


def operator_name(operator: Any) -> str:
    """`aten.conv2d.default`.

    Raises:
        CaptureError: it is none of ATen's, so that it could not be run without the model's libraries.
    """
    if not isinstance(operator, OpOverload) or operator.namespace != "aten":
        raise CaptureError(f"its operator {operator} is none of PyTorch's own")
    return str(operator)


def call(layer: Layer, values: Mapping[int, Tensor], device: torch.device) -> list[Any]:
    """What a layer gives, one thing for each of its outputs."""
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
