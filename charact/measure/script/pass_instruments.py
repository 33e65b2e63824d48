"""Instruments of the passes that follow the timing of a profiled program.

They are those of `charact profile`, with annotations from the recorded spans and the models that the spans belong to.
"""

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils.data import dataloader

from charact.core.errors import UserError
from charact.measure.counters import chosen_sources
from charact.measure.counters._support.phase_spans import PhaseTimeline, drawable
from charact.measure.passes.counters import Sampler
from charact.measure.passes.marks import layer_marks, layer_rows
from charact.measure.passes.memory_pass import MemoryProbe
from charact.measure.passes.operators import NUM_ITERATIONS, OperatorProbe
from charact.measure.script.hooks.patch_context import Replacements, subclasses
from charact.measure.script.inspection.instrument import InspectionInstrument
from charact.measure.script.program_state import Instrument, PhaseMarks, ProgramState, compiles, compute_device
from charact.measure.script.spans.recorder import SpanRecorder
from charact.record.schema import Rows

_ERROR = 2
"""Log level that hides PyTorch's warnings."""


@contextlib.contextmanager
def quiet_profiler() -> Iterator[None]:
    """Silence the profiler: set its log level, which it reads at its first start, unless the user has set it."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


@contextlib.contextmanager
def quiet_allocator() -> Iterator[None]:
    """Silence the allocator's warnings about freed blocks whose allocation was not recorded.

    The log level is set through ctypes, because PyTorch reads its environment variable only at import.
    """
    try:
        library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libc10.*"))))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (StopIteration, OSError, ValueError):  # a build without this symbol
        yield
        return
    before, level.value = level.value, max(level.value, _ERROR)
    try:
        yield
    finally:
        level.value = before


class _Operators(Instrument):
    """Profiler trace of iterations, with annotations of phases and layers."""

    num_iterations = NUM_ITERATIONS
    may_end_early = True

    def __init__(self, state: ProgramState, recorder: SpanRecorder, trace: Path) -> None:
        self._models = state.models()
        self._marks = PhaseMarks(recorder)
        self._layers = contextlib.ExitStack()
        self._probe = OperatorProbe(trace, compute_device(), replays_work=not compiles())
        self._folder = trace.parent

    def prepare(self) -> None:
        """Add layer annotations, but not to compiled models: a hook would break the graph."""
        _check_no_other_profiler()
        self._folder.mkdir(exist_ok=True)
        for prefix, model in self._models.items() if not compiles() else []:
            self._layers.enter_context(layer_marks(model, prefix))

    def begin(self) -> None:
        with quiet_profiler():
            self._probe.begin()
        self._marks.start()

    def end(self, *, last: bool) -> None:
        self._marks.stop()
        self._probe.end(last=last)
        self._marks.check()

    def drop(self) -> None:
        self._marks.stop()
        self._probe.drop()

    def results(self) -> tuple[dict[str, Rows], dict[str, Any]]:
        measured = self._probe.found()
        layers = [row for prefix, model in self._models.items() for row in layer_rows(model, prefix)]
        tables = {"operators": measured.operator_rows, "kernels": measured.kernel_rows, "layers": layers,
                  "counters": measured.counter_rows, "flop": list(measured.flop_rows)}
        return tables, msgspec.to_builtins(measured.facts) | {"flop": measured.flop_facts}

    def clean(self) -> None:
        self._layers.close()


class _Memory(Instrument):
    """Profiler's allocation events of one iteration."""

    def __init__(self, state: ProgramState, recorder: SpanRecorder, _: Path) -> None:
        # Without an optimizer, an iteration begins inside a fetch, and `prepare` patches only later fetches.
        self.warms_up = not state.optimizers()
        self._probe = MemoryProbe(compute_device(), list(state.models().values()), state.optimizers(), others=True)
        self._marks = PhaseMarks(recorder, self._probe.phase_ended)
        self._replacements = Replacements()
        self._silence = contextlib.ExitStack()

    def prepare(self) -> None:
        """Patch the loader and, on CUDA, `Tensor.to` and `Tensor.cuda`, to recognize input tensors."""
        _check_no_other_profiler()
        self._replacements.wrap(dataloader._BaseDataLoaderIter, "__next__", self._fetch)
        for name in ("to", "cuda") if compute_device().type == "cuda" else []:
            self._replacements.wrap(torch.Tensor, name, self._move)
        self._listening = False

    def begin(self) -> None:
        self._silence.enter_context(quiet_allocator())
        with quiet_profiler():
            self._probe.begin()
        self._marks.start()
        self._listening = True

    def end(self, *, last: bool) -> None:
        with self._silence:
            self._stop()
            self._rows, self._facts = self._probe.found()
            self._marks.check()

    def drop(self) -> None:
        with self._silence:
            self._stop()

    def _stop(self) -> None:
        self._listening = False
        self._marks.stop()
        self._probe.stop()

    def results(self) -> tuple[dict[str, Rows], dict[str, Any]]:
        return {"memory": self._rows}, msgspec.to_builtins(self._facts) | {"num_iterations": 1}

    def clean(self) -> None:
        self._replacements.undo()
        self._silence.close()

    def _fetch(self, original: Any) -> Any:
        def wrapper(iterator: Any) -> Any:
            batch = original(iterator)
            if self._listening:
                self._marks.attempt(self._probe.input, batch)
            return batch

        return wrapper

    def _move(self, original: Any) -> Any:
        def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            moved = original(tensor, *args, **kwargs)
            if not torch.compiler.is_compiling() and self._listening and moved.is_cuda and not tensor.is_cuda:
                self._marks.attempt(self._probe.input, moved)
            return moved

        return wrapper


class _Counters(Instrument):
    """Counter readings over several iterations, including the time between them, such as a validation."""

    num_iterations = 10

    def __init__(self, _: ProgramState, recorder: SpanRecorder, __: Path) -> None:
        self._timeline = PhaseTimeline(compute_device())
        self._marks = PhaseMarks(recorder, mark=self._timeline)
        self._sampler = Sampler(chosen_sources(None), compute_device())

    def begin(self) -> None:
        """Start the counters before the first iteration."""
        if not self._sampler.begun_ns:
            self._sampler.start()
            self._marks.start()

    def end(self, *, last: bool) -> None:
        """Stop the counters after the last iteration."""
        if last:
            self._marks.stop()
            spans = self._timeline.spans()
            duration_s = self._sampler.elapsed_s()
            self._rows = self._sampler.stop(lambda: spans)
            self._facts = {"duration_s": duration_s, "spans": drawable(spans, self._sampler.begun_ns)}
            self._marks.check()

    def results(self) -> tuple[dict[str, Rows], dict[str, Any]]:
        return {"counters": self._rows}, self._facts | {
            "num_iterations": self.num_iterations, "sources": self._sampler.outcomes}

    def clean(self) -> None:
        self._marks.stop()
        self._sampler.abandon()


INSTRUMENTS: dict[str, type[Instrument]] = {
    "operators": _Operators, "memory": _Memory, "inspection": InspectionInstrument,
    "counters": _Counters,
}


def _check_no_other_profiler() -> None:
    """Raise if the program has its own PyTorch profiler: a process can have only one, and its events would be lost."""
    bases = torch.profiler.profile, torch.autograd.profiler.profile
    kinds = {id(kind) for base in bases for kind in (base, *subclasses(base))}

    def has_profiler() -> bool:
        return not kinds.isdisjoint(id(type(obj)) for obj in gc.get_objects())

    if has_profiler():
        gc.collect()
        if has_profiler():
            raise UserError("the program uses PyTorch's profiler itself, and a process can have only one")
