"""Clock of the inspection pass: the host's, and on a GPU also the device's."""

from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch

from charact.measure.script.spans.device_clock import is_capturing


@dataclass(frozen=True, order=True)
class Moment:
    """A time on the host, and the event recorded on the device at that time; None on a CPU."""

    host_ns: int
    event: Any = field(default=None, compare=False)


class Clock:
    """Records moments, and computes the time between them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Moment:
        """Return the current moment."""
        if self._device.type != "cuda" or is_capturing(self._device):
            return Moment(perf_counter_ns())
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return Moment(perf_counter_ns(), event)

    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the time (s) between two moments: on the device if both have an event, else on the host."""
        if start.event is None or end.event is None:
            return (end.host_ns - start.host_ns) / 1e9
        end.event.synchronize()
        return float(start.event.elapsed_time(end.event)) / 1e3
