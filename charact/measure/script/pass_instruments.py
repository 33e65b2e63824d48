"""The instruments that a watched program's iterations are run under, once its timing is done: one pass each.

They are those of `charact profile`; here marks follow the spans, and models and optimizers are the ones that were seen.
"""

import contextlib
import gc
import sys
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import dataloader

from charact.core.errors import UserError
from charact.measure.counters import chosen_sources
from charact.measure.counters._support.phase_spans import PhaseTimeline, drawable
from charact.measure.passes.marks import layer_marks, layer_rows
from charact.measure.passes.memory_pass import MemoryProbe
from charact.measure.passes.operators import NUM_ITERATIONS, OperatorProbe
from charact.measure.passes.sampler import Sampler
from charact.measure.script.hooks.replacements import Replacements
from charact.measure.script.program_state import PhaseMarks, Seen
from charact.measure.script.silence_torch import quiet_allocator, quiet_profiler
from charact.measure.script.spans.recorder import SpanRecorder
from charact.record.in_progress import TRACE

Rows = list[dict[str, Any]]


class Instrument(Protocol):
    """Measures iterations of a program, each between `begin` and `end`; what it needs for that stands until `clean`."""

    num_iterations: int

    def prepare(self) -> None:
        """Make ready; an iteration runs before the first that is measured."""

    def begin(self) -> None:
        """An iteration starts now."""

    def end(self, *, last: bool) -> None:
        """It has ended."""

    def drop(self) -> None:
        """It is not to count, and ends now."""

    def found(self) -> tuple[dict[str, Rows], dict[str, Any]]:
        """Rows by table, and facts, of all the iterations that count."""

    def clean(self) -> None:
        """Take away what was made ready."""


class OperatorInstrument:
    """Iterations under the profiler, with marks around phases and layers."""

    num_iterations = NUM_ITERATIONS

    def __init__(self, seen: Seen, recorder: SpanRecorder, directory: Path) -> None:
        self._models = seen.models()
        self._marks = PhaseMarks(recorder)
        self._layers = contextlib.ExitStack()
        self._probe = OperatorProbe(directory / TRACE, _device())
        self._folder = (directory / TRACE).parent

    def prepare(self) -> None:
        """Mark the layers; a hook inside a compiled model would break its graph."""
        _refuse_other_profilers()
        self._folder.mkdir(exist_ok=True)
        for prefix, model in self._models.items() if not _compiles() else []:
            self._layers.enter_context(layer_marks(model, prefix))

    def begin(self) -> None:
        """As in `Instrument`."""
        with quiet_profiler():
            self._probe.begin()
        self._marks.start()

    def end(self, *, last: bool) -> None:
        """As in `Instrument`."""
        self._marks.stop()
        self._probe.end(last=last)
        self._marks.check()

    def drop(self) -> None:
        """As in `Instrument`."""
        self._marks.stop()
        self._probe.drop()

    def found(self) -> tuple[dict[str, Rows], dict[str, Any]]:
        """As in `Instrument`."""
        found = self._probe.found()
        layers = [row for prefix, model in self._models.items() for row in layer_rows(model, prefix)]
        return {"operators": found.operator_rows, "kernels": found.kernel_rows, "counters": found.counter_rows,
                "layers": layers}, found.facts

    def clean(self) -> None:
        """As in `Instrument`."""
        self._layers.close()


class MemoryInstrument:
    """One iteration under the profiler's allocation events."""

    num_iterations = 1

    def __init__(self, seen: Seen, recorder: SpanRecorder, _: Path) -> None:
        self._probe = MemoryProbe(_device(), list(seen.models().values()), seen.optimizers())
        self._marks = PhaseMarks(recorder, self._probe.phase_ended)
        self._replacements = Replacements()
        self._silence = contextlib.ExitStack()

    def prepare(self) -> None:
        """Hear of each batch, and of what is moved to the device."""
        _refuse_other_profilers()
        self._replacements.wrap(dataloader._BaseDataLoaderIter, "__next__", self._fetch)
        for name in ("to", "cuda") if _cuda_at_work() else []:
            self._replacements.wrap(torch.Tensor, name, self._move)
        self._listening = False

    def begin(self) -> None:
        """As in `Instrument`."""
        self._silence.enter_context(quiet_allocator())
        with quiet_profiler():
            self._probe.begin()
        self._marks.start()
        self._listening = True

    def end(self, *, last: bool) -> None:
        """As in `Instrument`."""
        with self._silence:
            self._listening = False
            self._marks.stop()
            self._probe.stop()
            self._rows, self._facts = self._probe.found()
            self._marks.check()

    def drop(self) -> None:
        """As in `Instrument`."""
        with self._silence:
            self._listening = False
            self._marks.stop()
            self._probe.stop()

    def found(self) -> tuple[dict[str, Rows], dict[str, Any]]:
        """As in `Instrument`."""
        return {"memory": self._rows}, self._facts | {"num_iterations": 1}

    def clean(self) -> None:
        """As in `Instrument`."""
        self._replacements.undo()
        self._silence.close()

    def _fetch(self, original: Any) -> Any:
        def watched(iterator: Any) -> Any:
            batch = original(iterator)
            if self._listening:
                self._marks.attempt(self._probe.input, batch)
            return batch

        return watched

    def _move(self, original: Any) -> Any:
        def watched(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            moved = original(tensor, *args, **kwargs)
            if not torch.compiler.is_compiling() and self._listening and moved.is_cuda and not tensor.is_cuda:
                self._marks.attempt(self._probe.input, moved)
            return moved

        return watched


class CounterInstrument:
    """Iterations along which the counters are read, and what lies between them, such as a validation."""

    num_iterations = 10

    def __init__(self, _: Seen, recorder: SpanRecorder, __: Path) -> None:
        self._timeline = PhaseTimeline(_device())
        self._marks = PhaseMarks(recorder, mark=self._timeline)
        self._sampler = Sampler(chosen_sources(None), _device())

    def prepare(self) -> None:
        """As in `Instrument`."""

    def begin(self) -> None:
        """Read the counters before the first iteration."""
        if not self._sampler.begun_ns:
            self._sampler.start()
            self._marks.start()

    def end(self, *, last: bool) -> None:
        """Read them after the last."""
        if last:
            self._marks.stop()
            spans = self._timeline.spans()
            duration_s = self._sampler.elapsed_s()
            self._rows = self._sampler.stop(lambda: spans)
            self._facts = {"duration_s": duration_s, "spans": drawable(spans, self._sampler.begun_ns)}
            self._marks.check()

    def drop(self) -> None:
        """What is not an iteration is counted all the same."""

    def found(self) -> tuple[dict[str, Rows], dict[str, Any]]:
        """As in `Instrument`."""
        return {"counters": self._rows}, self._facts | {
            "num_iterations": self.num_iterations, "sources": self._sampler.outcomes}

    def clean(self) -> None:
        """As in `Instrument`."""
        self._marks.stop()
        self._sampler.abandon()


INSTRUMENTS: dict[str, type[OperatorInstrument] | type[MemoryInstrument] | type[CounterInstrument]] = {
    "operators": OperatorInstrument, "memory": MemoryInstrument, "counters": CounterInstrument,
}


def _device() -> torch.device:
    """Where the program computes."""
    return torch.device("cuda", torch.cuda.current_device()) if _cuda_at_work() else torch.device("cpu")


def _cuda_at_work() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _compiles() -> bool:
    """Whether anything of the program has gone through the compiler."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


def _refuse_other_profilers() -> None:
    """There is one profiler in a process: the program's own must not lose its events to ours."""
    kinds = torch.profiler.profile, torch.autograd.profiler.profile
    gc.collect()
    if any(issubclass(type(thing), kinds) for thing in gc.get_objects()):
        raise UserError("the program uses PyTorch's profiler itself, and there can be one only")
