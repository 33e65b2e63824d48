"""Probes: calls with a known amount of work, and their timing."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from charact.execution.precision import float32_products
from charact.measure.microbench.call_timer import seconds, time_together


@dataclass(frozen=True)
class Probe:
    """A call with a known amount of work. Among several probes of a ceiling the fastest counts."""

    ceiling: str
    unit: str
    amount: float
    """FLOP or bytes of a call; 1 if the time of a call is the ceiling."""
    call: Callable[[], object]
    precision: str = "fp32"
    """Precision of float32 products during the call."""
    level: str | None = None
    working_set_bytes: int | None = None
    num_threads: int | None = None
    """Number of threads; None for all."""
    on_host: bool = False
    """Whether the host's time counts for a call on a GPU."""


def call_seconds(probe: Probe, device: torch.device) -> float:
    """Return the approximate time of a call (s): of the second one, since the first selects code and wakes threads."""
    seconds_per_call(probe, device, 1)
    return seconds_per_call(probe, device, 1)


def seconds_per_call(probe: Probe, device: torch.device, num_calls: int) -> float:
    """Return the time of a probe's call (s), averaged over `num_calls`; GPU work by CUDA events."""
    with float32_products(probe.precision), _threads(probe.num_threads):
        times = time_together(lambda: _call(probe, num_calls), num_calls, device, queued=not probe.on_host)
    return times[0] if probe.on_host else seconds(times)


def _call(probe: Probe, num_calls: int) -> None:
    for _ in range(num_calls):
        probe.call()


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
