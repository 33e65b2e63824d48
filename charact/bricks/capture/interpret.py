"""Conversion of a draft to a captured model: runs its layers once on real tensors and records their properties."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from charact.bricks.aten import check_arguments
from charact.bricks.capture.arguments import call
from charact.bricks.capture.graph_builder import SAME, Draft
from charact.bricks.captured_graph import PRIVATE_KINDS, CaptureError, Json, Layer, TensorType
from charact.bricks.value_distributions import distribution_of
from charact.core.errors import UserError
from charact.execution.case_outcome import one_line

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
        layer = _renamed(layer, self._same_as)
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
        self.layers.append(layer)
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
        self.types[value] = TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())
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


def _renamed(layer: Layer, names: dict[int, int]) -> Layer:
    """Return the layer with values in its arguments replaced by `names`."""
    if names.keys().isdisjoint(layer.inputs):
        return layer
    return replace(layer, args=_with_names(layer.args, names), kwargs=_with_names(layer.kwargs, names))


def _with_names(thing: Json, names: dict[int, int]) -> Json:
    if isinstance(thing, list):
        return [_with_names(each, names) for each in thing]
    if isinstance(thing, dict):
        if thing.keys() == {"value"} and not isinstance(thing["value"], dict):
            return {"value": names.get(thing["value"], thing["value"])}
        return {key: _with_names(each, names) for key, each in thing.items()}
    return thing
