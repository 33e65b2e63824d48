"""Phase timers: an iteration's time by phase, from the host's clock and, on a GPU, from events on the device.

A phase is the interval between entering and leaving its context manager. Phases do not overlap, and `other` is the
remaining time, so their sum is the iteration's wall time.
"""

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Self

import torch

from charact.core.timeline import Durations, sums, with_rest
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

    def take(self, *, wait: bool = False) -> list[Durations]:
        """Return the finished iterations since the last call: by phase (host_s, device_s), which sum to the wall time.

        Args:
            wait: also wait for iterations that the device has not finished.
        """
        return [self._durations(*finished) for finished in self.take_stamps()]

    def take_stamps(self) -> list[Stamps]:
        """Return the finished iterations since the last call."""
        taken, self._finished = self._finished, []
        return taken

    def keep_up(self) -> None:
        """Wait until the device has finished all iterations but the last."""

    def _stamp(self) -> Any:
        return perf_counter_ns()

    def _durations(self, begin: Any, end: Any, stamps: list[tuple[Any, Any, str]]) -> Durations:
        return {phase: (ns / 1e9, None) for phase, ns in _exclusive(begin, end, stamps).items()}


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

    def take(self, *, wait: bool = False) -> list[Durations]:
        """See `HostPhases`; without `wait` only iterations that the device has finished."""
        if wait and self._finished:
            self._finished[-1][1][1].synchronize()
        num_done = 0
        while num_done < len(self._finished) and self._finished[num_done][1][1].query():
            num_done += 1
        taken = [self._durations(*finished) for finished in self._finished[:num_done]]
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

    def _durations(self, begin: Any, end: Any, stamps: list[tuple[Any, Any, str]]) -> Durations:
        host = _exclusive(begin[0], end[0], [(first[0], last[0], name) for first, last, name in stamps])

        def since_begin_ms(stamp: tuple[int, Any]) -> float:
            return float(begin[1].elapsed_time(stamp[1]))

        # All times are relative to one event, so that rounding cannot make phases overlap.
        device = _exclusive(0.0, since_begin_ms(end),
                            [(since_begin_ms(first), since_begin_ms(last), name) for first, last, name in stamps])
        self._free += [begin[1], end[1], *(event for first, last, _ in stamps for event in (first[1], last[1]))]
        return {phase: (host[phase] / 1e9, device[phase] / 1e3) for phase in host}


def phases_for(device: torch.device) -> HostPhases:
    """Return a phase timer for a device."""
    return HostPhases() if device.type == "cpu" else DevicePhases(device)


def _exclusive(begin: float, end: float, spans: Sequence[tuple[float, float, str]]) -> dict[str, float]:
    """Return the time of each phase of an iteration, with `other` for the remaining time."""
    bounds = [begin, *(moment for span in spans for moment in span[:2]), end]
    assert all(first <= second for first, second in pairwise(bounds)), "phases overlap"
    return with_rest(sums(spans), end - begin)
