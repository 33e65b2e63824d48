"""Capturing a model: the operators of one forward pass, the tensors between them, and their value distributions."""

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from charact.bricks.aten import call, check_arguments, written_values
from charact.bricks.capture.recording import SAME, Draft, Program, Source, check_gradients, model_line, recorded
from charact.bricks.suite.captured_graph import (
    PRIVATE_KINDS,
    CapturedModel,
    CaptureError,
    Json,
    Layer,
    TensorType,
    Update,
    type_of,
)
from charact.bricks.value_distributions import distribution_of
from charact.core.errors import UserError
from charact.execution.case_outcome import one_line
from charact.workload.base import Workload

_DETACH = "aten.detach.default"


@dataclass
class Interpretation:
    """Properties of values, found by running a draft's layers once; values keep the draft's indices."""

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
    """Values computed without any tensor, such as those of `arange`."""
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
            value, alias = layer.inputs[0], layer.outputs[0]
            assert alias is not None
            if value not in self.requires_grad or "detach" not in layer.operator:
                self._same_as[alias] = value
                return
            layer = replace(layer, operator=_DETACH)  # `detach_` does not accept views
        for value in layer.inputs:
            if value not in self.samples:
                kind = "weight" if value in self.of_weights else self.draft.kinds.get(value, "activation")
                self.samples[value] = distribution_of(self._values[value], kind)
        try:
            operator = check_arguments(layer)  # a brick may call it
        except UserError as error:
            raise CaptureError(f"its {error}".partition(": ")[0]) from error
        made = [number for number in layer.outputs if number is not None]
        private = {value for value in layer.inputs
                   if value in self.of_weights or self.draft.kinds.get(value) in PRIVATE_KINDS}
        if private and all(value in private or value in self._input_free for value in layer.inputs):
            self.of_weights.update(made)
        elif all(value in self._input_free for value in layer.inputs):
            self._input_free.update(made)
        self.layers.append(replace(layer, writes=tuple(written_values(layer))))
        try:
            results = call(layer, self._values, self.device)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise CaptureError(f"its operator {layer.operator} fails when it is run again: {one_line(error)}"
                               ) from error
        for number, result in zip(layer.outputs, results, strict=True):
            if number is not None:
                self._take(number, result)
                if number in self.draft.without_gradient and number in self.requires_grad:
                    self._cut_gradient(number, layer)
        if self.training and operator._schema.is_mutable:  # an in-place write may have added a gradient
            self.requires_grad.update(value for value, tensor in self._values.items() if tensor.requires_grad)

    def _cut_gradient(self, value: int, layer: Layer) -> None:
        """Detach a value that the model computes while gradients are off."""
        made = self.draft.new_value()
        detach = Layer(_DETACH, [{"value": value}], {}, (made,), False, layer.module)
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


_TOLERANCE = 1e-3
"""Tolerated difference from the model's own outputs, relative to their largest magnitude."""


def capture(source: Source) -> CapturedModel:
    """Capture a model by recording the operators that run; the model is built here.

    Raises:
        CaptureError: the message names the operator or the line of the model's code.
    """
    try:
        program = source.build()
    except UserError:
        raise
    except Exception as error:  # raised by the model's code
        raise CaptureError(f"{source.asked_as} cannot be captured: the model cannot be built{model_line(error)}: "
                           f"{one_line(error)}") from error
    try:
        return _captured(program)
    except CaptureError as error:
        raise CaptureError(f"{source.asked_as} cannot be captured: {error}") from error


def _captured(program: Program) -> CapturedModel:
    training = program.case.training
    if training:
        check_gradients(program)
    draft, outputs = recorded(program)
    run = Interpretation(draft, training, program.case.device)
    with program.real_run():
        run.run()
    if not run.layers:
        raise CaptureError("it calls no operator: there is nothing to cut")
    notes = _difference(outputs, run.outputs)
    if any(layer.gives_number for layer in run.layers):
        notes.append("its code reads numbers from tensors: its bricks hold the results as constants of this run, and "
                     "their identifiers depend on them")
    if training and type(program.workload).clip_gradients is not Workload.clip_gradients:
        notes.append("it clips its gradients, which no brick covers: its constructed update is too short")
    values = {value for layer in run.layers for value in (*layer.inputs, *layer.outputs) if value is not None}
    values.update(run.output_values)
    return CapturedModel(
        types={value: type for value, type in run.types.items() if value in values},
        leaves={value: kind for value, kind in draft.kinds.items() if value in values},
        layers=run.layers, outputs=run.output_values, requires_grad=frozenset(run.requires_grad & values),
        views={value: base for value, base in run.views.items() if value in values},
        num_module_calls=draft.num_module_calls, updates=updates_of(program.optimizers),
        num_parameters=sum(parameter.numel() for parameter in program.model.parameters()), notes=notes,
        tensors={value: tensor for value, tensor in draft.tensors.items() if value in values},
        samples={value: sample for value, sample in run.samples.items() if value in values})


def _difference(real: list[Tensor], found: list[Tensor]) -> list[str]:
    """Return a note if the layers' outputs differ from the model's."""
    for one, other in zip(real, found, strict=True):
        if one.shape != other.shape:
            return [f"its layers return an output of shape {tuple(other.shape)}, the model {tuple(one.shape)}"]
        if one.numel() and one.dtype != torch.bool:
            difference = (one.double() - other.double()).abs().max().item()
            largest = one.double().abs().max().item()
            if difference > _TOLERANCE * largest:
                return [f"its layers' outputs differ from the model's by {difference / largest:.1%}"]
    return []


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
            found += [Update(kind.__name__, options, type_of(parameter)) for parameter in group["params"]
                      if parameter.requires_grad]
    return found


def _plain(value: Any) -> Json:
    """Convert an option to JSON: a learning rate may be a tensor, betas are a tuple."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, Tensor) else value
