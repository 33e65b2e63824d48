"""A call of known work, and how long it takes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from charact.execution.precision import float32_products

_SLEEP_CYCLES = 2_000_000
"""A GPU waits so long, about a millisecond, before its calls, which are queued meanwhile: no launch is waited for."""


@dataclass(frozen=True)
class Probe:
    """A call of known work. Of several for one ceiling the fastest counts."""

    ceiling: str
    unit: str
    amount: float
    """FLOP or bytes of a call; 1 where the time of a call is itself the ceiling."""
    call: Callable[[], object]
    precision: str = "fp32"
    """What float32 products are rounded to meanwhile."""
    level: str | None = None
    working_set_bytes: int | None = None
    num_threads: int | None = None
    """Threads that work on it; None for all."""
    on_host: bool = False
    """Whether the host's time counts where the call is for a GPU."""


def call_seconds(probe: Probe, device: torch.device) -> float:
    """About how long a call takes, the second one: at the first, libraries choose their code and wake their threads."""
    seconds_per_call(probe, device, 1)
    return seconds_per_call(probe, device, 1)


def seconds_per_call(probe: Probe, device: torch.device, num_calls: int) -> float:
    """Time of a probe's call, mean over some; of a GPU's work on its own clock."""
    with float32_products(probe.precision), _threads(probe.num_threads):
        if device.type == "cuda" and not probe.on_host:
            return _device_seconds(probe, num_calls)
        begun = time.perf_counter()
        for _ in range(num_calls):
            probe.call()
        ended = time.perf_counter()
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # else its queue fills up
        return (ended - begun) / num_calls


def _device_seconds(probe: Probe, num_calls: int) -> float:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
    begun.record()
    for _ in range(num_calls):
        probe.call()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3 / num_calls


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
