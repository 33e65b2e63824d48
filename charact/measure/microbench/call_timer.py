"""Clocks for single calls, from a microsecond up: what reading them costs is measured and taken off."""

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

Times = tuple[float, float | None]
"""Of one call, on the host's clock and on the device's (null on a CPU)."""

_NUM_EMPTY_CALLS = 1001
_SHORTEST_S = 1e-9
_SLEEP_CYCLES = 2_000_000
"""A GPU waits so long, about a millisecond, before a call, which is queued meanwhile: no launch is waited for."""


class HostClock:
    """The host's monotonic clock.

    *Error*: the median cost of a call that does nothing is taken off, Python's own call included; the clock tells whole
    nanoseconds, of which reading it varies by some ten.
    """

    def __init__(self) -> None:
        self._own_s = 0.0, 0.0
        empty = [self.time(_nothing, None) for _ in range(_NUM_EMPTY_CALLS)]
        self._own_s = median(host_s for host_s, _ in empty), median(device_s or 0.0 for _, device_s in empty)

    @property
    def own_s(self) -> float:
        """What is taken off of the host's time of each call."""
        return self._own_s[0]

    def time(self, call: Callable[..., Any], *args: Any) -> Times:
        """Seconds of one call; giving back what it returns is part of it, as it is in a model."""
        begun = perf_counter_ns()
        call(*args)
        ended = perf_counter_ns()
        return max(_SHORTEST_S, (ended - begun) / 1e9 - self._own_s[0]), None


class CudaClock(HostClock):
    """The host's clock, and events around the call on the current stream."""

    def __init__(self) -> None:
        self._begun, self._ended = (
            torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        super().__init__()

    def time(self, call: Callable[..., Any], *args: Any) -> Times:
        """Seconds of one call, which the device is given before it begins with the first kernel."""
        torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        self._begun.record()
        host_s, _ = super().time(call, *args)
        self._ended.record()
        self._ended.synchronize()
        return host_s, max(_SHORTEST_S, self._begun.elapsed_time(self._ended) / 1e3 - self._own_s[1])


def clock_for(device: torch.device) -> HostClock:
    """The clock that fits a device."""
    return CudaClock() if device.type == "cuda" else HostClock()


def seconds(times: Times) -> float:
    """The device's time where it has one, else the host's."""
    host_s, device_s = times
    return host_s if device_s is None else device_s


def by_clock(times: Times) -> dict[str, float | None]:
    """The times as records hold them: `host_s` and `device_s`."""
    return dict(zip(("host_s", "device_s"), times, strict=True))


def _nothing(_: Any) -> None:
    pass
