"""Reports a rank that makes no progress, and in what it waits. Imports no torch when loaded."""

import threading
import time
from collections.abc import Callable

from charact.core.running_stack import StackReader
from charact.measure.script.program.frames import location_of
from charact.measure.script.ranks.collectives import FlightRecorder
from charact.measure.script.spans.recorder import PHASES, SpanRecorder

_CHECKS = 20
"""Number of checks within the limit; a report comes at most this fraction of the limit too late."""


class HangWatch:
    """A thread that reports once if the watched thread neither begins nor ends a span for some time.

    The report is a text, such as 'no progress for 60 s: in backward at train.py:12 (main), waiting in all_reduce 7 of
    group default'.
    """

    def __init__(self, recorder: SpanRecorder, flight_recorder: FlightRecorder, limit_s: float,
                 report: Callable[[str], None]) -> None:
        self._recorder, self._flight_recorder = recorder, flight_recorder
        self._limit_s, self._report = limit_s, report
        self._program: threading.Thread | None = None
        self._stack: StackReader | None = None

    def start(self) -> None:
        """Start to watch the calling thread."""
        self._program, self._stack = threading.current_thread(), StackReader()
        threading.Thread(target=self._watch, name="charact-hang", daemon=True).start()

    def _watch(self) -> None:
        changed_ns, since_s = self._recorder.changed_ns, time.monotonic()
        while self._recorder.on:
            time.sleep(self._limit_s / _CHECKS)
            if self._recorder.changed_ns != changed_ns:
                changed_ns, since_s = self._recorder.changed_ns, time.monotonic()
            elif time.monotonic() - since_s >= self._limit_s:
                self._report(f"no progress for {self._limit_s:g} s: {self._where()}")
                return

    def _where(self) -> str:
        """Return the phase, the program's line and the collective in which the watched thread is, as text."""
        kind = self._recorder.top
        parts = ["outside of all phases" if kind is None else f"in {PHASES.get(kind, 'other')}"]
        is_alive = self._program is not None and self._program.is_alive()
        if self._stack is not None and is_alive and (location := location_of(self._stack.read()[0])) is not None:
            parts.append(f"at {location[0]} ({location[1]})")
        if (waited_for := self._flight_recorder.unfinished()) is not None:
            parts.append(f"waiting in {waited_for}")
        return " ".join(parts)
