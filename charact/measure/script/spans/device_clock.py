"""Device times of a profiled program, from CUDA events recorded at the ends of slices."""

from collections.abc import Callable
from typing import Any

from charact.measure.script.spans.recorder import Slice


class DeviceClock:
    """Clock that returns the times of CUDA events, in nanoseconds since the clock was created.

    The clock sums the times from each event to the next, because PyTorch returns elapsed times as 32-bit floats, which
    lose precision over long times.
    """

    def __init__(self) -> None:
        import torch

        self._event_class = torch.cuda.Event
        self.is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        """Whether the program captures a CUDA graph: recording or querying events would make the capture fail."""
        self._base = self.new_event()
        self._base_ns = 0

    @classmethod
    def if_at_work(cls) -> "DeviceClock | None":
        """Return a clock if the program has initialized CUDA and captures no graph, else None."""
        import torch

        at_work = torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
        return cls() if at_work else None

    def new_event(self) -> Any:
        """Record an event on the current stream and return it; None while a graph is captured."""
        if self.is_capturing():
            return None
        event = self._event_class(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def done(self, slices: list[Slice], *, wait: bool) -> tuple[list[Slice], list[Slice]]:
        """Return the slices that the device has finished, and the others.

        Args:
            slices: in order of time.
            wait: whether to wait for the end of the last slice first.
        """
        events = [one.end_event for one in slices if one.end_event is not None] if wait else []
        if events:
            events[-1].synchronize()
        passed = 0
        while passed < len(slices) and (slices[passed].end_event is None or slices[passed].end_event.query()):
            passed += 1
        return slices[:passed], slices[passed:]

    def ns(self, event: Any) -> int:
        """Return the time (ns) of a finished event; pass events in the order in which they were recorded."""
        self._base_ns += round(self._base.elapsed_time(event) * 1e6)
        self._base = event
        return self._base_ns
