"""Timer of a rank: its iterations by phase, and the collectives in which its host waits."""

from collections.abc import Callable
from dataclasses import replace
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Self

import torch
import torch.distributed as dist

from charact.core.timeline import Interval, Iteration
from charact.measure.passes.phase_timer import phases_for
from charact.measure.script.hooks.patch_context import Replacements
from charact.measure.script.hooks.patches import COLLECTIVES
from charact.measure.script.ranks.collectives import Arrivals, FlightRecorder, collective_rows, with_waiting
from charact.record.manifest_passes import CollectivesPass
from charact.record.schema import Rows

_ON_DEVICE = "waits of ranks on a GPU are not measured"
_IN_FORWARD = ("_broadcast_coalesced",)
"""What `DistributedDataParallel` calls from Python: the exchange of buffers. It exchanges gradients in C++."""


class RankTimer:
    """Times the iterations of a rank, whose phases are annotated with `phases`.

    On a CPU, the phase `communication` is the time in which the host waits for other ranks; see `with_waiting`.
    `parallel` is how ranks train together, one of `schema.PARALLEL`; None for a single process.
    """

    def __init__(self, device: torch.device, parallel: str | None) -> None:
        self.phases = phases_for(device)
        self._watches = device.type == "cpu" and parallel is not None
        self._on_device = device.type != "cpu"
        self._recorder = FlightRecorder()
        self._replacements = Replacements()
        self._functions = _IN_FORWARD if parallel == "ddp" else COLLECTIVES
        self._waits: list[tuple[int, int]] = []
        self._is_waiting = False
        self._thread = get_ident()
        self._num_iterations = self._num_lost = 0

    def __enter__(self) -> Self:
        if self._watches:
            for name in self._functions:
                if hasattr(dist, name):
                    self._replacements.wrap(dist, name, self._timed)
            if self._functions is COLLECTIVES:
                self._replacements.wrap(dist.Work, "wait", self._timed)
        return self

    def __exit__(self, *_: object) -> None:
        self._replacements.undo()

    def take(self) -> tuple[list[Iteration], list[Rows]]:
        """Return the iterations since the last call, and the rows of the table `collectives` of each.

        The device has finished them. Their rows have the iteration 0.
        """
        iterations = self.phases.take(wait=True)
        if not self._watches:
            return iterations, [[] for _ in iterations]
        self._num_iterations += len(iterations)
        note = self._recorder.note(self._num_iterations) or {"lost": 0, "rows": []}
        self._num_lost += note["lost"]
        arrivals = Arrivals(note["rows"])
        waits, self._waits = self._waits, []
        iterations = [with_waiting(_interrupted(iteration, waits), arrivals) for iteration in iterations]
        return iterations, [collective_rows(0, iteration, arrivals) for iteration in iterations]

    def forget_lost(self) -> None:
        """Forget how many collectives were lost so far: those of the warm-up do not matter."""
        self._num_lost = 0

    def facts(self) -> CollectivesPass:
        """Return the facts of the pass `collectives`."""
        reason = _ON_DEVICE if self._on_device else self._recorder.problem
        return CollectivesPass("skipped", reason) if reason else CollectivesPass(
            "ok", num_lost=self._num_lost, backend=dist.get_backend())

    def _timed(self, original: Any) -> Callable[..., Any]:
        """Return a function that records when the rank's own thread is in the original."""
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._is_waiting or get_ident() != self._thread:
                return original(*args, **kwargs)
            self._is_waiting, start_ns = True, perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._waits.append((start_ns, perf_counter_ns()))
                self._is_waiting = False

        return wrapper


def _interrupted(iteration: Iteration, waits: list[tuple[int, int]]) -> Iteration:
    """Return the iteration; each wait, in order of time, interrupts the phase that it is in."""
    intervals = []
    for interval in iteration.intervals:
        for wait_ns, waited_ns in waits:
            if interval.start_ns <= wait_ns and waited_ns <= interval.end_ns:
                intervals += [replace(interval, end_ns=wait_ns),
                              Interval("communication", wait_ns, waited_ns, inside=interval.phase)]
                interval = replace(interval, start_ns=waited_ns)
        intervals.append(interval)
    return replace(iteration, intervals=intervals)
