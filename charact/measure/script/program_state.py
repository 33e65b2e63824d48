"""What the instruments of a profiled program's passes share: its models, annotations of its phases, and a clock."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from charact.core.errors import UserError
from charact.measure.passes.marks import phase_mark
from charact.measure.script.spans.device_clock import is_capturing, program_device
from charact.measure.script.spans.recorder import PHASES, Kind, SpanRecorder
from charact.record.schema import Rows


class Instrument:
    """Measurement of a program's iterations, each between `begin` and `end`."""

    num_iterations = 1
    warms_up = True
    """Whether an iteration runs between `prepare` and the first that is measured."""
    may_end_early = False
    """Whether fewer iterations are measured if they take much of charact's time budget."""

    def __init__(self, state: "ProgramState", recorder: SpanRecorder, directory: Path) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        """Set up."""

    def begin(self) -> None:
        """Start to measure an iteration."""

    def end(self, *, last: bool) -> None:
        """End the iteration."""

    def drop(self) -> None:
        """End the iteration and discard it."""

    def results(self) -> tuple[dict[str, Rows], dict[str, Any]]:
        """Return rows by table, and facts, of all measured iterations."""
        raise NotImplementedError

    def clean(self) -> None:
        """Undo `prepare`."""


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

    def owner_of(self, module: nn.Module) -> int | None:
        """Return the owner ID of a model; None if no span of its own has opened."""
        return next((number for number, obj in list(self._objects.items()) if obj is module), None)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the program's optimizers."""
        return list(self.optimizers_by_name().values())

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


@dataclass(frozen=True, order=True)
class Moment:
    """A time on the host, and the event recorded on the device at that time; None on a CPU."""

    host_ns: int
    event: Any = field(default=None, compare=False)


class Clock:
    """Records moments, and computes the time between them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Moment:
        """Return the current moment."""
        if self._device.type != "cuda" or is_capturing(self._device):
            return Moment(perf_counter_ns())
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return Moment(perf_counter_ns(), event)

    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the time (s) between two moments: on the device if both have an event, else on the host."""
        if start.event is None or end.event is None:
            return (end.host_ns - start.host_ns) / 1e9
        end.event.synchronize()
        return float(start.event.elapsed_time(end.event)) / 1e3
