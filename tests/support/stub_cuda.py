"""A GPU that does not exist: the functions of `torch.cuda` that timing uses, on virtual clocks of host and device.

Kernels run one after another, each as soon as the one before has ended and the host has launched it.
"""

from typing import Any

import pytest
import torch


class StubGpu:
    """Virtual clocks, in seconds since the stub was made.

    Args:
        monkeypatch: replaces functions of `torch.cuda` until the test ends.
        clocks: modules whose functions `perf_counter_ns` and `perf_counter` are replaced.
        hz: clock of the device, by which it sleeps.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *clocks: str, hz: float = 2e9) -> None:
        self.host_s = 0.0
        self.device_s = 0.0
        """When the device has done all that was launched."""
        self.busy_s = 0.0
        """Time of all kernels."""
        self.num_events = 0
        self.num_launches = 0
        self.hz = hz
        self.slow_until_s = 0.0
        """Busy time until which kernels take four times as long: clocks rise under load."""
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                gpu.num_events += 1
                self.at_s: float | None = None

            def record(self, stream: Any = None) -> None:
                self.at_s = max(gpu.host_s, gpu.device_s)

            def query(self) -> bool:
                assert self.at_s is not None
                return gpu.host_s >= self.at_s

            def synchronize(self) -> None:
                assert self.at_s is not None
                gpu.host_s = max(gpu.host_s, self.at_s)

            def elapsed_time(self, end: "Event") -> float:
                assert self.at_s is not None
                assert end.at_s is not None
                assert end.query(), "read before the device has passed it"
                return (end.at_s - self.at_s) * 1e3

        for name, value in {
            "Event": Event, "_sleep": lambda cycles: self.launch(cycles / self.hz), "synchronize": self.synchronize,
            "is_initialized": lambda: True, "current_stream": lambda device=None: "stream",
            "is_current_stream_capturing": lambda: False, "current_device": lambda: 0, "device_count": lambda: 1,
            "memory_allocated": lambda device=None: 1,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        for module in clocks:
            monkeypatch.setattr(f"{module}.perf_counter_ns", self.perf_counter_ns, raising=False)
            monkeypatch.setattr(f"{module}.perf_counter", self.perf_counter, raising=False)

    def launch(self, device_s: float, host_s: float = 0.0) -> None:
        """Launch a kernel: the host takes `host_s` for it, and the device `device_s`."""
        self.num_launches += 1
        self.host_s += host_s
        device_s *= 4 if self.busy_s < self.slow_until_s else 1
        self.device_s = max(self.device_s, self.host_s) + device_s
        self.busy_s += device_s

    def synchronize(self, device: object = None) -> None:
        self.host_s = max(self.host_s, self.device_s)

    def perf_counter_ns(self) -> int:
        return round(self.host_s * 1e9)

    def perf_counter(self) -> float:
        return self.host_s
