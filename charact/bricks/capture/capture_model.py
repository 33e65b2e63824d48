"""Capturing a model: the operators of one forward pass, the tensors between them, and their value distributions."""

from itertools import zip_longest

import torch
from torch import Tensor

from charact.bricks.capture.dispatch_recorder import model_line, recorded
from charact.bricks.capture.export import exported
from charact.bricks.capture.forward_pass import Program
from charact.bricks.capture.gradient_check import check_gradients
from charact.bricks.capture.graph_builder import SAME, Draft
from charact.bricks.capture.interpret import Interpretation
from charact.bricks.capture.parameter_updates import updates_of
from charact.bricks.capture.sources import Built, Source
from charact.bricks.captured_graph import CapturedModel, CaptureError
from charact.core.errors import UserError
from charact.execution.case_outcome import one_line
from charact.execution.precision import PRECISIONS
from charact.workload.base import Workload

_IGNORED_OPERATORS = SAME | {"aten.lift_fresh_copy.default"}
"""Operators that depend on the capture method; comparisons ignore them."""
_TOLERANCE = 1e-3
"""Tolerated difference from the model's own outputs, relative to their largest magnitude."""


def capture(source: Source, fallback: str = "dispatch") -> CapturedModel:
    """Capture a model with torch.export, or by recording the operators that run.

    The recording always takes place. It is used if the export fails, if autocast adds operators, or if the export
    contains other operators than ran: models may take other code paths while they are exported, such as around the
    fast path of PyTorch's encoders.

    Args:
        source: the model; it is built here.
        fallback: use of the recording if the export fails: `dispatch` cuts it like an export, `hooks` cuts it at the
            calls of modules without children.

    Raises:
        CaptureError: neither method works; the message names the operator or the line of the model's code.
    """
    try:
        return _captured(_built(source), fallback)
    except CaptureError as error:
        raise CaptureError(f"{source.asked_as} cannot be captured: {error}") from error


def _built(source: Source) -> Built:
    try:
        return source.build()
    except UserError:
        raise
    except Exception as error:  # raised by the model's code
        raise CaptureError(f"the model cannot be built{model_line(error)}: {one_line(error)}") from error


def _captured(built: Built, fallback: str) -> CapturedModel:
    program = Program(built)
    autocast = PRECISIONS[built.case.precision].autocast is not None
    if built.training:
        check_gradients(program)
    ran = recorded(program, training=built.training, whole=not autocast, calls=fallback == "hooks")
    found: Interpretation | None = None
    captured_by, notes = "dispatch", []
    if not autocast:
        try:
            draft = exported(program, training=built.training)
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
    if built.training and type(built.workload).clip_gradients is not Workload.clip_gradients:
        notes.append("it clips its gradients, which no brick covers: its constructed update is too short")
    return _model(built, found, num_calls=ran.num_module_calls, captured_by=captured_by, notes=notes)


def _operator_difference(draft: Draft, ran: Draft) -> str | None:
    """Return a note if the exported operators differ from those that ran."""
    for one, other in zip_longest(_operators(draft), _operators(ran)):
        if one != other:
            return f"torch.export took another code path: {one or 'no operator'} where {other or 'none'} ran"
    return None


def _operators(draft: Draft) -> list[str]:
    return [layer.operator for layer in draft.live_layers() if layer.operator not in _IGNORED_OPERATORS]


def _interpreted(draft: Draft, program: Program, built: Built) -> Interpretation:
    found = Interpretation(draft, built.training, built.device)
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


