"""Device of a profiled program, and its times, from events recorded at the ends of slices."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from charact.measure.script.spans.recorder import Slice

if TYPE_CHECKING:
    import torch

_WITH_INDICES = ("cuda", "xpu")


def program_device() -> "torch.device | None":
    """Return the accelerator that holds the most bytes of tensors; it need not be the current device.

    None if no accelerator holds a tensor. The function initializes no accelerator.
    """
    import torch

    held_bytes: dict[torch.device, int] = {}
    for name in _WITH_INDICES:
        module = getattr(torch, name)
        if module.is_initialized():
            held_bytes |= {torch.device(name, index): module.memory_allocated(index)
                           for index in range(module.device_count())}
    if torch.backends.mps.is_available():
        held_bytes[torch.device("mps")] = torch.mps.current_allocated_memory()
    device = max(held_bytes, key=held_bytes.__getitem__, default=None)
    return device if device is not None and held_bytes[device] else None


def device_name(device: "torch.device") -> str | None:
    """Return the name of a device, such as NVIDIA H200; None if PyTorch does not report it."""
    import torch

    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return None if name is None else str(name(device))


def is_capturing(device: "torch.device") -> bool:
    """Return whether the program captures a CUDA graph: recording or querying events would make the capture fail."""
    import torch

    return bool(getattr(torch.get_device_module(device), "is_current_stream_capturing", lambda: False)())


class DeviceClock:
    """Clock that returns the times of a device's events, in nanoseconds since `base_ns`.

    The clock sums the times from each event to the next, because PyTorch returns elapsed times as 32-bit floats, which
    lose precision over long times. Events are used again once their times have been read.

    Raises:
        RuntimeError: PyTorch has no timed events for the device.
    """

    def __init__(self, device: "torch.device", base_ns: int = 0) -> None:
        import torch

        self.device = device
        module = torch.get_device_module(device)
        self._event_class = getattr(module, "Event", None)
        if self._event_class is None:
            raise RuntimeError(f"torch.{device.type} has no events")
        self._current_stream: Callable[[Any], Any] | None = getattr(module, "current_stream", None)
        self.is_capturing: Callable[[], bool] = getattr(module, "is_current_stream_capturing", lambda: False)
        """See `is_capturing`."""
        self._free: list[Any] = []
        self._base, self.base_ns = self.new_event(), base_ns
        """The last event whose time was read, and its time."""

    def new_event(self) -> Any:
        """Record an event on the device's current stream and return it; None while a graph is captured."""
        if self.is_capturing():
            return None
        event = self._free.pop() if self._free else self._event_class(enable_timing=True)  # type: ignore[misc]
        if self._current_stream is None:
            event.record()
        else:
            event.record(self._current_stream(self.device))
        return event

    def done(self, slices: list[Slice], *, wait: bool) -> tuple[list[Slice], list[Slice]]:
        """Return the slices that the device has finished, and the others."""
        events = [each.end_event for each in slices if each.end_event is not None] if wait else []
        if events:
            events[-1].synchronize()
        passed = 0
        while passed < len(slices) and (slices[passed].end_event is None or slices[passed].end_event.query()):
            passed += 1
        return slices[:passed], slices[passed:]

    def ns(self, event: Any) -> int:
        """Return the time (ns) of a finished event; pass events in the order in which they were recorded."""
        if event is not self._base:
            self.base_ns += round(self._base.elapsed_time(event) * 1e6)
            self._free.append(self._base)
            self._base = event
        return self.base_ns
