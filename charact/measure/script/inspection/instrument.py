"""Instrument of the inspection pass."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from charact.measure.script.inspection.gradient_use import GradientUse, OutputUse
from charact.measure.script.inspection.held_data import held_data, tensor_census
from charact.measure.script.inspection.module_calls import ModuleCalls
from charact.measure.script.inspection.tensor_contents import (
    denormal_frac,
    gradient_bytes,
    num_repeated_rows,
    num_used_rows,
    padding_frac,
)
from charact.measure.script.inspection.token_inputs import TokenInputs
from charact.measure.script.program_state import Clock, Instrument, Moment, ProgramState, compiles, compute_device
from charact.measure.script.spans.device_clock import is_capturing
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.record.schema import Rows

_INSIDE_BACKWARD = {Kind.BACKWARD, Kind.COMMUNICATION, Kind.COMPILE, Kind.STEP}
"""Kinds of the innermost span while a backward runs."""
_COMPILED = "hooks would break the graphs of compiled code"
_FEW_FRAC, _MANY_FRAC = 0.01, 0.05
"""Share of denormal numbers in a model's parameters below which its layers are not looked at, and in a layer's own."""
_FAST = "a GPU computes with denormal numbers at full speed"


class InspectionInstrument(Instrument):
    """Instrument that reads gradients, optimizer state, inputs and module calls of one iteration.

    A fact that cannot be read is empty, and `missing` has the reason. Gradients are also followed in the iteration
    before, because the next iteration may delete the gradients of the last one.

    *Error*: hooks add some microseconds to each module's call and each parameter's gradient.
    """

    def __init__(self, state: ProgramState, recorder: SpanRecorder, _: Path) -> None:
        self._recorder, self._device = recorder, compute_device()
        self._models, self._optimizers = state.models(), state.optimizers_by_name()
        self._missing: dict[str, str] = {}
        self._clock, self._owner_of = Clock(self._device), state.owner_of
        self._gradients = GradientUse(self._models, self._optimizers, self._clock)
        self._names = {id(module): (prefix + name).rstrip(".") or type(model).__name__
                       for prefix, model in self._models.items() for name, module in model.named_modules()}
        self._calls = ModuleCalls(self._names, self._clock, lambda: self._backward is not None, self._look_at_inputs,
                                  self._look_at_output, self._look_at_call)
        self._backward: Moment | None = None
        """Start of the open backward."""
        self._num_iterations = 1
        self._forget()

    def _forget(self) -> None:
        self._is_measured = False
        self._held: dict[str, Any] = {}
        self._backwards: list[tuple[Moment, Moment]] = []
        self._embeddings: dict[str, dict[str, Any]] = {}
        self._padding: dict[str, list[float]] = {}
        self._tokens = TokenInputs()
        self._outputs = OutputUse()
        self._repeated: dict[str, list[int]] = {}
        """Numbers of rows and of repeated rows by layer, in all calls that are no part of another one."""

    def prepare(self) -> None:
        """Add hooks to the parameters, except in a program with compiled code."""
        if compiles():
            facts = ("recompute", "unused_gradients", "padding", "layer_calls", "tokens")
            self._missing |= dict.fromkeys(facts, _COMPILED)
        if self._device.type != "cpu":
            self._missing["denormals"] = _FAST
        self._attempt("unused_gradients", self._gradients.start)
        self._recorder.on_change = self._changed

    def begin(self) -> None:
        """Start the measured iteration."""
        self._is_measured = True
        self._num_iterations += 1
        self._attempt("layer_calls", self._calls.start)

    def end(self, *, last: bool) -> None:
        """Read the gradients that are left, and take the census of live tensors."""
        self._calls.stop()
        self._recorder.on_change = None
        self._attempt("embeddings", self._look_at_embeddings)
        self._held = self._attempt("held_tensors", lambda: tensor_census(
            list(self._models.values()), list(self._optimizers.values()))) or {}
        self._held["held_data"] = self._attempt("held_data", held_data) or []
        self._is_measured = False

    def drop(self) -> None:
        """See `Instrument`."""
        self._calls.stop()
        self._calls.forget()
        self._forget()

    def results(self) -> tuple[dict[str, Rows], dict[str, Any]]:
        """See `Instrument`."""
        facts = {
            "embeddings": list(self._embeddings.values()),
            "denormals": self._attempt("denormals", self._denormals) or [],
            "recompute": self._attempt("recompute", self._recompute),
            "unused_gradients": self._attempt(
                "unused_gradients", lambda: self._gradients.unused(self._num_iterations)) or [],
            "padding": [{"name": name, "padding_frac": padded / elements}
                        for name, (padded, elements) in self._padding.items() if padded],
            "layer_calls": self._attempt("layer_calls", self._calls.frequent) or [],
            "attention_weights": self._attempt("layer_calls", self._calls.attention_weights) or [],
            "unused_outputs": self._outputs.unused(),
            "repeated_rows": [{"layer": layer, "num_rows": num_rows, "num_repeated": num_repeated}
                              for layer, (num_rows, num_repeated) in self._repeated.items() if num_repeated],
            "token_inputs": self._tokens.rows(),
            **self._held,
        }
        return {}, facts | {"num_iterations": 1, "missing": self._missing}

    def clean(self) -> None:
        """Remove all hooks."""
        self._recorder.on_change = None
        self._calls.stop()
        self._gradients.stop()

    def _attempt(self, fact: str, act: Callable[[], Any]) -> Any:
        """Call a function that reads a fact, and return its result; an error becomes the reason of a missing fact."""
        if fact not in self._missing:
            try:
                with torch.no_grad():
                    return act()
            except Exception as error:
                self._missing[fact] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None

    def _changed(self, kind: Kind | None) -> None:
        """Record starts and ends of backwards, and read gradients when an optimizer steps."""
        if kind is Kind.BACKWARD and self._backward is None:
            self._attempt("unused_gradients", self._gradients.backward_begins)
            self._backward = self._clock.now()
        elif self._backward is not None and kind not in _INSIDE_BACKWARD:
            if self._is_measured:
                self._backwards.append((self._backward, self._clock.now()))
            self._attempt("unused_gradients", self._gradients.backward_ends)
            self._backward = None
            if not self._optimizers:
                self._attempt("embeddings", self._look_at_embeddings)
        if kind is Kind.STEP:
            self._attempt("embeddings", self._look_at_embeddings)

    def _look_at_embeddings(self) -> None:
        """Record the used rows of each embedding's gradient, once for each embedding."""
        if not self._is_measured or self._is_capturing():
            return
        for prefix, model in self._models.items():
            for name, module in model.named_modules():
                layer = prefix + name or type(module).__name__
                if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or layer in self._embeddings:
                    continue
                gradient = module.weight.grad
                if gradient is not None:
                    self._embeddings[layer] = {
                        "layer": layer, "num_rows": len(module.weight), "num_used_rows": num_used_rows(gradient),
                        "gradient_bytes": gradient_bytes(gradient), "sparse": gradient.is_sparse}

    def _denormals(self) -> list[dict[str, Any]]:
        """Return the share of denormal numbers in each state of each optimizer, and in layers with many of them."""
        rows: list[dict[str, Any]] = []
        for prefix, model in self._models.items():
            if denormal_frac([each for each in model.parameters() if each.is_floating_point()]) < _FEW_FRAC:
                continue
            for name, module in model.named_modules():
                own = [each for each in module.parameters(recurse=False) if each.is_floating_point()]
                if (frac := denormal_frac(own)) >= _MANY_FRAC:
                    rows.append({"layer": prefix + name or type(module).__name__, "denormal_frac": frac,
                                 "num_elements": sum(each.numel() for each in own)})
        for name, optimizer in self._optimizers.items():
            states: dict[str, list[torch.Tensor]] = {}
            for state in list(optimizer.state.values()):
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0:
                        states.setdefault(str(key), []).append(value)
            rows += [{"optimizer": name, "state": key, "denormal_frac": denormal_frac(tensors),
                      "num_elements": sum(tensor.numel() for tensor in tensors)} for key, tensors in states.items()]
        return rows

    def _recompute(self) -> dict[str, Any] | None:
        """Return the time (s) of modules inside backwards and that of the backwards; None without a backward."""
        if not self._backwards:
            return None
        time_s, layers = self._calls.recomputed()
        backward_s = sum(self._clock.seconds(start, end) for start, end in self._backwards)
        return {"time_s": time_s, "backward_s": backward_s, "layers": layers}

    def _is_capturing(self) -> bool:
        return self._device.type == "cuda" and is_capturing(self._device)

    def _look_at_output(self, layer: str, module: nn.Module, output: Any) -> None:
        if not self._is_capturing():
            self._attempt("unused_outputs", lambda: self._outputs.watch(layer, module, output))

    def _look_at_call(self, module: nn.Module, args: Sequence[Any]) -> None:
        if isinstance(module, nn.Embedding) and not self._is_capturing():
            self._attempt("tokens", lambda: self._tokens.embedded(module, args))

    def _look_at_inputs(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self._recorder.top is Kind.FORWARD and not self._is_capturing():
            self._attempt("tokens", lambda: self._tokens.called(self._owner_of(module), _named(module, args, kwargs)))
            self._attempt("padding", lambda: self._add_padding(_tensors(_named(module, args, kwargs))))
            self._attempt("repeated_rows", lambda: self._add_repeated_rows(
                module, [tensor for _, tensor in _tensors(_named(module, args, kwargs)) if tensor.dim() > 0]))

    def _add_padding(self, inputs: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in inputs:
            padding = padding_frac(name, tensor)
            if padding is not None:
                total = self._padding.setdefault(name, [0.0, 0.0])
                total[0] += padding * tensor.numel()
                total[1] += tensor.numel()

    def _add_repeated_rows(self, module: nn.Module, tensors: list[torch.Tensor]) -> None:
        """Count the rows of a call, and the repeated ones without dropout: it computes the same for each of them."""
        if tensors:
            total = self._repeated.setdefault(self._names.get(id(module), type(module).__name__), [0, 0])
            total[0] += len(tensors[0])
            total[1] += 0 if module.training else num_repeated_rows(tensors) or 0


def _named(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a module's call by the names of its forward's parameters."""
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        names = []
    positional = {names[place] if place < len(names) else str(place): value for place, value in enumerate(args)}
    return positional | dict(kwargs)


def _tensors(inputs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the plain tensors among a call's arguments, including those in mappings."""
    for name, value in inputs.items():
        if isinstance(value, Mapping):
            yield from _tensors({str(key): inner for key, inner in value.items()})
        elif type(value) is torch.Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(value):
            yield name, value
