"""What instruments need of a watched program: its models and optimizers, and marks that follow its spans."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from charact.measure.passes.marks import phase_mark
from charact.measure.script.spans.iterations import PHASES
from charact.measure.script.spans.recorder import Kind, SpanRecorder


class Seen:
    """What was seen of the program: its models and optimizers by number, and what it calls them."""

    def __init__(self, things: Mapping[int, Any], names: Callable[[], Mapping[int, str]]) -> None:
        self._things, self._names = things, names

    def models(self) -> dict[str, nn.Module]:
        """Models with weights that are no part of another, by the prefix of their layers' names.

        A single one has none, as in its own `named_modules`.
        """
        models = {number: thing for number, thing in list(self._things.items())
                  if isinstance(thing, nn.Module) and any(True for _ in thing.parameters())}
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
        """Its optimizers."""
        return [thing for thing in list(self._things.values()) if isinstance(thing, torch.optim.Optimizer)]


class PhaseMarks:
    """Marks that follow the spans: at any time the one that was opened last; by default in the profiler's stream.

    An error amid the program's calls is kept for the end of the iteration.
    """

    def __init__(self, recorder: SpanRecorder, ended: Callable[[], None] = lambda: None,
                 mark: Callable[[str], contextlib.AbstractContextManager[Any]] = phase_mark) -> None:
        self._recorder, self._ended, self._new_mark = recorder, ended, mark
        self._mark: contextlib.AbstractContextManager[Any] | None = None
        self._error: Exception | None = None

    def start(self) -> None:
        """Follow from now on."""
        self._recorder.on_change = lambda kind: self.attempt(self._change, kind)

    def stop(self) -> None:
        """Follow no more."""
        self._recorder.on_change = None
        self._close()

    def check(self) -> None:
        """Raise an error that was kept."""
        if self._error is not None:
            raise self._error

    def attempt(self, act: Callable[..., None], *args: Any) -> None:
        """Do something amid the program's calls."""
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
            self._ended()
