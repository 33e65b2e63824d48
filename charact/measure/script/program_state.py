"""State of a profiled program that instruments need: its models and optimizers, and annotations of its phases."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from charact.core.errors import UserError
from charact.measure.passes.marks import phase_mark
from charact.measure.script.spans.device_clock import program_device
from charact.measure.script.spans.recorder import PHASES, Kind, SpanRecorder


class ProgramState:
    """The program's models and optimizers by owner ID, and its names for them."""

    def __init__(self, objects: Mapping[int, Any], names: Callable[[], Mapping[int, str]]) -> None:
        self._objects, self._names = objects, names

    def models(self) -> dict[str, nn.Module]:
        """Return top-level models that have weights, by the prefix of their layers' names.

        The prefix of a single model is empty, as in its own `named_modules`.
        """
        models = {number: obj for number, obj in list(self._objects.items())
                  if isinstance(obj, nn.Module) and any(True for _ in obj.parameters())}
        inner = {id(module) for model in models.values() for module in model.modules() if module is not model}
        outer = {number: model for number, model in models.items() if id(model) not in inner}
        if len(outer) == 1:
            return dict.fromkeys([""], *outer.values())
        names, prefixed = self._names(), {}
        for number, model in outer.items():
            name = names.get(number, type(model).__name__)
            prefixed[f"{name}#{number}." if f"{name}." in prefixed else f"{name}."] = model
        return prefixed

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the program's optimizers."""
        return [obj for obj in list(self._objects.values()) if isinstance(obj, torch.optim.Optimizer)]


    def optimizers_by_name(self) -> dict[str, torch.optim.Optimizer]:
        """Return the program's optimizers by its own names for them, else by their classes."""
        names, named = self._names(), {}
        for number, obj in list(self._objects.items()):
            if isinstance(obj, torch.optim.Optimizer):
                name = names.get(number, type(obj).__name__)
                named[f"{name}#{number}" if name in named else name] = obj
        return named


def compute_device() -> torch.device:
    """Return the device on which the program computes."""
    device = program_device() or torch.device("cpu")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"the pass measures CPUs and CUDA devices, and the program uses {device}")
    return device


def compiles() -> bool:
    """Return whether the program has compiled anything."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


class PhaseMarks:
    """Emits a profiler annotation for the innermost open span.

    An error inside the program's calls is kept until the end of the iteration.
    """

    def __init__(self, recorder: SpanRecorder, ended: Callable[[], None] = lambda: None,
                 mark: Callable[[str], contextlib.AbstractContextManager[Any]] = phase_mark) -> None:
        self._recorder, self._on_span_end, self._new_mark = recorder, ended, mark
        self._mark: contextlib.AbstractContextManager[Any] | None = None
        self._error: Exception | None = None

    def start(self) -> None:
        """Start to emit annotations."""
        self._recorder.on_change = lambda kind: self.attempt(self._change, kind)

    def stop(self) -> None:
        """Stop, and close the open annotation."""
        self._recorder.on_change = None
        self._close()

    def check(self) -> None:
        """Raise the error that was kept, if any."""
        if self._error is not None:
            raise self._error

    def attempt(self, act: Callable[..., None], *args: Any) -> None:
        """Call a function inside the program's calls and keep its error."""
        if self._error is None:
            try:
                act(*args)
            except Exception as error:
                self._error = error

    def _change(self, kind: Kind | None) -> None:
        self._close()
        phase = None if kind is None else PHASES.get(kind)
        if phase is not None:
            self._mark = self._new_mark(phase)
            self._mark.__enter__()

    def _close(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
            self._on_span_end()
