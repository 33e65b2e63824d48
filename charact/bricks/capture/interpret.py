"""A draft becomes a captured model: its layers are run once on the real tensors, and looked at."""

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
from charact.bricks.value_distributions import sketch
from charact.core.errors import UserError
from charact.execution.case_outcome import one_line

_DETACH = "aten.detach.default"


@dataclass
class Interpretation:
    """What one run of a draft's layers shows; every value has the number of the draft.

    Args:
        draft: what to run.
        training: whether gradients are tracked.
        device: where its tensors are.
    """

    draft: Draft
    training: bool
    device: torch.device
    layers: list[Layer] = field(default_factory=list)
    """Those that remain."""
    types: dict[int, TensorType] = field(default_factory=dict)
    views: dict[int, int] = field(default_factory=dict)
    samples: dict[int, Json] = field(default_factory=dict)
    of_weights: set[int] = field(default_factory=set)
    """Values that are made of weights, buffers and constants, and of no input."""
    requires_grad: set[int] = field(default_factory=set)
    outputs: list[Tensor] = field(default_factory=list)
    output_values: list[int] = field(default_factory=list)
    _of_nothing: set[int] = field(default_factory=set)
    """Values such as those of `arange`."""
    _values: dict[int, Tensor] = field(default_factory=dict)
    _same_as: dict[int, int] = field(default_factory=dict)
    _first_with: dict[int, int] = field(default_factory=dict)
    """First value that has a storage."""
    _living: Counter[int] = field(default_factory=Counter)
    """Values that have a storage now: its address may be another's once none has."""

    def run(self) -> None:
        """Run the layers in order; what is read no more is let go.

        Raises:
            CaptureError: an operator failed, or made what is no dense tensor.
        """
        layers = self.draft.live_layers()
        last_reader = _last_readers(layers, [*self.draft.outputs, *self.draft.kept])
        read = set(last_reader)
        for value, tensor in self.draft.tensors.items():
            if value in read:
                # Layers may write into all but weights: the model's own tensors stay as they are.
                own = self.draft.kinds[value] == "weight"
                self._take(value, tensor if own else tensor.detach().clone(memory_format=torch.preserve_format))
        let_go: dict[int, list[int]] = {}
        for value, place in last_reader.items():
            let_go.setdefault(place, []).append(value)
        with torch.set_grad_enabled(self.training):
            for place, layer in enumerate(layers):
                self._step(layer)
                unread = [value for value in layer.outputs if value is not None and value not in read]
                for value in (*let_go.get(place, ()), *unread):
                    self._let_go(value)
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
            layer = replace(layer, operator=_DETACH)  # `detach_` refuses views
        for value in layer.inputs:
            if value not in self.samples:
                kind = "weight" if value in self.of_weights else self.draft.kinds.get(value, "activation")
                self.samples[value] = sketch(self._values[value], kind)
        operator = _checked(layer)
        self._trace(layer)
        self.layers.append(layer)
        for number, result in zip(layer.outputs, self._call(layer), strict=True):
            if number is not None:
                self._take(number, result)
                if number in self.draft.without_gradient and number in self.requires_grad:
                    self._cut_gradient(number, layer)
        if self.training and operator._schema.is_mutable:  # what was written may carry a gradient by now
            self.requires_grad.update(value for value, tensor in self._values.items() if tensor.requires_grad)

    def _trace(self, layer: Layer) -> None:
        """Note whether what a layer makes is made of weights alone, or of them and of what is made of nothing."""
        private = {value for value in layer.inputs
                   if value in self.of_weights or self.draft.kinds.get(value) in PRIVATE_KINDS}
        made = [number for number in layer.outputs if number is not None]
        if private and all(value in private or value in self._of_nothing for value in layer.inputs):
            self.of_weights.update(made)
        elif all(value in self._of_nothing for value in layer.inputs):
            self._of_nothing.update(made)

    def _call(self, layer: Layer) -> list[Any]:
        try:
            return call(layer, self._values, self.device)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise CaptureError(f"its operator {layer.operator} fails when it is run again: {one_line(error)}"
                               ) from error

    def _cut_gradient(self, value: int, layer: Layer) -> None:
        """Leave the gradient of a value behind, which the model makes where gradients are off."""
        made = self.draft.new_value()
        detach = Layer(_DETACH, [{"value": value}], {}, (made,), False, layer.module, layer.call)
        self.layers.append(detach)
        self._take(made, self._values[value].detach())
        self._same_as[value] = made

    def _take(self, value: int, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            raise CaptureError(f"it makes a tensor of the layout {tensor.layout}: bricks are made of dense ones")
        self._values[value] = tensor
        self.types[value] = TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())
        if self.training and tensor.requires_grad:
            self.requires_grad.add(value)
        storage = _storage(tensor)
        if self._living[storage]:
            self.views[value] = self._first_with[storage]
        else:
            self._first_with[storage] = value
        self._living[storage] += 1

    def _let_go(self, value: int) -> None:
        tensor = self._values.pop(value, None)
        if tensor is not None:  # one that is the same as another has none of its own
            self._living[_storage(tensor)] -= 1


def _checked(layer: Layer) -> OpOverload:
    """The operator of a layer, which others may run."""
    try:
        return check_arguments(layer)
    except UserError as error:
        raise CaptureError(f"its {error}".partition(": ")[0]) from error


def _last_readers(layers: list[Layer], kept: list[int]) -> dict[int, int]:
    """Place of the layer that reads a value last, or reads what may be the same."""
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
    """The layer with other values in its arguments."""
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
