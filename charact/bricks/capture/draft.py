"""Draft of a captured model: operators as they were called, their arguments as JSON, and the leaf tensors.

`Interpretation` runs a draft once to find the properties of its values.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from charact.bricks.aten import check_arguments, literal, operator_of, written_values
from charact.bricks.captured_graph import PRIVATE_KINDS, CaptureError, Json, Layer, TensorType, type_of
from charact.bricks.value_distributions import distribution_of
from charact.core.errors import UserError
from charact.execution.case_outcome import one_line

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


_DETACH = "aten.detach.default"


@dataclass
class Interpretation:
    """Properties of values, found by running a draft's layers once; values keep the draft's indices.

    Args:
        draft: the draft to run.
        training: whether gradients are tracked.
        device: device of its tensors.
    """

    draft: Draft
    training: bool
    device: torch.device
    layers: list[Layer] = field(default_factory=list)
    """Layers of the captured model."""
    types: dict[int, TensorType] = field(default_factory=dict)
    views: dict[int, int] = field(default_factory=dict)
    samples: dict[int, Json] = field(default_factory=dict)
    of_weights: set[int] = field(default_factory=set)
    """Values computed from weights, buffers and constants, but from no input."""
    requires_grad: set[int] = field(default_factory=set)
    outputs: list[Tensor] = field(default_factory=list)
    output_values: list[int] = field(default_factory=list)
    _input_free: set[int] = field(default_factory=set)
    """Values computed from nothing, such as those of `arange`."""
    _values: dict[int, Tensor] = field(default_factory=dict)
    _same_as: dict[int, int] = field(default_factory=dict)
    _first_with: dict[int, int] = field(default_factory=dict)
    """First value of each storage."""
    _num_values_of: Counter[int] = field(default_factory=Counter)
    """Number of live values of each storage; at 0 its address may be reused."""

    def run(self) -> None:
        """Run the layers in order, and release each value after its last use.

        Raises:
            CaptureError: an operator failed, or returned a tensor that is not dense.
        """
        layers = self.draft.live_layers()
        last_reader = _last_readers(layers, [*self.draft.outputs, *self.draft.kept])
        read = set(last_reader)
        for value, tensor in self.draft.tensors.items():
            if value in read:
                # Clone all but weights: layers may write into them, and the model's tensors must not change.
                own = self.draft.kinds[value] == "weight"
                self._take(value, tensor if own else tensor.detach().clone(memory_format=torch.preserve_format))
        released_after: dict[int, list[int]] = {}
        for value, place in last_reader.items():
            released_after.setdefault(place, []).append(value)
        with torch.set_grad_enabled(self.training):
            for place, layer in enumerate(layers):
                self._step(layer)
                unread = [value for value in layer.outputs if value is not None and value not in read]
                for value in (*released_after.get(place, ()), *unread):
                    self._release(value)
        self.output_values = [self._same_as.get(value, value) for value in self.draft.outputs]
        self.outputs = [self._values[value].detach() for value in self.output_values]

    def _step(self, layer: Layer) -> None:
        layer = layer.renamed(lambda value: self._same_as.get(value, value))
        if layer.operator in SAME:
            value, made = layer.inputs[0], layer.outputs[0]
            assert made is not None
            if value not in self.requires_grad or "detach" not in layer.operator:
                self._same_as[made] = value
                return
            layer = replace(layer, operator=_DETACH)  # `detach_` does not accept views
        for value in layer.inputs:
            if value not in self.samples:
                kind = "weight" if value in self.of_weights else self.draft.kinds.get(value, "activation")
                self.samples[value] = distribution_of(self._values[value], kind)
        operator = _checked(layer)
        self._note_origin(layer)
        self.layers.append(replace(layer, writes=tuple(written_values(layer))))
        for number, result in zip(layer.outputs, self._call(layer), strict=True):
            if number is not None:
                self._take(number, result)
                if number in self.draft.without_gradient and number in self.requires_grad:
                    self._cut_gradient(number, layer)
        if self.training and operator._schema.is_mutable:  # an in-place write may have added a gradient
            self.requires_grad.update(value for value, tensor in self._values.items() if tensor.requires_grad)

    def _note_origin(self, layer: Layer) -> None:
        """Record whether a layer's outputs depend on weights but on no input."""
        private = {value for value in layer.inputs
                   if value in self.of_weights or self.draft.kinds.get(value) in PRIVATE_KINDS}
        made = [number for number in layer.outputs if number is not None]
        if private and all(value in private or value in self._input_free for value in layer.inputs):
            self.of_weights.update(made)
        elif all(value in self._input_free for value in layer.inputs):
            self._input_free.update(made)

    def _call(self, layer: Layer) -> list[Any]:
        try:
            return call(layer, self._values, self.device)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise CaptureError(f"its operator {layer.operator} fails when it is run again: {one_line(error)}"
                               ) from error

    def _cut_gradient(self, value: int, layer: Layer) -> None:
        """Detach a value that the model computes while gradients are off."""
        made = self.draft.new_value()
        detach = Layer(_DETACH, [{"value": value}], {}, (made,), False, layer.module, layer.call)
        self.layers.append(detach)
        self._take(made, self._values[value].detach())
        self._same_as[value] = made

    def _take(self, value: int, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            raise CaptureError(f"it makes a tensor of the layout {tensor.layout}: bricks support only dense tensors")
        self._values[value] = tensor
        self.types[value] = type_of(tensor)
        if self.training and tensor.requires_grad:
            self.requires_grad.add(value)
        storage = _storage(tensor)
        if self._num_values_of[storage]:
            self.views[value] = self._first_with[storage]
        else:
            self._first_with[storage] = value
        self._num_values_of[storage] += 1

    def _release(self, value: int) -> None:
        tensor = self._values.pop(value, None)
        if tensor is not None:  # aliases have no entry
            self._num_values_of[_storage(tensor)] -= 1


def _checked(layer: Layer) -> OpOverload:
    """Return a layer's operator, after checking that a brick may call it."""
    try:
        return check_arguments(layer)
    except UserError as error:
        raise CaptureError(f"its {error}".partition(": ")[0]) from error


def _last_readers(layers: list[Layer], kept: list[int]) -> dict[int, int]:
    """Return the index of the last layer that reads each value or an alias of it."""
    found = {value: place for place, layer in enumerate(layers) for value in layer.inputs}
    found.update(dict.fromkeys(kept, len(layers)))
    for layer in reversed(layers):
        made = layer.outputs[0] if layer.operator in SAME else None
        if made is not None:
            found[layer.inputs[0]] = max(found[layer.inputs[0]], found.get(made, 0))
    return found


def _storage(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
