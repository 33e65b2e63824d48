"""Draft of a captured model: the operators as they were called, their arguments as JSON, and the leaf tensors."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from charact.bricks.aten import literal, operator_of
from charact.bricks.captured_graph import CaptureError, Json, Layer

SAME = frozenset(["aten.detach.default", "aten.detach_.default", "aten.alias.default", "aten.lift_fresh.default"])
"""Operators that return their input; they matter only for gradients."""


@dataclass
class Draft:
    """Layers in execution order. A layer's output may be read only by the model's code, or never."""

    layers: list[Layer] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)
    """Kind of each leaf."""
    tensors: dict[int, Tensor] = field(default_factory=dict)
    """The leaves' tensors."""
    outputs: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """Values that the program computes in addition to the outputs; the layers that compute them are kept."""
    without_gradient: set[int] = field(default_factory=set)
    """Values computed while gradients were off."""
    num_values: int = 0

    def new_value(self) -> int:
        """Return the next value index."""
        self.num_values += 1
        return self.num_values - 1

    def leaf(self, kind: str, tensor: Tensor) -> int:
        """Add a leaf and return its value index."""
        value = self.new_value()
        self.kinds[value], self.tensors[value] = kind, tensor
        return value

    def live_layers(self) -> list[Layer]:
        """Return the layers without those of `SAME` whose output nobody reads."""
        read = {*self.outputs, *self.kept}
        live = []
        for layer in reversed(self.layers):
            if layer.operator not in SAME or not read.isdisjoint(layer.outputs):
                live.append(layer)
                read.update(layer.inputs)
        return live[::-1]

    def add(self, operator: OpOverload, args: Any, kwargs: Mapping[str, Any], result: Any, *, index_of: Any,
            value_type: type, module: str, call: int = 0) -> list[int | None]:
        """Add the layer of one call.

        Args:
            operator: the called operator; assertions are skipped.
            args: its positional arguments.
            kwargs: its keyword arguments.
            result: its result, real or fake.
            index_of: returns the index of a value of type `value_type`.
            value_type: type of the objects that represent values in the arguments.
            module: qualified name of the running module.
            call: index of the leaf module's call.

        Returns:
            Value indices of the result's tensors; None for a result that is not a tensor.

        Raises:
            CaptureError: the operator or an argument cannot be stored.
        """
        name = operator_name(operator)
        try:
            args, kwargs = encoded_call(operator, args, kwargs, index_of, value_type)
        except CaptureError as error:
            raise CaptureError(f"its operator {name} {error}") from error
        several = isinstance(result, (list, tuple))
        outputs = [self.new_value() if isinstance(each, Tensor) else None for each in (result if several else [result])]
        if not name.startswith("aten._assert"):
            self.layers.append(Layer(name, args, kwargs, tuple(outputs), several, module, call))
        return outputs


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
