"""Sampling: the device's clock is far from the host's, its first sample is wrong, and one in the middle, too."""

import enum
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from cupti import cupti, profiler_host

OFFSET_NS = 7_000_000_000_000
OCCUPANCY = {"aten.mm.default": 25.0}
"""Percent, of an operator while it runs; of all others 75."""
BYTES = 1000.0
"""That each operator moves."""
_enabled_before = False


class TriggerMode(enum.IntEnum):
    GPU_SYSCLK_INTERVAL = 0
    GPU_TIME_INTERVAL = 1


class HardwareBufferAppendMode(enum.IntEnum):
    KEEP_OLDEST = 0
    KEEP_LATEST = 1


@dataclass(frozen=True)
class Sample:
    start_timestamp: int
    end_timestamp: int
    metric_values: list[float]


class CounterData:
    def __init__(self, samples: Sequence[Sample], metrics: Sequence[str]) -> None:
        self.metrics = list(metrics)
        self.num_completed_samples = len(samples)
        self._samples = samples

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)


class _Work(TorchDispatchMode):
    """When operators ran that compute something, by the host's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[int, int, str]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begun_ns = time.perf_counter_ns()
        outputs = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.spans.append((begun_ns, time.perf_counter_ns(), str(function)))
        return outputs


class Collector:
    def __init__(self, device_index: int = 0) -> None:
        self._state = "new"

    def enable(self) -> None:
        global _enabled_before
        failure = os.environ.get("STUB_CUPTI")
        if failure == "permission":
            raise PermissionError("Insufficient privileges for PM sampling: See https://developer.nvidia.com/")
        if failure == "enabled":
            raise RuntimeError("PM sampling is already enabled on this device.")
        if failure == "libraries":
            raise RuntimeError("CUPTI could not load the nvperf* libraries required for profiling. Ensure that they")
        assert not _enabled_before, "a second time ends the process"
        _enabled_before = cupti.is_initialized = True
        self._state = "enabled"

    def configure(self, *, metrics: list[str], hardware_buffer_size: int = 512 * 1024 * 1024,
                  sampling_interval: int = 10000, trigger_mode: TriggerMode = TriggerMode.GPU_TIME_INTERVAL,
                  hw_buffer_append_mode: HardwareBufferAppendMode = HardwareBufferAppendMode.KEEP_OLDEST,
                  single_pass_metric_set_name: str | None = None) -> None:
        if self._state not in ("enabled", "stopped"):
            raise RuntimeError(f"configured while {self._state}")
        old = os.environ.get("STUB_CUPTI") == "old" and trigger_mode == TriggerMode.GPU_TIME_INTERVAL
        if old or profiler_host.get_num_of_passes(metrics) > 1:
            raise ValueError("Requested PM sampling configuration is not supported. This may mean that")
        self._metrics, self._interval_ns, self._state = metrics, sampling_interval, "configured"

    def start(self) -> None:
        assert self._state == "configured", self._state
        self._work = _Work()
        self._begun_ns = time.perf_counter_ns()
        self._work.__enter__()
        self._state = "started"

    def stop(self) -> None:
        assert self._state == "started", self._state
        self._work.__exit__(None, None, None)
        self._ended_ns = time.perf_counter_ns()
        self._state = "stopped"

    def decode(self, max_samples: int = 10000) -> CounterData:
        assert self._state == "stopped", self._state
        starts = range(self._begun_ns, self._ended_ns, self._interval_ns)
        samples = [self._sample(start_ns) for start_ns in starts[:max_samples]]
        wrong = [Sample(0, 2**40, [1.0] * len(self._metrics)), Sample(9 * OFFSET_NS, 3, [1.0] * len(self._metrics))]
        if os.environ.get("STUB_CUPTI") == "empty":
            samples = []
        return CounterData([wrong[0], *samples[:5], wrong[1], *samples[5:]], self._metrics)

    def disable(self) -> None:
        self._state = "disabled"

    def _sample(self, start_ns: int) -> Sample:
        end_ns = start_ns + self._interval_ns
        inside = [(min(end, end_ns) - max(start, start_ns), end - start, name) for start, end, name in self._work.spans
                  if start < end_ns and end > start_ns]
        busy_ns = sum(part for part, _, _ in inside)
        occupied = sum(part * OCCUPANCY.get(name, 75.0) for part, _, name in inside)
        values = {
            "sm__cycles_active.sum": float(busy_ns), "sm__inst_executed_realtime.sum": busy_ns / 10,
            "sm__warps_active.avg.pct_of_peak_sustained_active": occupied / busy_ns if busy_ns else math.nan,
            "sm__average_thread_inst_executed_pred_on_per_inst_executed_realtime.ratio":
                28.0 if busy_ns else math.nan,
            "dram__throughput.avg.pct_of_peak_sustained_elapsed": 100.0 * busy_ns / self._interval_ns,
            "dram__bytes.sum": sum(BYTES * part / length for part, length, _ in inside if length),
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 0.0,
        }
        return Sample(start_ns + OFFSET_NS, end_ns + OFFSET_NS, [values[name] for name in self._metrics])
