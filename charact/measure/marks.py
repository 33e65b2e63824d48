"""Names that charact writes into the profiler's stream, so that phases and layers are found again in its events."""

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast

PHASE_PREFIX = "charact.phase:"
LAYER_PREFIX = "charact.layer:"

Moment = TypeVar("Moment", int, float)


def phase_at(phases: Sequence[tuple[float, float, str]], moment: float) -> str | None:
    """Name of the phase that a moment lies in; None between phases.

    Args:
        phases: start, end and name of each, in order of their starts; they do not overlap.
        moment: in the unit of the starts and ends.
    """
    index = bisect_right(phases, moment, key=lambda phase: phase[0]) - 1
    return phases[index][2] if index >= 0 and moment < phases[index][1] else None


def with_gaps(phases: Sequence[tuple[Moment, Moment, str]]) -> list[tuple[Moment, Moment, str]]:
    """Phases by time, and those of the gaps between them that are plainly one, as for the timing of a program.

    From the end of a forward to the start of the backward after it a loss is computed by hand. Where no forward was
    marked, as in a function that was compiled whole, it fills the gap before the loss.
    """
    filled: list[tuple[Moment, Moment, str]] = []
    gaps: list[tuple[Moment, Moment, str]] = []  # what they are if a backward follows
    in_gap, reached = "forward", None
    for start, end, name in sorted(phases):
        if reached is not None and reached < start:
            gaps.append((reached, start, in_gap))
        if name == "backward":
            filled += gaps
        if name in ("forward", "backward", "loss"):
            in_gap = "loss"
        if name in ("forward", "backward") or (in_gap == "forward" and name in ("data", "update")):
            gaps = []
        filled.append((start, end, name))
        reached = end
    return sorted(filled)


def phase_mark(name: str) -> AbstractContextManager[Any]:
    """A mark around a phase, visible as a span of its own in the trace."""
    return torch.profiler.record_function(PHASE_PREFIX + name)


@contextlib.contextmanager
def layer_marks(model: nn.Module, prefix: str = "") -> Iterator[None]:
    """Mark the forward of every module below the model, by its qualified name. About 9 µs a module and call."""
    handles = []
    try:
        for name, module in model.named_modules():
            if name:
                open_marks: list[Any] = []
                handles.append(module.register_forward_pre_hook(_opener(LAYER_PREFIX + prefix + name, open_marks)))
                handles.append(module.register_forward_hook(_closer(open_marks), always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def layer_rows(model: nn.Module, prefix: str = "") -> list[dict[str, Any]]:
    """Rows of the table `layers`: every module below the model."""
    return [
        {"layer": prefix + name, "layer_type": type(module).__name__,
         "num_parameters": sum(parameter.numel() for parameter in module.parameters(recurse=False))}
        for name, module in model.named_modules() if name
    ]


def _opener(name: str, open_marks: list[Any]) -> Any:
    def enter(*_: Any) -> None:
        mark = _RecordFunctionFast(name)
        mark.__enter__()
        open_marks.append(mark)

    return enter


def _closer(open_marks: list[Any]) -> Any:
    def leave(*_: Any) -> None:
        if open_marks:
            open_marks.pop().__exit__(None, None, None)

    return leave
