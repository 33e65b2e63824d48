"""Warming up a GPU: its clocks are low when it was idle, and take 0.3 to 0.5 s of work to rise."""

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

MIN_BUSY_S = 0.4
"""Minimum time of the device's work."""
_MAX_S = 2.0
"""Time limit, after which a measurement begins in any case."""
_BURST_S = 0.05
"""Approximate time between two readings of the clock."""
_NUM_STEADY, _STEADY_FRAC = 3, 0.03
"""A clock is steady if this many readings in succession differ by at most this share."""
_SIDE = 2048


def warm_device(device: torch.device, work: Callable[[], object] | None = None) -> int:
    """Repeat work on a GPU without a pause until its clock is steady, for 0.4 to 2 s; return the number of calls.

    The clock is NVML's, or where it is not available, the number of calls per second.

    On a CPU nothing happens. By default, `work` is a matrix product.
    """
    if device.type != "cuda":
        return 0
    from charact.measure.counters._support.nvml_library import sm_clock_reader

    if work is None:
        # Random numbers: with zeros a GPU draws less power. A generator of its own leaves the program's unchanged.
        generator = torch.Generator(device).manual_seed(0)
        left, right = (torch.randn(_SIDE, _SIDE, device=device, generator=generator) for _ in range(2))
        work = partial(torch.mm, left, right)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begun, busy_s, num_calls, num_in_burst = perf_counter(), 0.0, 0, 1
    readings: list[float] = []
    stream = torch.cuda.current_stream(device)
    with sm_clock_reader(device) as sm_clock_hz:
        while True:
            burst_begun = perf_counter()
            first.record(stream)
            for _ in range(num_in_burst):
                work()
            last.record(stream)
            last.synchronize()
            burst_s = max(1e-6, perf_counter() - burst_begun)
            busy_s += first.elapsed_time(last) / 1e3
            num_calls += num_in_burst
            readings.append(num_in_burst / burst_s if sm_clock_hz is None else sm_clock_hz())
            last_readings = readings[-_NUM_STEADY:]
            is_steady = len(last_readings) == _NUM_STEADY and max(last_readings) <= (1 + _STEADY_FRAC) * min(
                last_readings)
            if (busy_s >= MIN_BUSY_S and is_steady) or perf_counter() - begun >= _MAX_S:
                return num_calls
            num_in_burst = max(1, round(num_in_burst * _BURST_S / burst_s))
