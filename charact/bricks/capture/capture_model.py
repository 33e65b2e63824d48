"""Capturing a model: the operators of one forward pass, what flows between them, and what is told of its values."""

from itertools import zip_longest

import torch
from torch import Tensor

from charact.bricks.capture.dispatch_recorder import model_line, recorded
from charact.bricks.capture.export import exported
from charact.bricks.capture.forward_pass import Program
from charact.bricks.capture.gradient_check import refuse_own_gradients
from charact.bricks.capture.graph_builder import SAME, Draft
from charact.bricks.capture.interpret import Interpretation
from charact.bricks.capture.parameter_updates import updates_of
from charact.bricks.capture.sources import Built, Source
from charact.bricks.captured_graph import CapturedModel, CaptureError
from charact.core.errors import UserError
from charact.execution.case_outcome import one_line
from charact.execution.precision import PRECISIONS
from charact.workload.base import Workload

_OF_EXPORT = SAME | {"aten.lift_fresh_copy.default"}
"""Operators that come and go with the way of capturing."""
_TOLERANCE = 1e-3
"""Largest difference from the model's own outputs, as a share of their largest value, that is not noted."""


def capture(source: Source, fallback: str = "dispatch") -> CapturedModel:
    """Capture a model: with torch.export, and where that fails or autocast adds operators, by recording what runs.

    What runs is recorded in any case. Models may take other ways while they are exported, such as around the fast
    path of PyTorch's encoders: where the operators are not the same, those that ran are taken.

    Args:
        source: what to capture; it is brought to life for it.
        fallback: where export fails, `dispatch` takes what ran, to be cut like all others,
            `hooks` takes it to be cut where modules without children begin and end.

    Raises:
        CaptureError: it can be captured neither way; the line names the operator, or the model's line.
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
    except Exception as error:  # the model's own, whatever it is
        raise CaptureError(f"it cannot be made{model_line(error)}: {one_line(error)}") from error


def _captured(built: Built, fallback: str) -> CapturedModel:
    program = Program(built)
    autocast = PRECISIONS[built.case.precision].autocast is not None
    if built.training:
        refuse_own_gradients(program)
    ran = recorded(program, training=built.training, whole=not autocast, calls=fallback == "hooks")
    found: Interpretation | None = None
    captured_by, notes = "dispatch", []
    if not autocast:
        try:
            draft = exported(program, training=built.training)
            if difference := _other_way(draft, ran.draft):
                notes.append(difference)
            else:
                found, captured_by = _interpreted(draft, program, built), "export"
        except CaptureError as error:
            notes.append(f"torch.export failed: {error}")
            captured_by = fallback
    if found is None:
        found = _interpreted(ran.draft, program, built)
    if not found.layers:
        raise CaptureError("it calls no operator, so that there is nothing to cut")
    notes += _difference(ran.outputs, found.outputs)
    notes += _types_kept(built)
    if any(layer.gives_number for layer in found.layers):
        notes.append("its code reads numbers from tensors: what it makes of them stands in its bricks as it was here, "
                     "and their identifiers change with it")
    if built.training and type(built.workload).clip_gradients is not Workload.clip_gradients:
        notes.append("it clips its gradients, which is in no brick: its constructed update is too short")
    return _model(built, found, num_calls=ran.num_module_calls, captured_by=captured_by, notes=notes)


def _other_way(draft: Draft, ran: Draft) -> str | None:
    """A note where the exported operators are not those that ran."""
    for one, other in zip_longest(_operators(draft), _operators(ran)):
        if one != other:
            return f"torch.export goes another way, with {one or 'nothing'} where {other or 'nothing'} ran"
    return None


def _operators(draft: Draft) -> list[str]:
    return [layer.operator for layer in draft.live_layers() if layer.operator not in _OF_EXPORT]


def _interpreted(draft: Draft, program: Program, built: Built) -> Interpretation:
    found = Interpretation(draft, built.training, built.device)
    with program.real_run():
        found.run()
    return found


def _types_kept(built: Built) -> list[str]:
    """A note where weights are of other types than the precision's, which a file may have."""
    kept = {str(one.dtype).removeprefix("torch.") for one in built.model.parameters() if one.is_floating_point()
            and one.dtype != PRECISIONS[built.case.precision].weights}
    told = f"it computes in {', '.join(sorted(kept))}, as it was exported, which {built.case.precision} stands for"
    return [told] if kept else []


def _difference(real: list[Tensor], found: list[Tensor]) -> list[str]:
    """A note where the layers give something else than the model did."""
    for one, other in zip(real, found, strict=True):
        if one.shape != other.shape:
            return [f"its layers give an output {tuple(other.shape)}, the model {tuple(one.shape)}"]
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
        pieces_at_modules=captured_by == "hooks", notes=notes,
        tensors={value: tensor for value, tensor in draft.tensors.items() if value in values},
        samples={value: sample for value, sample in found.samples.items() if value in values})


