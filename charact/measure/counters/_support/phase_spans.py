"""Spans of phases, to attribute counter samples to phases."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any

import torch

Span = tuple[int, int, str]
"""Start and end (ns of `time.perf_counter_ns`) and phase."""
MAX_SPANS = 600
"""Maximum number of spans kept for drawing; more would be thinner than a line."""


def drawable(spans: Sequence[Span], begun_ns: int) -> list[list[Any]]:
    """Return the first spans as stored in the manifest: start and end in seconds since `begun_ns`, and phase."""
    return [[(start_ns - begun_ns) / 1e9, (end_ns - begun_ns) / 1e9, phase]
            for start_ns, end_ns, phase in sorted(spans)[:MAX_SPANS]]


class PhaseTimeline:
    """Context managers of phases that record when each ran.

    On CUDA these are the times at which the device passed the events, converted to the host's clock from one event
    recorded on an idle device. *Error*: the two clocks drift by some parts in a million, microseconds per second.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._stamps: list[tuple[Any, Any, str]] = []
        if self._stream is not None:
            self._stream.synchronize()
        self._origin = self._stamp()
        self._origin_ns = perf_counter_ns()

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        """Return the context manager of a phase."""
        return self._mark(phase)

    def spans(self) -> list[Span]:
        """Return the phases so far, in order of time; synchronizes the device."""
        if self._stream is not None:
            self._stream.synchronize()
        return [(self._time_ns(start), self._time_ns(end), phase) for start, end, phase in self._stamps]

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

    def _time_ns(self, stamp: Any) -> int:
        if self._stream is None:
            return int(stamp)
        return self._origin_ns + round(float(self._origin.elapsed_time(stamp)) * 1e6)
