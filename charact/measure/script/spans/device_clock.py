"""The device's clock of a watched program, by events that are recorded at the ends of slices."""

from typing import Any

from charact.measure.script.spans.recorder import Slice


class DeviceClock:
    """Reads CUDA events as nanoseconds since the first, in a chain: PyTorch tells distances as 32-bit floats."""

    def __init__(self) -> None:
        import torch

        self._event_class = torch.cuda.Event
        self._base = self.new_event()
        self._base_ns = 0

    @classmethod
    def if_at_work(cls) -> "DeviceClock | None":
        """A clock where the program uses CUDA by now; None elsewhere."""
        import torch

        return cls() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def new_event(self) -> Any:
        """An event on the current stream, recorded now."""
        event = self._event_class(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def done(self, slices: list[Slice], *, wait: bool) -> tuple[list[Slice], list[Slice]]:
        """Slices that the device has passed, and those that it has not; with `wait` all are passed."""
        if wait and slices and slices[-1].end_event is not None:
            slices[-1].end_event.synchronize()
        passed = 0
        while passed < len(slices) and (slices[passed].end_event is None or slices[passed].end_event.query()):
            passed += 1
        return slices[:passed], slices[passed:]

    def ns(self, event: Any) -> int:
        """Time of an event that the device has passed; each becomes the base for the next."""
        self._base_ns += round(self._base.elapsed_time(event) * 1e6)
        self._base = event
        return self._base_ns
