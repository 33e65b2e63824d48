"""Names that charact writes into the profiler's stream, so that phases and layers are found again in its events."""

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast

PHASE_PREFIX = "charact.phase:"
LAYER_PREFIX = "charact.layer:"


def phase_at(phases: Sequence[tuple[float, float, str]], moment: float) -> str | None:
    """Name of the phase that a moment lies in; None between phases.

    Args:
        phases: start, end and name of each, in order of their starts; they do not overlap.
        moment: in the unit of the starts and ends.
    """
    index = bisect_right(phases, moment, key=lambda phase: phase[0]) - 1
    return phases[index][2] if index >= 0 and moment < phases[index][1] else None


def phase_mark(name: str) -> AbstractContextManager[Any]:
    """A mark around a phase, visible as a span of its own in the trace."""
    return torch.profiler.record_function(PHASE_PREFIX + name)


@contextlib.contextmanager
def layer_marks(model: nn.Module) -> Iterator[None]:
    """Mark the forward of every module below the model, by its qualified name. About 9 µs a module and call."""
    handles = []
    for name, module in model.named_modules():
        if name:
            open_marks: list[Any] = []
            handles.append(module.register_forward_pre_hook(_opener(LAYER_PREFIX + name, open_marks)))
            handles.append(module.register_forward_hook(_closer(open_marks), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
