"""Counter pass: iterations during which a thread per source samples counters, and passes of other sources."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from charact.core.timeline import phase_at
from charact.execution.case_outcome import one_line
from charact.execution.loop import Loop
from charact.measure.counters._support.phase_spans import PhaseTimeline, Span, drawable
from charact.measure.counters._support.protocol import (
    CounterSource,
    PassSource,
    Reading,
    SampledSource,
    Unavailable,
    UnavailableError,
    outcome,
    why_unavailable,
)
from charact.record.manifest_passes import CountersPass, SourceOutcome
from charact.record.schema import Rows

MAX_SAMPLES = 2000
"""Maximum number of samples per source, which bounds the memory of long runs."""


class Sampler:
    """Reads sources from `start` to `stop`.

    `outcomes` holds the reason of a source that is unavailable or fails; the others continue.
    """

    def __init__(self, sources: Sequence[CounterSource], device: torch.device) -> None:
        self._sources: list[SampledSource] = [source for source in sources  # type: ignore[misc]  # what `taken` says
                                              if source.taken == "along"]
        self._device = device
        self._threads: list[_SourceThread] = []
        self._process: int | None = None
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.begun_ns = 0
        """Start of counting by `time.perf_counter_ns`; samples' times are relative to it."""

    def start(self) -> None:
        """Start to count."""
        self._process = os.getpid()
        # Check all sources before any counts, so that no check is counted by another source.
        unavailable = [why_unavailable(source, self._device) for source in self._sources]
        for source, reason in zip(self._sources, unavailable, strict=True):
            if reason is None:
                thread = _SourceThread(source)
                thread.attempt(thread.open, self._device)
                self._threads.append(thread)
            else:
                self.outcomes[source.name] = outcome(reason)
        self.begun_ns = time.perf_counter_ns()
        for thread in self._threads:
            thread.start()

    def elapsed_s(self) -> float:
        """Return the time since counting began in seconds."""
        return (time.perf_counter_ns() - self.begun_ns) / 1e9

    def stop(self, phases: Callable[[], Sequence[Span]] = tuple) -> Rows:
        """Stop counting; return rows of the table `counters`, without `case`.

        After counting has ended, `phases` returns the spans of phases. A sample outside of them has no phase.
        """
        for thread in self._threads:
            thread.ended.set()
        # Device sources first: the device is idle already, and the last reading of a host source may take long.
        for thread in sorted(self._threads, key=lambda thread: thread.source.reads != "device"):
            thread.end()
            thread.attempt(thread.close)
        for thread in self._threads:
            self.outcomes[thread.source.name] = thread.outcome()
        spans = sorted(phases())
        rows = []
        for thread in self._threads:
            rows += [self._row(thread.source, counter, value) for counter, value in thread.whole.items()]
            rows += [self._row(thread.source, counter, value, (moment_ns - self.begun_ns) / 1e9,
                               phase_at(spans, moment_ns))
                     for moment_ns, values in thread.samples for counter, value in values.items()]
        self._threads.clear()
        return rows

    def abandon(self) -> None:
        """Stop counting without a result; do nothing in a forked child."""
        if self._process == os.getpid():
            self.stop()

    def _row(self, source: SampledSource, counter: str, value: float, time_s: float | None = None,
             phase: str | None = None) -> dict[str, Any]:
        return {"phase": phase, "time_s": time_s, "rank": 0, "source": source.name, "counter": counter,
                "device": "cpu" if source.reads == "host" else str(self._device), "kernel": None,
                "value": float(value)}


class _SourceThread(threading.Thread):
    """Reads one source: opens it, samples it every `period_s` if it has one, and closes it."""

    def __init__(self, source: SampledSource) -> None:
        super().__init__(name="charact-sampler", daemon=True)
        self.source = source
        self.samples: list[tuple[int, Mapping[str, float]]] = []
        self.whole: Mapping[str, float] = {}
        self._reading: Reading | None = None
        self.ended = threading.Event()
        self._problem: dict[str, Any] | None = None

    def open(self, device: torch.device) -> None:
        self._reading = self.source.open(device)

    def start(self) -> None:
        if self._reading is not None and self.source.period_s is not None:
            super().start()

    def run(self) -> None:
        self.attempt(self._sample_until_end)

    def end(self) -> None:
        if self.ident is not None:
            self.join()
            if not self.samples and self._problem is None:
                self.attempt(self._sample)

    def close(self) -> None:
        if self._reading is not None:
            self.whole = self._reading.close()

    def outcome(self) -> dict[str, Any]:
        missing = self._reading.missing if self._reading is not None else {}
        return outcome(None, missing) if self._problem is None else self._problem | {"missing": dict(missing)}

    def attempt(self, act: Callable[..., None], *args: Any) -> None:
        try:
            act(*args)
        except UnavailableError as error:
            problem = outcome(error.unavailable)
        except Exception as error:
            problem = failed(error)
        else:
            return
        if self.samples:
            problem["reason"] = f"stopped after sample {len(self.samples)}: {problem['reason']}"
        self._problem = self._problem or problem

    def _sample_until_end(self) -> None:
        while not self.ended.wait(self.source.period_s) and len(self.samples) < MAX_SAMPLES:
            self._sample()

    def _sample(self) -> None:
        assert self._reading is not None
        moment_ns = time.perf_counter_ns()
        self.samples.append((moment_ns, self._reading.sample()))


def failed(error: Exception) -> dict[str, Any]:
    """Return the outcome of a source that failed."""
    return outcome(Unavailable(one_line(error))) | {"status": "failed"}


MIN_SECONDS = 1.0
"""Shortest duration in seconds: devices average utilization over up to 1 s, GPM metrics over 0.1 s."""
MIN_ITERATIONS = 2


def counter_pass(loop: Loop, sources: Sequence[CounterSource]) -> tuple[Rows, CountersPass]:
    """Return rows of the table `counters` for some iterations, and facts about the pass.

    The facts are the number of iterations, the duration, `spans` (start and end since counting began, phase; of the
    first iterations) and the outcome of each source. Sources that need their own pass run afterwards.

    *Error*: a sample covers the time since the previous one. Short phases need many samples.
    """
    timeline = PhaseTimeline(loop.case.device)
    sampler = Sampler(sources, loop.case.device)
    num_iterations = 0
    try:
        sampler.start()
        while num_iterations < MIN_ITERATIONS or sampler.elapsed_s() < MIN_SECONDS:
            loop.iteration(timeline)
            num_iterations += 1
        spans = timeline.spans()
        duration_s = sampler.elapsed_s()
    except BaseException:
        sampler.abandon()
        raise
    rows = sampler.stop(lambda: spans)
    outcomes = sampler.outcomes
    for source in sources:
        if source.taken == "own pass":
            outcomes[source.name] = _take_own_pass(loop, source, rows)  # type: ignore[arg-type]  # what `taken` says
    return rows, CountersPass("ok", num_iterations=num_iterations, duration_s=duration_s,
                              sources=msgspec.convert(outcomes, dict[str, SourceOutcome]),
                              spans=[(begin, end, phase) for begin, end, phase in drawable(spans, sampler.begun_ns)])


def _take_own_pass(loop: Loop, source: PassSource, rows: Rows) -> dict[str, Any]:
    """Add the rows of a source's own pass; return its outcome."""
    unavailable = why_unavailable(source, loop.case.device)
    if unavailable is not None:
        return outcome(unavailable)
    try:
        taken = source.take(loop)
    except UnavailableError as error:
        return outcome(error.unavailable)
    except Exception as error:  # an optional instrument, whose failure is reported
        return failed(error)
    common = {"phase": None, "time_s": None, "rank": 0, "kernel": None, "source": source.name}
    rows += [common | row for row in taken.rows]
    return outcome(None, taken.missing) | dict(taken.facts)
