"""Profiling session of a program: installs the patches, writes the event log, counts iterations."""

import contextlib
import importlib
import os
import sys
import time
import weakref
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any

import msgspec

from charact.core.errors import UserError
from charact.machine.core_use import CoreMeter
from charact.machine.facts import torch_facts
from charact.measure.script.hooks.patches import Patches
from charact.measure.script.pass_scheduler import EvaluationPasses, PassScheduler
from charact.measure.script.program.frames import variable_name
from charact.measure.script.ranks.collectives import FlightRecorder
from charact.measure.script.ranks.hang_watch import HangWatch
from charact.measure.script.spans.device_clock import DeviceClock, device_name, is_capturing, program_device
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.iteration_segmenter import InferenceStarts
from charact.measure.script.spans.iterations import StepCounter
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.measure.script.spans.stack_sampler import FrameSampler
from charact.measure.script.windows.window_recorder import WindowRecorder
from charact.record.manifest_program import OutOfMemory

FLUSH_S = 0.25
FLUSH_SLICES = 4096
"""Number of slices that are written before `FLUSH_S` has passed."""
MAX_SLICES = 500_000
"""Limit of the event log: 500,000 slices (21 MB, some 60,000 iterations). Afterwards, windows of time are recorded."""
MAX_INTERRUPTED = 64
"""Largest number of iterations before a prompt that passes discard; then they measure any iteration."""
MAX_OWNERS = 10_000
"""Largest number of models, optimizers and iterators of loaders whose facts are recorded."""


@dataclass(frozen=True)
class Plan:
    """Iterations to measure: after the first `skip`, that many (None: all), and whether the program then ends.

    If all are measured, the passes run after some iterations (`PassScheduler.are_due`), and timing resumes.
    """

    skip: int = 0
    iterations: int | None = None
    stop: bool = False
    passes: tuple[str, ...] = ()
    """Passes, each on its own iterations."""
    budget_frac: float | None = None
    """Share of the program's time that the passes may take, see `PassScheduler`; None: no limit."""


class EnoughMeasured(SystemExit):
    """Exit of a program that ran only to be measured; exit status 0."""


class Session:
    """Records the spans of this process and writes them to an event log.

    An error while recording, such as a full disk, ends the recording, not the program.

    The directory of the event log exists. `on_problem` is called with the reason when recording ends early. A thread
    samples the program's stack while no span is open (`sample_interval_s`; None: never), another calls `on_hang` once
    with a text that describes where the program hangs (`hang_after_s`; None: never). If other ranks run the program,
    too (`is_rank`), its collectives are recorded.
    """

    def __init__(self, directory: Path, plan: Plan, on_problem: Callable[[str], None] | None = None, *,
                 sample_interval_s: float | None = None, is_rank: bool = False,
                 hang_after_s: float | None = None, on_hang: Callable[[str], None] | None = None) -> None:
        self.recorder = SpanRecorder()
        self.problem: str | None = None
        self._began_ns = perf_counter_ns()
        self._plan = plan
        self._on_problem = on_problem
        self._directory = directory
        self._event_log = EventLogWriter(directory)
        self._patches = Patches(
            self.recorder, lambda obj, number: self._try(lambda: self._add(obj, number)), self._on_span_end)
        self._events = self._patches.context.events
        self._sampler = (None if sample_interval_s is None
                         else FrameSampler(self.recorder, self._event_log, sample_interval_s,
                                           self._events.memory.sample_workers))
        self.started = False
        """Whether PyTorch has been imported."""
        self._process = os.getpid()
        self._closed = False
        self._counted: tuple[Kind, int] | None = None
        """Kind and owner of the spans counted as iterations: steps, else backwards; those of forwards do not count."""
        self._starts = InferenceStarts()
        """Decides which forwards count, if these do."""
        self._num_iterations = 0
        self._num_interrupted = 0
        """Number of iterations that passes have discarded because a prompt followed."""
        self._follows_encoder = False
        """Whether a model that does not generate ran last at such an end, such as an encoder."""
        self._steps = StepCounter()
        self._num_threads = 0
        """PyTorch's default number of threads."""
        self._awaits_passes = plan.iterations is None and bool(plan.passes)
        """Whether passes have not ended, if all iterations are measured."""
        self._flight_recorder = FlightRecorder() if is_rank else None
        self._on_hang = on_hang
        self._hang_watch = None if hang_after_s is None else HangWatch(
            self.recorder, self._flight_recorder or FlightRecorder(), hang_after_s, self._hangs)
        self._core_use: CoreMeter | None = None
        """Use of the cores since the first iteration, until it is noted."""
        self._flushed = monotonic()
        self._device_clock: DeviceClock | None = None
        self._device: dict[str, Any] | None = None
        """Note on the device of the program's tensors, if it is not the CPU."""
        self._objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        """Owners of slices (models, optimizers, loader iterators) by owner ID; weak references."""
        self._variables: dict[int, str | None] = {}
        """Variable names of the owners, from their first use."""
        self._settings_noted = False
        self._windows: WindowRecorder | None = None
        """Recorder of the iterations after the event log is full."""
        self._notes: list[dict[str, Any]] = [{"note": "began", "time_ns": self._began_ns}]
        """Notes to write with the next slices."""
        self._pass_scheduler = PassScheduler(plan.passes, directory, self.recorder, self._objects,
                                             self._names, self.note, plan.budget_frac,
                                             in_step=is_rank)
        self._evaluation: EvaluationPasses | None = None
        """Passes on evaluations; None before those of the training have ended."""
        _SESSIONS.add(self)

    @property
    def needs_closing(self) -> bool:
        """Whether `close` is still needed: False in a forked child and after the first call."""
        return os.getpid() == self._process and not self._closed

    def start(self) -> None:
        """Install the patches; PyTorch has just been imported."""
        begin_ns = perf_counter_ns()
        self.started = True
        self._num_threads = sys.modules["torch"].get_num_threads()
        importlib.import_module("charact.measure.script.program.settings")  # takes milliseconds, here in no iteration
        self._try(self._patches.install)
        self._try(self._look_for_device)
        if self._sampler is not None:
            self._try(self._sampler.start)
        self.recorder.on = self.problem is None
        if self._hang_watch is not None:
            self._hang_watch.start()
        self._notes.append({"note": "started", "own_ns": perf_counter_ns() - begin_ns})

    def close(self, ending: str, traceback: str | None = None) -> None:
        """Remove the patches and write the rest of the event log."""
        self._closed = True
        watched_to_the_end = self.recorder.on
        if self._evaluation is not None:
            self._evaluation.stop()
        self._pass_scheduler.stop()
        self._end_watching()
        if self.recorder.slices:  # a graph was captured when watching ended
            self._try(lambda: self._flush(wait=True))
        if self._windows is not None:
            self._try(self._windows.close)
        program = {"span_ns": (self._began_ns, perf_counter_ns())} if watched_to_the_end else {}
        self._try(lambda: self._write_end({"ending": ending, "traceback": traceback, **program}))

    def note(self, note: dict[str, Any]) -> None:
        """Write a note with the next slices."""
        self._notes.append(note)

    def note_out_of_memory(self, error: BaseException) -> OutOfMemory | None:
        """Record what holds the memory if an error means that it ran out; return the facts."""
        if not self.needs_closing or "torch" not in sys.modules:
            return None
        with contextlib.suppress(Exception):  # there may be no memory for this either
            from charact.measure.script.inspection.out_of_memory import out_of_memory_facts

            objects = sorted(self._objects.items())
            models = {self._names().get(number) or self._variables.get(number) or type(obj).__name__: obj
                      for number, obj in objects if hasattr(obj, "named_modules")}
            facts = out_of_memory_facts(error, models, [obj for _, obj in objects if hasattr(obj, "param_groups")])
            if facts is not None:
                self.note({"note": "out of memory", "facts": facts})
                return msgspec.convert(facts, OutOfMemory)
        return None

    def stop_in_child(self) -> None:
        """Stop recording in a forked child, but note in the event log if it trains."""
        self._pass_scheduler.stop_in_child()
        self._patches.stop_in_child()
        if self._sampler is not None:
            self._sampler.restore_switch_interval()
        if self.recorder.on:
            self.problem = "forked children are not recorded"  # so that nothing else is written here
            self.recorder.stop_in_child(lambda *_: self._write_at_once(
                {"note": "unwatched", "children": 1, "threads": 0}))

    def _write_at_once(self, note: dict[str, Any]) -> None:
        with contextlib.suppress(UserError):  # such as in a child whose parent has ended
            self._event_log.notes([note])

    def _add(self, obj: Any, number: int) -> None:
        self._objects[number] = obj
        if len(self._variables) >= MAX_OWNERS:
            return
        self._variables[number] = variable_name(obj)
        self._notes.append(self._facts(number))
        if not self._settings_noted and hasattr(obj, "param_groups"):
            self._settings_noted = True
            self._notes.append(self._settings())
        if hasattr(obj, "named_modules"):
            self._look_for_device()  # earlier tensors may have been on another device

    def _settings(self) -> dict[str, Any]:
        from charact.measure.script.program.settings import process_settings

        return {"note": "settings", "settings": process_settings()}

    def _facts(self, number: int) -> dict[str, Any]:
        from charact.measure.script.program.settings import owner_facts

        facts = owner_facts(number, self._objects, self._variables[number], self._patches.context.places)
        return facts | {"methods": sorted(self._patches.methods.names[number])} if facts["kind"] == "model" else facts

    def _names(self) -> dict[int, str]:
        """Return the names of models and optimizers that are global variables of the main module, by owner ID."""
        numbers = {id(obj): number for number, obj in self._objects.items()}
        return {numbers[id(value)]: name for name, value in list(vars(sys.modules["__main__"]).items())
                if id(value) in numbers and not name.startswith("_")}

    def _on_span_end(self, kind: Kind, owner: int) -> None:
        """Count iterations and flush after a step, forward, backward or fetch, when no span is open."""
        ended, is_forward = False, kind is Kind.FORWARD
        if kind is Kind.FETCH:
            if self._sampler is not None:
                self._sampler.loops.note(kind)
            self._steps.fetch()
            if self._evaluation is not None:
                self._evaluation.fetched(owner)
            self.flush_if_due()
            self._stop_if_measured()
            return
        last, events, plan = self.recorder.slices[-1], self._events, self._plan
        if kind is Kind.STEP:
            events.step()
        if kind is Kind.STEP or not events.any_optimizer:
            if self._counted is None or (kind is Kind.STEP and self._counted[0] is not Kind.STEP):
                self._counted, self._num_iterations = (kind, owner), 0
            if is_forward and self._counted[0] is kind:
                begun = self._starts.take(last)
                ended = bool(begun) and begun[-1] is last
                self._num_iterations += len(begun)
                if ended:
                    if events.num_single:
                        events.num_single.clear()
                elif not last.method:
                    events.follow(last.owner)
                if not ended and last.owner in events.generating:  # such as a decoder after its encoder
                    ended = True
                    self._num_iterations += 1
            else:
                ended = self._counted == (kind, owner) and self._steps.step()
                self._num_iterations += ended
            if ended and self._sampler is not None:
                self._sampler.loops.note(kind)
            if self._evaluation is not None:
                self._evaluation.trained()
            if self._core_use is None and self._num_iterations == plan.skip + 1:
                self._try(self._watch_cores)
        elif is_forward and not last.grad:
            self._steps.infer()
            if self._evaluation is not None:
                self._evaluation.inferred()
        if ended or (is_forward and not (last.grad and last.training)):  # the latter is probably inference
            events.memory.sample(self.recorder.changed_ns)
        if plan.iterations is None:
            timed = self._awaits_passes and self._pass_scheduler.are_due(iteration_ended=ended)
            if not timed:
                self.flush_if_due()
                return
        else:  # one more than requested: an iteration ends where the next begins
            timed = self._num_iterations > plan.skip + plan.iterations
            if timed:
                self._try(self._note_core_use)
        if timed and ended and kind is Kind.FORWARD and self._pass_scheduler.needs_more:
            # Nothing marks the end of the iteration. The next one begins with its fetch, or else its forward.
            self.recorder.on_open = self._on_open
            ended = False
        more = timed and self._pass_scheduler.advance(iteration_ended=ended)
        self.flush_if_due()
        if timed and not more:
            self._passes_ended()
        self._stop_if_measured()

    def _on_open(self, kind: Kind, owner: int, is_method: bool) -> None:
        """End an iteration of a program without an optimizer where the next one begins.

        Of a generation, passes measure only iterations that decode, which are nearly all of them.
        """
        generating = self._events.generating
        if kind is Kind.FETCH or (kind is Kind.FORWARD and (
                owner in generating or self._starts.begins(owner, is_method=is_method))):
            decodes = (kind is Kind.FORWARD and owner in generating and not self._follows_encoder
                       and not self._events.begins_prompt(owner))
            self._follows_encoder = kind is Kind.FORWARD and owner not in generating
            if generating and not decodes and self._num_interrupted < MAX_INTERRUPTED:
                self._num_interrupted += 1
                self._pass_scheduler.interrupt()
                return
            self.recorder.on_open = None
            if not self._pass_scheduler.advance(iteration_ended=True):
                self._passes_ended()

    def _passes_ended(self) -> None:
        """Resume the timing if all iterations are measured, else end it."""
        if not self._awaits_passes:
            self._end_watching()
        else:
            self._awaits_passes = False
            self.note({"note": "timing resumed", "time_ns": perf_counter_ns()})
            if self._events.any_optimizer and self._flight_recorder is None:
                self._evaluation = EvaluationPasses(self._pass_scheduler, self.recorder, self.note)

    def _stop_if_measured(self) -> None:
        if self._plan.stop and not self.recorder.on and self.problem is None:
            raise EnoughMeasured(0)

    def _watch_cores(self) -> None:
        self._core_use = CoreMeter()

    def _note_core_use(self) -> None:
        if self._core_use is not None:
            self._notes.append({"note": "core use", "facts": msgspec.to_builtins(self._core_use.facts())})
            self._core_use = None

    def flush_if_due(self) -> None:
        """Write the finished slices at intervals; call it when no span is open."""
        is_long = len(self.recorder.slices) > FLUSH_SLICES
        if self.recorder.keeps and not is_long:
            return
        if is_long or monotonic() - self._flushed > FLUSH_S:
            self._try(lambda: self._flush(wait=False))
            if self._event_log.num_slices > MAX_SLICES and self._windows is None:
                self._try(self._end_event_log)

    def _end_event_log(self) -> None:
        """Record windows from now on, if all iterations are measured; else end the recording."""
        if self._evaluation is not None:
            self._evaluation.stop()
            self._evaluation = None
        self._pass_scheduler.stop()
        if self._plan.iterations is not None:
            self._notes.append({"note": "full"})
            self._end_watching()
            return
        self._awaits_passes = False
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        memory = self._events.memory
        memory.stop()
        self._windows = WindowRecorder(self._directory, copy(self._steps), memory.now_bytes)

    def _end_watching(self) -> None:
        if self.recorder.on:
            self._try(self._note_core_use)
            self.recorder.on = False
            self._patches.remove()
            if self._sampler is not None:
                self._try(self._sampler.stop)
            self._try(lambda: self._flush(wait=True))

    def _flush(self, *, wait: bool) -> None:
        """Write the slices that are finished on the host and on the device; none while a CUDA graph is captured."""
        if self._device_clock is not None and self._device_clock.is_capturing():
            return
        if self._sampler is not None:
            self._sampler.check()
        slices = self.recorder.take()
        if self._device_clock is not None:
            slices, self.recorder.slices = self._device_clock.done(slices, wait=wait)
        if self._flight_recorder is not None and self._windows is None:
            read = self._flight_recorder.note if wait else self._flight_recorder.note_if_due
            if (note := read(self._num_iterations)) is not None:
                self._notes.append(note)
        notes, self._notes = self._notes, []
        events = self._patches.notes(last=wait)
        if notes or events:
            self._event_log.notes([*notes, *events, *([{"note": "names", "names": self._names()}] if notes else [])])
        device_ns = self._device_clock.ns if self._device_clock is not None else int
        if self._windows is None:
            self._event_log.slices(slices, device_ns)
        else:
            self._windows.take(slices, device_ns)
        if self._device is None:
            self._look_for_device()
        self._flushed = monotonic()

    def _hangs(self, text: str) -> None:
        self._write_at_once({"note": "hung", "text": text})  # the program may never get to write again
        if self._on_hang is not None:
            self._on_hang(text)

    def _look_for_device(self) -> None:
        """Record device times as soon as a device holds the program's tensors."""
        device = program_device()
        if device is None or is_capturing(device) or (self._device and self._device["device"] == str(device)):
            return
        before_ns = 0
        if self._device_clock is not None:  # events of two devices cannot be compared
            before_ns = self._device_clock.base_ns
            self.recorder.forget_events()
        reason = self._device_clock = None
        try:
            self._device_clock = DeviceClock(device, before_ns)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self.recorder.new_event = self._device_clock.new_event if self._device_clock else None
        if device.type == "cuda":
            self._events.memory.allocated_bytes = partial(sys.modules["torch"].cuda.memory_allocated, device)
        self._device = {"note": "device", "device": str(device), "name": device_name(device), "reason": reason}
        self._notes.append(self._device)

    def _write_end(self, end: dict[str, Any]) -> None:
        """Write the final notes.

        Owner facts are written again: lazy modules have weights by now, and models may have been added. PyTorch's facts
        are among the notes, so that the process that writes the record need not import PyTorch.
        """
        notes = [self._facts(number) for number in list(self._objects)]
        if self.started:
            notes.append(self._settings())
        if self._device:
            notes.append(self._device)
        notes.append({"note": "names", "names": self._names()})
        torch = sys.modules.get("torch")
        if self.started and torch is not None:
            has_gpus = torch.version.cuda is not None or torch.version.hip is not None
            if not has_gpus or torch.cuda.is_initialized():  # else the query would create a CUDA context
                with contextlib.suppress(Exception):  # the program may have changed anything: the process asks PyTorch
                    notes.append({"note": "torch", "facts": torch_facts() | {"num_threads": self._num_threads}})
        if self._flight_recorder is not None and self._flight_recorder.problem:
            notes.append({"note": "no collectives", "reason": self._flight_recorder.problem})
        self._event_log.notes([
            *notes, {"note": "unwatched", "children": self._patches.children.num_with_torch,
                     "threads": len(self._patches.context.training_threads)},
            {"note": "end", "time_s": time.time(), "process_peak_bytes": self._pass_scheduler.program_peak_bytes(),
             **end}])

    def _try(self, act: Callable[[], None]) -> None:
        """Run a part of the recording; an error ends the recording and never reaches the program."""
        if self.problem is None:
            try:
                act()
            except Exception as error:
                self.problem = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                self.recorder.on = False
                self._patches.remove()
                if self._on_problem is not None:
                    self._on_problem(self.problem)


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


def is_recording() -> bool:
    """Return whether a session records this process now."""
    return any(session.recorder.on for session in list(_SESSIONS))


def _stop_in_child() -> None:
    for session in _SESSIONS:
        session.stop_in_child()


os.register_at_fork(after_in_child=_stop_in_child)
