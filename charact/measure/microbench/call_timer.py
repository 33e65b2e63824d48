"""Timing of calls by the host's and the device's clock: several calls together, or single ones of a microsecond."""

import math
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

Times = tuple[float, float | None]
"""Seconds of one call, by the host's and the device's clock (None on a CPU)."""

REPEAT_S = 1e-3
"""Minimum duration of calls that are timed together: the overhead of clock and loop is then below 0.1 %."""
_MOST_CALLS = {"cpu": 1000, "cuda": 100}
"""Maximum calls that are timed together; a GPU's queue holds about a thousand before the host blocks."""
_NUM_EMPTY_CALLS = 1001
_SHORTEST_S = 1e-9
_SLEEP_CYCLES = 2_000_000
"""Sleep of a GPU (about 1 ms) while a call is queued, so that launch latency is not timed."""


def calls_per_repeat(call_s: float, device: torch.device) -> int:
    """Return how many calls of a duration are timed together, at least one."""
    return min(_MOST_CALLS[device.type], math.ceil(REPEAT_S / call_s))


def time_together(run: Callable[[], object], num_calls: int, device: torch.device, *, queued: bool = True) -> Times:
    """Return the times of one call (s), averaged over `num_calls` that `run` makes.

    Args:
        run: makes the calls.
        num_calls: their number.
        device: a GPU's time is that between two events.
        queued: whether all calls are queued before the GPU starts the first, so that launch latency is not timed.
    """
    on_cuda = device.type == "cuda"
    if on_cuda:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        if queued:
            torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        first.record()
    begun = perf_counter_ns()
    run()
    host_s = (perf_counter_ns() - begun) / 1e9 / num_calls
    if not on_cuda:
        return host_s, None
    last.record()
    last.synchronize()
    return host_s, float(first.elapsed_time(last)) / 1e3 / num_calls


class HostClock:
    """The host's monotonic clock.

    *Error*: the median time of an empty call, including Python's call overhead, is subtracted. The resolution is 1 ns;
    reading the clock varies by about 10 ns.
    """

    def __init__(self) -> None:
        self._own_s = 0.0, 0.0
        empty = [self.time(_nothing, None) for _ in range(_NUM_EMPTY_CALLS)]
        self._own_s = median(host_s for host_s, _ in empty), median(device_s or 0.0 for _, device_s in empty)

    @property
    def own_s(self) -> float:
        """Return the overhead (s) that is subtracted from the host's time of each call."""
        return self._own_s[0]

    def time(self, call: Callable[..., Any], *args: Any) -> Times:
        """Return the times of one call (s), including the release of its result, as in a model."""
        begun = perf_counter_ns()
        call(*args)
        ended = perf_counter_ns()
        return max(_SHORTEST_S, (ended - begun) / 1e9 - self._own_s[0]), None


class CudaClock(HostClock):
    """The host's clock, and CUDA events around the call on the current stream."""

    def __init__(self) -> None:
        self._begun, self._ended = (
            torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        super().__init__()

    def time(self, call: Callable[..., Any], *args: Any) -> Times:
        """Return the times of one call (s); the call is queued before its first kernel starts."""
        torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        self._begun.record()
        host_s, _ = super().time(call, *args)
        self._ended.record()
        self._ended.synchronize()
        return host_s, max(_SHORTEST_S, self._begun.elapsed_time(self._ended) / 1e3 - self._own_s[1])


def clock_for(device: torch.device) -> HostClock:
    """Return the clock for a device."""
    return CudaClock() if device.type == "cuda" else HostClock()


def seconds(times: Times) -> float:
    """Return the device's time if there is one, else the host's."""
    host_s, device_s = times
    return host_s if device_s is None else device_s


def by_clock(times: Times) -> dict[str, float | None]:
    """Return times in the format of records: `host_s` and `device_s`."""
    return dict(zip(("host_s", "device_s"), times, strict=True))


def _nothing(_: Any) -> None:
    pass
