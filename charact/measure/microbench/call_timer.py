"""Timing of calls by the host's and the device's clock: several calls together, or single ones of a microsecond."""

import math
from collections import deque
from collections.abc import Callable
from functools import cache
from statistics import median
from time import perf_counter_ns
from typing import Any, TypeVar

import torch

Measured = TypeVar("Measured")

Times = tuple[float, float | None]
"""Seconds of one call, by the host's and the device's clock (None on a CPU)."""

REPEAT_S = 1e-3
"""Minimum duration of calls that are timed together: the overhead of clock and loop is then below 0.1 %."""
_MOST_CALLS = {"cpu": 1000, "cuda": 100}
"""Maximum calls that are timed together; a GPU's queue holds about a thousand before the host blocks."""
_NUM_EMPTY_CALLS = 1001
_SHORTEST_S = 1e-9
_SHORTEST_SLEEP_CYCLES = 2_000_000
"""About a millisecond."""
_LONGEST_SLEEP_S = 0.1
_CYCLES_PER_S = 2e9
"""Clock of a GPU, until its sleep has been timed."""
_QUEUE_FACTOR = 1.5
"""Sleep in multiples of the time that the host took for recent calls."""
_NUM_RECENT = 8
MAX_QUEUED_ATTEMPTS = 3
"""Maximum number of timings of calls that the host cannot queue within the GPU's sleep."""


def calls_per_repeat(call_s: float, device: torch.device) -> int:
    """Return how many calls of a duration are timed together, at least one."""
    return min(_MOST_CALLS[device.type], math.ceil(REPEAT_S / call_s))


class LaunchQueue:
    """Queues calls on the current CUDA stream behind a sleep of the GPU, so that launch latency is not timed.

    The sleep is somewhat longer than the host took for recent calls.
    """

    def __init__(self) -> None:
        self._asleep, self._begun, self._ended = (
            torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
        self._cycles_per_s = _CYCLES_PER_S
        self._recent_s: deque[float] = deque(maxlen=_NUM_RECENT)
        self.num_outlasted = 0
        """Number of last calls in succession that the host had not queued when the GPU woke up: gaps between their
        kernels are timed."""

    def time(self, call: Callable[..., object], *args: Any) -> tuple[float, float]:
        """Return the times (s) of a call by the host's and the device's clock."""
        sleep_s = min(_LONGEST_SLEEP_S, _QUEUE_FACTOR * max(self._recent_s, default=0.0))
        cycles = max(_SHORTEST_SLEEP_CYCLES, round(sleep_s * self._cycles_per_s))
        self._asleep.record()
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        self._begun.record()
        begun = perf_counter_ns()
        call(*args)
        host_s = (perf_counter_ns() - begun) / 1e9
        outlasted = self._begun.query()  # type: ignore[no-untyped-call]
        self._ended.record()
        self._ended.synchronize()
        self._cycles_per_s = cycles / (self._asleep.elapsed_time(self._begun) / 1e3)
        self._recent_s.append(host_s)
        self.num_outlasted = self.num_outlasted + 1 if outlasted else 0
        if self.num_outlasted >= MAX_QUEUED_ATTEMPTS:  # the host itself waits: a longer sleep would only cost time
            self._recent_s.clear()
        return host_s, self._begun.elapsed_time(self._ended) / 1e3

    def time_unqueued(self, call: Callable[..., object], *args: Any) -> tuple[float, float]:
        """Return the times (s) of a call that the device may begin at once."""
        self._begun.record()
        begun = perf_counter_ns()
        call(*args)
        host_s = (perf_counter_ns() - begun) / 1e9
        self._ended.record()
        self._ended.synchronize()
        return host_s, self._begun.elapsed_time(self._ended) / 1e3


@cache
def _queue(device: torch.device) -> LaunchQueue:
    """Return the queue of a device; it is reused, since it has learned how long a sleep needs to be."""
    return LaunchQueue()


def time_together(run: Callable[[], object], num_calls: int, device: torch.device, *, queued: bool = True) -> Times:
    """Return the times of one call (s), averaged over `num_calls` that `run` makes.

    If the host does not queue the calls within the GPU's sleep, `run` is repeated after a longer one. If it never does,
    because a call waits for the device or there are too many launches for the driver's queue, the calls are timed
    without a sleep, too, and the shorter time counts.

    A GPU, which is the current device, is timed by two events. `queued`: whether all calls are queued before it starts
    the first, so that launch latency is not timed.
    """
    if device.type != "cuda":
        begun = perf_counter_ns()
        run()
        return (perf_counter_ns() - begun) / 1e9 / num_calls, None
    queue = _queue(device)
    if not queued:
        host_s, device_s = queue.time_unqueued(run)
        return host_s / num_calls, device_s / num_calls
    for _ in range(MAX_QUEUED_ATTEMPTS):
        host_s, device_s = queue.time(run)
        if not queue.num_outlasted:
            return host_s / num_calls, device_s / num_calls
    host_s, unqueued_s = queue.time_unqueued(run)
    return host_s / num_calls, min(device_s, unqueued_s) / num_calls


class HostClock:
    """The host's monotonic clock.

    *Error*: the median time of an empty call, including Python's call overhead, is subtracted. The resolution is 1 ns;
    reading the clock varies by about 10 ns.
    """

    outlasted = False
    """Whether the host outlasted a GPU's sleep since this was last set to False: then launch latency was timed."""

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
        self._queue = LaunchQueue()
        super().__init__()

    def time(self, call: Callable[..., Any], *args: Any) -> Times:
        """Return the times of one call (s); the call is queued before its first kernel starts."""
        host_s, device_s = self._queue.time(call, *args)
        self.outlasted |= self._queue.num_outlasted > 0
        return max(_SHORTEST_S, host_s - self._own_s[0]), max(_SHORTEST_S, device_s - self._own_s[1])


def clock_for(device: torch.device) -> HostClock:
    """Return the clock for a device."""
    return CudaClock() if device.type == "cuda" else HostClock()


def queued(clock: HostClock, measure: Callable[[], Measured]) -> Measured:
    """Return the result of `measure`, which times calls with `clock`.

    Repeat it, up to 3 times in total, if the host did not queue the calls within the GPU's sleep.
    """
    for _ in range(MAX_QUEUED_ATTEMPTS):
        clock.outlasted = False
        result = measure()
        if not clock.outlasted:
            break
    return result


def seconds(times: Times) -> float:
    """Return the device's time if there is one, else the host's."""
    host_s, device_s = times
    return host_s if device_s is None else device_s


def by_clock(times: Times) -> dict[str, float | None]:
    """Return times in the format of records: `host_s` and `device_s`."""
    return dict(zip(("host_s", "device_s"), times, strict=True))


def _nothing(_: Any) -> None:
    pass
