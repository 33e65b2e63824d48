"""Phase timers: an iteration's time by phase, from the host's clock and, on a GPU, from events on the device.

A phase is the interval between entering and leaving its context manager. Phases do not overlap, and `other` is the
remaining time, so their sum is the iteration's wall time.
"""

from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Self

import torch

from charact.core.timeline import Interval, Iteration
from charact.record.schema import PHASES

Stamps = tuple[Any, Any, list[tuple[Any, Any, str]]]
"""An iteration: its start, its end, and the start, the end and the name of each of its phases; on the host in ns."""


class _Span:
    """Reusable context manager that records its start and end."""

    __slots__ = ("_name", "_open", "_stamp", "_stamps")

    def __init__(self, name: str, stamps: list[tuple[Any, Any, str]], stamp: Any) -> None:
        self._name, self._stamps, self._stamp = name, stamps, stamp

    def __enter__(self) -> None:
        self._open = self._stamp()

    def __exit__(self, *_: object) -> None:
        self._stamps.append((self._open, self._stamp(), self._name))


class HostPhases:
    """Phase timer with the host's monotonic clock: two clock reads and a list append per phase, well under 1 µs each.

    Pass it to `Loop.iteration` inside `with phases:`, which covers the iteration.
    """

    def __init__(self) -> None:
        self._stamps: list[tuple[Any, Any, str]] = []
        self._spans = {name: _Span(name, self._stamps, self._stamp) for name in PHASES if name != "other"}
        self._begin: Any = None
        self._finished: list[Stamps] = []

    def __call__(self, name: str) -> _Span:
        """Return the context manager of a phase."""
        return self._spans[name]

    def __enter__(self) -> Self:
        self._stamps.clear()
        self._begin = self._stamp()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._finished.append((self._begin, self._stamp(), self._stamps.copy()))

    def take(self, *, wait: bool = False) -> list[Iteration]:
        """Return the finished iterations since the last call; with `wait`, wait for those that the device works on."""
        taken, self._finished = self._finished, []
        return [self._iteration(*finished) for finished in taken]

    def keep_up(self) -> None:
        """Wait until the device has finished all iterations but the last."""

    def _stamp(self) -> Any:
        return perf_counter_ns()

    def _iteration(self, begin: Any, end: Any, stamps: list[tuple[Any, Any, str]]) -> Iteration:
        return _in_order(Iteration(begin, end, [Interval(name, first, last) for first, last, name in stamps]))


class DevicePhases(HostPhases):
    """Phase timer with a device's events in addition to the host's clock.

    An event is recorded on the current stream at each boundary, and read when the device has passed the iteration's
    last one: nothing synchronizes inside an iteration. A phase's device time includes idle intervals between its two
    events.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._module = torch.get_device_module(device)
        self._streams = [self._module.current_stream(device)] if hasattr(self._module, "current_stream") else []
        self._free: list[Any] = []

    def take(self, *, wait: bool = False) -> list[Iteration]:
        """See `HostPhases`; without `wait` only iterations that the device has finished."""
        if wait and self._finished:
            self._finished[-1][1][1].synchronize()
        num_done = 0
        while num_done < len(self._finished) and self._finished[num_done][1][1].query():
            num_done += 1
        taken = [self._iteration(*finished) for finished in self._finished[:num_done]]
        del self._finished[:num_done]
        return taken

    def keep_up(self) -> None:
        """See `HostPhases`."""
        if len(self._finished) > 1:
            self._finished[-2][1][1].synchronize()

    def _stamp(self) -> tuple[int, Any]:
        event = self._free.pop() if self._free else self._module.Event(enable_timing=True)
        event.record(*self._streams)
        return perf_counter_ns(), event

    def _iteration(self, begin: Any, end: Any, stamps: list[tuple[Any, Any, str]]) -> Iteration:
        def device_ns(stamp: tuple[int, Any]) -> int:
            # All times are relative to one event, so that rounding cannot make phases overlap.
            return round(float(begin[1].elapsed_time(stamp[1])) * 1e6)

        intervals = [Interval(name, first[0], last[0], start_device_ns=device_ns(first), end_device_ns=device_ns(last))
                     for first, last, name in stamps]
        iteration = Iteration(begin[0], end[0], intervals, start_device_ns=0, end_device_ns=device_ns(end))
        self._free += [begin[1], end[1], *(event for first, last, _ in stamps for event in (first[1], last[1]))]
        return _in_order(iteration)


def phases_for(device: torch.device) -> HostPhases:
    """Return a phase timer for a device."""
    return HostPhases() if device.type == "cpu" else DevicePhases(device)


def _in_order(iteration: Iteration) -> Iteration:
    bounds = [iteration.start_ns, *(ns for each in iteration.intervals for ns in (each.start_ns, each.end_ns)),
              iteration.end_ns]
    assert all(first <= second for first, second in pairwise(bounds)), "phases overlap"
    return iteration
