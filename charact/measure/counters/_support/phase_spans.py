"""When each phase ran, so that samples of counters find theirs."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any

import torch

Span = tuple[int, int, str]
"""Start, end (ns by `time.perf_counter_ns`) and phase."""
MAX_SPANS = 600
"""Spans of phases that are kept for drawing; with more, each would be thinner than a line."""


def drawable(spans: Sequence[Span], begun_ns: int) -> list[list[Any]]:
    """The first of some spans as the manifest keeps them: start and end in seconds since a moment, and phase."""
    return [[(start_ns - begun_ns) / 1e9, (end_ns - begun_ns) / 1e9, phase]
            for start_ns, end_ns, phase in sorted(spans)[:MAX_SPANS]]


class PhaseTimeline:
    """Marks for the phases of iterations, which tell when each ran.

    On CUDA that is when the device passed the marks: events, laid upon the host's clock at one moment at which the
    device was idle. *Error*: the two clocks drift by some parts in a million, microseconds in a second.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._stamps: list[tuple[Any, Any, str]] = []
        if self._stream is not None:
            self._stream.synchronize()
        self._origin = self._stamp()
        self._origin_ns = perf_counter_ns()

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        """Mark to enter around a phase."""
        return self._mark(phase)

    def spans(self) -> list[Span]:
        """The phases so far, by time; waits for the device."""
        if self._stream is not None:
            self._stream.synchronize()
        return [(self._moment_ns(start), self._moment_ns(end), phase) for start, end, phase in self._stamps]

    @contextlib.contextmanager
    def _mark(self, phase: str) -> Iterator[None]:
        start = self._stamp()
        yield
        self._stamps.append((start, self._stamp(), phase))

    def _stamp(self) -> Any:
        if self._stream is None:
            return perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _moment_ns(self, stamp: Any) -> int:
        if self._stream is None:
            return int(stamp)
        return self._origin_ns + round(float(self._origin.elapsed_time(stamp)) * 1e6)
