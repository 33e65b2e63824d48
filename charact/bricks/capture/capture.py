"""Capturing a model: the operators of one forward pass, the tensors between them, and their value distributions."""

import contextlib
import inspect
import io
import logging
import operator
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from charact.bricks.aten import call, check_arguments, written_values
from charact.bricks.capture.recording import SAME, Built, Draft, Program, Source, check_gradients, model_line, recorded
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
from charact.execution.precision import PRECISIONS
from charact.workload.base import Workload

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
    """Values computed without any tensor, such as by `arange`, such as those of `arange`."""
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
        try:
            operator = check_arguments(layer)  # a brick may call it
        except UserError as error:
            raise CaptureError(f"its {error}".partition(": ")[0]) from error
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


_KINDS = {InputKind.USER_INPUT: "input", InputKind.PARAMETER: "weight", InputKind.BUFFER: "buffer",
          InputKind.CONSTANT_TENSOR: "constant"}
_MODEL = "model"
"""Attribute of `Program` that holds the model."""


@dataclass(frozen=True)
class _Value:
    """A value in the arguments of a node."""

    index: int


def exported(program: Program, *, training: bool) -> Draft:
    """Export a program and return its draft; the program is not changed.

    Raises:
        CaptureError: PyTorch cannot export it, or the graph has an input, operator or argument that cannot be stored.
    """
    try:
        with _quiet(), warnings.catch_warnings(), torch.set_grad_enabled(training), program.real_run():
            warnings.simplefilter("ignore")  # about weight lists of recurrent layers, and assigned attributes
            found = torch.export.export(program, tuple(program.inputs), strict=False)
    except Exception as error:  # torch.export raises many types
        raise CaptureError(one_line(error)) from error
    return _Reader(found, program.inputs).draft


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress PyTorch's log messages and graph dumps about failed exports."""
    logs = [logging.getLogger(name) for name in ("torch.export", "torch.fx.experimental.symbolic_shapes")]
    were_off = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for log, was_off in zip(logs, were_off, strict=True):
            log.disabled = was_off


class _Reader:
    """Reads a program's graph into a draft."""

    def __init__(self, program: ExportedProgram, inputs: Sequence[Tensor]) -> None:
        self.draft = Draft()
        signature = program.graph_signature
        given = iter(inputs)
        arguments = []
        for spec in signature.input_specs:
            if spec.kind not in _KINDS:
                raise CaptureError(f"its input {spec.target} is a {spec.kind.name.lower()}")
            stored: Any = program.state_dict if spec.target in program.state_dict else program.constants
            tensor = next(given) if spec.kind == InputKind.USER_INPUT else stored[spec.target]
            arguments.append(_Value(self.draft.leaf(_KINDS[spec.kind], tensor)))
        results = self._walk(program.graph_module, arguments, gradients=True)
        made = [result for result, spec in zip(results, signature.output_specs, strict=True)
                if spec.kind == OutputKind.USER_OUTPUT]
        # `Program` returns two lists, which the export joins.
        num_outputs = len(_children(_children(program.call_spec.out_spec)[0])) if program.call_spec.out_spec else 0
        numbers = [result.index for result in made]
        self.draft.outputs, self.draft.kept = numbers[:num_outputs], numbers[num_outputs:]

    def _walk(self, module: fx.GraphModule, arguments: Sequence[Any], *, gradients: bool) -> list[Any]:
        """Add a graph's layers to the draft; return the graph's results."""
        found: dict[fx.Node, Any] = {}
        rest = iter(arguments)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                found[node] = next(rest)
            elif node.op == "get_attr":
                found[node] = getattr(module, node.target)
            elif node.op == "output":
                return list(fx.map_arg(node.args[0], found.__getitem__))
            else:
                found[node] = self._call(node, found, gradients=gradients)
        raise AssertionError("a graph without an output")

    def _call(self, node: fx.Node, found: dict[fx.Node, Any], *, gradients: bool) -> Any:
        args: Any = fx.map_arg(node.args, found.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, found.__getitem__)
        target: Any = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            enabled, module, *rest = args
            return self._walk(module, rest, gradients=gradients and enabled)
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise CaptureError(f"its {target} holds a nested graph")
        made = node.meta.get("val")
        if isinstance(made, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise CaptureError(f"its operator {target} returns a number that the model reads{_place(node)}")
        numbers = self.draft.add(target, args, kwargs, made, index_of=lambda value: value.index, value_type=_Value,
                                 module=_module_of(node))
        if not gradients:
            self.draft.without_gradient.update(number for number in numbers if number is not None)
        values = [None if number is None else _Value(number) for number in numbers]
        return values if isinstance(made, (list, tuple)) else values[0]


def _module_of(node: fx.Node) -> str:
    """Return the qualified name, within the model, of the module that a node ran in."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    name = stack[-1][0].partition("@")[0] if stack else ""  # "name@call"
    return name.removeprefix(_MODEL).removeprefix(".")


def _place(node: fx.Node) -> str:
    """Return the innermost line of the model's code that led to a node."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""


def _children(spec: Any) -> list[Any]:
    """Return the parts of a tree's description; `children` is a method since PyTorch 2.10."""
    found = getattr(spec, "children", None)
    return list(spec.children_specs if found is None else found())


_IGNORED_OPERATORS = SAME | {"aten.lift_fresh_copy.default"}
"""Operators that depend on the capture method; comparisons ignore them."""
_TOLERANCE = 1e-3
"""Tolerated difference from the model's own outputs, relative to their largest magnitude."""


def capture(source: Source, fallback: str = "dispatch") -> CapturedModel:
    """Capture a model with torch.export, or by recording the operators that run.

    The recording always takes place. It is used if the precision uses autocast, if the export fails, or if the
    exported operators differ from those that ran: models may take other code paths while they are exported, such as
    around the fast path of PyTorch's encoders.

    Args:
        source: the model; it is built here.
        fallback: use of the recording if the export fails: `dispatch` cuts it like an export, `hooks` cuts it at the
            calls of modules without children.

    Raises:
        CaptureError: neither method works; the message names the operator or the line of the model's code.
    """
    try:
        built = source.build()
    except UserError:
        raise
    except Exception as error:  # raised by the model's code
        raise CaptureError(f"{source.asked_as} cannot be captured: the model cannot be built{model_line(error)}: "
                           f"{one_line(error)}") from error
    try:
        return _captured(built, fallback)
    except CaptureError as error:
        raise CaptureError(f"{source.asked_as} cannot be captured: {error}") from error


def _captured(built: Built, fallback: str) -> CapturedModel:
    program = Program(built)
    autocast = PRECISIONS[built.case.precision].autocast is not None
    if built.case.training:
        check_gradients(program)
    ran = recorded(program, training=built.case.training, whole=not autocast, calls=fallback == "hooks")
    found: Interpretation | None = None
    captured_by, notes = "dispatch", []
    if not autocast:
        try:
            draft = exported(program, training=built.case.training)
            if difference := _operator_difference(draft, ran.draft):
                notes.append(difference)
            else:
                found, captured_by = _interpreted(draft, program, built), "export"
        except CaptureError as error:
            notes.append(f"torch.export failed: {error}")
            captured_by = fallback
    if found is None:
        found = _interpreted(ran.draft, program, built)
    if not found.layers:
        raise CaptureError("it calls no operator: there is nothing to cut")
    notes += _difference(ran.outputs, found.outputs)
    notes += _dtype_note(built)
    if any(layer.gives_number for layer in found.layers):
        notes.append("its code reads numbers from tensors: its bricks hold the results as constants of this run, and "
                     "their identifiers depend on them")
    if built.case.training and type(built.workload).clip_gradients is not Workload.clip_gradients:
        notes.append("it clips its gradients, which no brick covers: its constructed update is too short")
    return _model(built, found, num_calls=ran.num_module_calls, captured_by=captured_by, notes=notes)


def _operator_difference(draft: Draft, ran: Draft) -> str | None:
    """Return a note if the exported operators differ from those that ran."""
    operators = ([layer.operator for layer in each.live_layers() if layer.operator not in _IGNORED_OPERATORS]
                 for each in (draft, ran))
    for one, other in zip_longest(*operators):
        if one != other:
            return f"torch.export took another code path: {one or 'no operator'} where {other or 'none'} ran"
    return None


def _interpreted(draft: Draft, program: Program, built: Built) -> Interpretation:
    found = Interpretation(draft, built.case.training, built.case.device)
    with program.real_run():
        found.run()
    return found


def _dtype_note(built: Built) -> list[str]:
    """Return a note if weights have other dtypes than the precision's, as an exported file may."""
    kept = {str(one.dtype).removeprefix("torch.") for one in built.model.parameters() if one.is_floating_point()
            and one.dtype != PRECISIONS[built.case.precision].weights}
    note = f"it computes in {', '.join(sorted(kept))}, as it was exported; the record calls this {built.case.precision}"
    return [note] if kept else []


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


def _model(built: Built, found: Interpretation, *, num_calls: int, captured_by: str, notes: list[str]
           ) -> CapturedModel:
    values = {value for layer in found.layers for value in (*layer.inputs, *layer.outputs) if value is not None}
    values.update(found.output_values)
    draft = found.draft
    return CapturedModel(
        types={value: kind for value, kind in found.types.items() if value in values},
        leaves={value: kind for value, kind in draft.kinds.items() if value in values},
        layers=found.layers, outputs=found.output_values,
        requires_grad=frozenset(found.requires_grad & values),
        views={value: base for value, base in found.views.items() if value in values},
        num_module_calls=num_calls, updates=updates_of(built.optimizers), captured_by=captured_by,
        num_parameters=sum(parameter.numel() for parameter in built.model.parameters()),
        segments_at_modules=captured_by == "hooks", notes=notes,
        tensors={value: tensor for value, tensor in draft.tensors.items() if value in values},
        samples={value: sample for value, sample in found.samples.items() if value in values})


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
