"""Watching a program from its first call into PyTorch to its end, or for a number of iterations."""

import os
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charact.core.errors import UserError
from charact.measure.script.hooks.patches import Patches
from charact.measure.script.hooks.variable_names import variable_name
from charact.measure.script.pass_scheduler import Stretches
from charact.measure.script.spans.device_clock import DeviceClock
from charact.measure.script.spans.event_log import SpoolWriter
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.measure.script.spans.stack_sampler import FrameSampler

FLUSH_S = 0.25
MAX_SLICES = 4096
MOST_SLICES = 500_000
"""So many are written, 21 MB, of some 60,000 iterations; then the watching ends, which bounds the record."""


@dataclass(frozen=True)
class Plan:
    """Which iterations are measured: after the first `skip`, so many (None: all), and whether the program then ends."""

    skip: int = 0
    iterations: int | None = None
    stop: bool = False
    passes: tuple[str, ...] = ()
    """Passes that follow, each on iterations of its own."""


class EnoughMeasured(SystemExit):
    """Ends a program that was to run only for its measurement; its exit status is 0."""


class Session:
    """Watches this process and writes a spool.

    Whatever goes wrong in the watching, such as a full disk, ends the watching, not the program.

    Args:
        directory: where the spool is written; it exists.
        plan: what to measure.
        on_problem: told at once why the watching has ended early; `problem` holds it, too.
        sample: whether a thread also looks where the program is while no span is open.
    """

    def __init__(self, directory: Path, plan: Plan, on_problem: Callable[[str], None] | None = None, *,
                 sample: bool = False) -> None:
        self.recorder = SpanRecorder()
        self.problem: str | None = None
        self._plan = plan
        self._on_problem = on_problem
        self._spool = SpoolWriter(directory)
        self._patches = Patches(self.recorder, self._seen, self._ended)
        self._sampler = FrameSampler(self.recorder, self._spool) if sample else None
        self.started = False
        """Whether PyTorch has been imported."""
        self._process = os.getpid()
        self._closed = False
        self._counted: tuple[Kind, int] | None = None
        """What is counted as iterations: the first optimizer's steps; before any a model's forwards, or backwards."""
        self._num_iterations = 0
        self._flushed = time.monotonic()
        self._device_clock: DeviceClock | None = None
        self._things: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        """Owners of slices by number, as long as the program keeps them."""
        self._variables: dict[int, str | None] = {}
        """What the program called each when it was first seen."""
        self._notes: list[dict[str, Any]] = []
        """Written with the slices."""
        self._stretches = Stretches(plan.passes, directory, self.recorder, self._things,
                                    lambda: self._names()["names"], self.note)
        _SESSIONS.add(self)

    @property
    def mine(self) -> bool:
        """Whether there is something left to close: not in a forked child, nor after the first time."""
        return os.getpid() == self._process and not self._closed

    def start(self) -> None:
        """Put the patches in; PyTorch has just been imported."""
        self.started = True
        self._try(self._patches.install)
        self._try(self._look_for_device)
        if self._sampler is not None:
            self._try(self._sampler.start)
        self.recorder.on = self.problem is None

    def close(self, ending: str) -> None:
        """Take the patches out and write what is left.

        Args:
            ending: how the program ended, in a few words.
        """
        self._closed = True
        self._stretches.stop()
        self._end_watching()
        self._try(lambda: self._write_end(ending))

    def note(self, note: dict[str, Any]) -> None:
        """Have a note written with the next slices."""
        self._notes.append(note)

    def stop_in_child(self) -> None:
        """This is a process that the watched one has forked: it is not watched."""
        self._stretches.stop_in_child()
        self.recorder.on = False

    def _seen(self, thing: Any, number: int) -> None:
        """Note what the owner of slices is."""
        self._try(lambda: self._add(thing, number))

    def _add(self, thing: Any, number: int) -> None:
        self._things[number] = thing
        self._variables[number] = variable_name(thing)
        self._notes.append(self._facts(thing, number))

    def _facts(self, thing: Any, number: int) -> dict[str, Any]:
        """What is known of a model, an optimizer or a loader's iterator."""
        facts: dict[str, Any] = {"note": "owner", "owner": number, "class": type(thing).__name__,
                                 "variable": self._variables[number]}
        if hasattr(thing, "param_groups"):
            owned = {id(parameter) for group in thing.param_groups for parameter in group["params"]}
            models = [other for other, one in self._things.items() if hasattr(one, "parameters")
                      and any(id(parameter) in owned for parameter in one.parameters())]
            return facts | {"kind": "optimizer", "models": models}
        if hasattr(thing, "named_modules"):
            from torch.nn.parameter import is_lazy

            sizes = [parameter.numel() for parameter in thing.parameters() if not is_lazy(parameter)]
            return facts | {"kind": "model", "num_parameters": sum(sizes)}
        sampler = getattr(thing, "_index_sampler", None)
        return facts | {"kind": "loader", "batch_size": getattr(sampler, "batch_size", None)}

    def _names(self) -> dict[str, Any]:
        """What the program calls its models and optimizers, where that are global names of its main module."""
        numbers = {id(thing): number for number, thing in self._things.items()}
        names = {numbers[id(value)]: name for name, value in list(vars(sys.modules["__main__"]).items())
                 if id(value) in numbers and not name.startswith("_")}
        return {"note": "names", "names": names}

    def _ended(self, kind: Kind, owner: int) -> None:
        """A step, forward, backward or fetch has ended and nothing is open: the moment to count and flush."""
        if kind is Kind.FETCH:
            self.flush_if_due()
            return
        if kind is Kind.STEP or not self._patches.optimizer_made:
            if self._counted is None or (kind is Kind.STEP and self._counted[0] is not Kind.STEP):
                self._counted, self._num_iterations = (kind, owner), 0
            self._num_iterations += self._counted == (kind, owner)
        plan = self._plan
        # One more than asked for, since an iteration ends where the next begins.
        timed = plan.iterations is not None and self._num_iterations > plan.skip + plan.iterations
        more = timed and self._stretches.go_on(iteration_ended=self._counted == (kind, owner))
        self.flush_if_due()
        if timed and not more:
            self._end_watching()
        if plan.stop and not self.recorder.on and self.problem is None:
            raise EnoughMeasured(0)

    def flush_if_due(self) -> None:
        """Write what is done from time to time; called when no span is open."""
        if len(self.recorder.slices) > MAX_SLICES or time.monotonic() - self._flushed > FLUSH_S:
            self._try(lambda: self._flush(wait=False))
            if self._spool.num_slices > MOST_SLICES:
                self._notes.append({"note": "full"})
                self._stretches.stop()
                self._end_watching()

    def _end_watching(self) -> None:
        if self.recorder.on:
            self.recorder.on = False
            self._patches.remove()
            if self._sampler is not None:
                self._try(self._sampler.stop)
            self._try(lambda: self._flush(wait=True))

    def _flush(self, *, wait: bool) -> None:
        """Write the slices that are done, on the device too."""
        if self._sampler is not None:
            self._sampler.check()
        slices = self.recorder.take()
        if self._device_clock is not None:
            slices, self.recorder.slices = self._device_clock.done(slices, wait=wait)
        if self._notes:
            notes, self._notes = self._notes, []
            self._spool.notes([*notes, self._names()])
        self._spool.slices(slices, self._device_ns)
        self._look_for_device()
        self._flushed = time.monotonic()

    def _look_for_device(self) -> None:
        """Take the device's times, too, from when the program uses one."""
        if self._device_clock is None:
            self._device_clock = DeviceClock.if_at_work()
            if self._device_clock is not None:
                self.recorder.new_event = self._device_clock.new_event

    def _write_end(self, ending: str) -> None:
        """Facts anew, since a lazy module has weights by now, and an optimizer may serve models that came later."""
        facts = [self._facts(thing, number) for number, thing in self._things.items()]
        end = {"note": "end", "ending": ending, "time_s": time.time()}
        self._spool.notes([*facts, self._names(), end])

    def _device_ns(self, event: Any) -> int:
        assert self._device_clock is not None
        return self._device_clock.ns(event)

    def _try(self, act: Callable[[], None]) -> None:
        """Do a part of the watching. It runs amid the program's own calls, into which no error of ours may get."""
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


def is_watched() -> bool:
    """Whether a session watches this process now."""
    return any(session.recorder.on for session in list(_SESSIONS))


def _stop_in_child() -> None:
    for session in _SESSIONS:
        session.stop_in_child()


os.register_at_fork(after_in_child=_stop_in_child)
