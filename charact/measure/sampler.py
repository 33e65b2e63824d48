"""Reading counter sources along with a program: before it, after it, and from threads in between."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from charact.measure.counters import (
    CounterSource,
    Reading,
    Refusal,
    Refused,
    Rows,
    SampledSource,
    outcome,
    refusal_of,
)
from charact.measure.mark_names import phase_at
from charact.measure.timeline import Span

MAX_SAMPLES = 2000
"""Samples of a source at most: then it is read no more, so that an endless stretch fills no memory."""


class Sampler:
    """Reads sources from `start` to `stop`; one that is refused leaves its reason in `outcomes`, by source.

    Args:
        sources: to read; of those that are not taken along nothing is said.
        device: where the program computes.
    """

    def __init__(self, sources: Sequence[CounterSource], device: torch.device) -> None:
        self._sources: list[SampledSource] = [source for source in sources  # type: ignore[misc]  # what `taken` says
                                              if source.taken == "along"]
        self._device = device
        self._going: list[tuple[SampledSource, Reading, _Samples]] = []
        self.outcomes: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Begin to count."""
        for source in self._sources:
            refusal = refusal_of(source, self._device)
            if refusal is None:
                try:
                    reading = source.open(self._device)
                except Refused as refused:
                    refusal = refused.refusal
                else:
                    self._going.append((source, reading, _Samples(reading, source.period_s)))
            self.outcomes[source.name] = outcome(refusal)
        self._begun_ns = time.perf_counter_ns()
        for _, _, samples in self._going:
            samples.start()

    def stop(self, phases: Callable[[], Sequence[Span]] = tuple) -> Rows:
        """End counting; returns rows of the table `counters`, without `case`.

        Args:
            phases: tells when phases ran, once counting has ended; a sample outside of all has none.
        """
        for _, _, samples in self._going:
            samples.end()
        rows: Rows = []
        for source, reading, samples in self._going:
            refusal = samples.refusal
            try:
                whole: Mapping[str, float] = reading.close()
            except Refused as refused:
                whole, refusal = {}, refused.refusal
            rows += [self._row(source, counter, value) for counter, value in whole.items()]
            self.outcomes[source.name] = outcome(refusal, reading.missing)
        spans = sorted(phases())
        return rows + [
            self._row(source, counter, value, (moment_ns - self._begun_ns) / 1e9, phase_at(spans, moment_ns))
            for source, _, samples in self._going for moment_ns, values in samples.taken
            for counter, value in values.items()
        ]

    def _row(self, source: SampledSource, counter: str, value: float, time_s: float | None = None,
             phase: str | None = None) -> dict[str, Any]:
        return {"phase": phase, "time_s": time_s, "rank": 0, "source": source.name, "counter": counter,
                "device": "cpu" if source.reads == "host" else str(self._device), "kernel": None,
                "value": float(value)}


class _Samples(threading.Thread):
    """Samples of a reading, one every `period_s`, from a thread of its own; none where that is None."""

    def __init__(self, reading: Reading, period_s: float | None) -> None:
        super().__init__(name="charact-sampler", daemon=True)
        self._reading, self._period_s = reading, period_s
        self._ended = threading.Event()
        self.taken: list[tuple[int, Mapping[str, float]]] = []
        self.refusal: Refusal | None = None

    def start(self) -> None:
        """Begin, where there is anything to sample."""
        if self._period_s is not None:
            super().start()

    def run(self) -> None:
        """Sample until the end; what is refused once is asked no more."""
        try:
            while not self._ended.wait(self._period_s) and len(self.taken) < MAX_SAMPLES:
                self._sample()
        except Refused as refused:
            self.refusal = refused.refusal

    def end(self) -> None:
        """Sample no more, but one last time where there has been no time for any."""
        self._ended.set()
        if self.ident is not None:
            self.join()
            if not self.taken and self.refusal is None:
                with contextlib.suppress(Refused):
                    self._sample()

    def _sample(self) -> None:
        self.taken.append((time.perf_counter_ns(), self._reading.sample()))
