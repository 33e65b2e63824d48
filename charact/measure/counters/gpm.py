"""Counters of NVML's GPU performance monitoring (GPM), from Hopper on: use of multiprocessors, memory and pipelines."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import pynvml
import torch

from charact.measure.counters._support.nvml_library import Gpu, UuidOf, find_gpu, nvml_errors, started, torch_uuid
from charact.measure.counters._support.protocol import ADMIN_ONLY, Counter, SampledSource, Unavailable, UnavailableError

MIN_WINDOW_S = 0.1
"""Shortest time in seconds between two GPM snapshots, according to NVML's documentation."""

LAG_S = 0.15
"""Time in seconds after which GPM's counters show work: of a load of 1.2 s on an H200, a snapshot at its end
counted 1.04 s, one 0.5 s after its end 1.18 s."""
_SCOPE = "the GPU, or the MIG instance, with all that runs on it"
_PERCENT, _MIB_PER_S = 0.01, 2.0**20

# Counter, GPM's metric, its unit, definition.
_METRICS = (
    ("utilization_frac", pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, _PERCENT,
     "share of time in which the compute or graphics engine was active"),
    ("sm_utilization_frac", pynvml.NVML_GPM_METRIC_SM_UTIL, _PERCENT,
     "mean share of busy multiprocessors over time"),
    ("sm_occupancy_frac", pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, _PERCENT,
     "active warps over those that all multiprocessors could hold, idle time included"),
    ("bandwidth_utilization_frac", pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, _PERCENT,
     "traffic of the device's memory over its theoretical maximum"),
    *((name, metric, _PERCENT, f"share of time in which the {pipe} pipes were busy, mean over multiprocessors")
      for name, metric, pipe in (
          ("tensor_pipe_frac", pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, "tensor"),
          ("fp64_pipe_frac", pynvml.NVML_GPM_METRIC_FP64_UTIL, "fp64"),
          ("fp32_pipe_frac", pynvml.NVML_GPM_METRIC_FP32_UTIL, "fp32"),
          ("fp16_pipe_frac", pynvml.NVML_GPM_METRIC_FP16_UTIL, "fp16"))),
    ("pcie_sent_bytes_per_s", pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, _MIB_PER_S, "data that the GPU sends over PCIe"),
    ("pcie_received_bytes_per_s", pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, _MIB_PER_S,
     "data that the GPU receives over PCIe"),
    ("nvlink_sent_bytes_per_s", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, _MIB_PER_S,
     "data that the GPU sends over all its NVLinks"),
    ("nvlink_received_bytes_per_s", pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, _MIB_PER_S,
     "data that the GPU receives over all its NVLinks"),
)
_OCCUPANCY = Counter(
    "warp_occupancy_frac", "sm_occupancy_frac over sm_utilization_frac: active warps over those that the busy "
    "multiprocessors could hold; assumes that sm_occupancy_frac includes idle ones", "estimated", _SCOPE)


class GpmCounters(SampledSource):
    """GPM metrics between consecutive snapshots, and between the first and the last.

    The first snapshot is that of the first sample `LAG_S` or more after the start: an earlier one would still show work
    from before the start. The values of the whole are therefore those until `LAG_S` before the end.

    *Error*: a sample shows the device as it was `LAG_S` before the sample's time.

    *Source*: nvml.h of NVIDIA's driver; `LAG_S` was measured.
    """

    name = "gpm"
    cost = "a thread that takes 8 snapshots a second of the GPU's counters; kernels are not interrupted"
    tried_on = "NVIDIA H200"
    period_s = 0.125
    counters = (*(Counter(name, definition, "sampled", _SCOPE) for name, _, _, definition in _METRICS), _OCCUPANCY)

    def __init__(self, uuid_of: UuidOf = torch_uuid) -> None:
        self._uuid_of = uuid_of

    def available(self) -> Unavailable | None:
        """Require NVIDIA's driver and a GPU with GPM."""
        try:
            with started():
                supported = any(map(_is_supported_at, range(pynvml.nvmlDeviceGetCount())))
        except UnavailableError as error:
            return error.unavailable
        return None if supported else Unavailable("no GPU here has GPM: Hopper and later do")

    def open(self, device: torch.device) -> "_GpmReading":
        """Find the device, and try whether it gives snapshots."""
        with started() as resources:
            gpu = find_gpu(self._uuid_of(device))
            if not _is_supported(gpu.handle):
                raise UnavailableError("this GPU has no GPM: Hopper and later do")
            return _GpmReading(gpu, resources)


class _GpmReading:
    """Three snapshots: the first, and two that alternate as the last one."""

    def __init__(self, gpu: Gpu, resources: contextlib.ExitStack) -> None:
        self.missing: dict[str, str] = {}
        self._gpu = gpu
        self._instance_id = None if gpu.instance is None else pynvml.nvmlDeviceGetGpuInstanceId(gpu.instance)
        self._first, self._last, self._next = (_Snapshot(resources) for _ in range(3))
        self._begin()
        self._opened_s, self._lags = self._first.time_s, True
        self._resources = resources.pop_all()

    def _begin(self) -> None:
        for snapshot in self._first, self._last:
            self._take(snapshot)

    def sample(self) -> Mapping[str, float]:
        """Return metrics since the last sample; none if the interval is too short, or GPM shows the time before."""
        with nvml_errors():
            if self._lags:
                if time.perf_counter() - self._opened_s >= LAG_S:
                    self._begin()
                    self._lags = False
                return {}
            self._take(self._next)
            if self._next.time_s - self._last.time_s < MIN_WINDOW_S:
                return {}
            values, _ = _metrics(self._last, self._next)
        self._last, self._next = self._next, self._last
        return values

    def close(self) -> Mapping[str, float]:
        with nvml_errors(), self._resources:
            self._take(self._next)
            if self._lags or self._next.time_s - self._first.time_s < MIN_WINDOW_S:
                reason = (f"the pass was too short: GPM shows work {LAG_S} s later, over intervals of at least "
                          f"{MIN_WINDOW_S} s")
                self.missing |= {counter.name: reason for counter in GpmCounters.counters}
                return {}
            values, missing = _metrics(self._first, self._next)
            self.missing |= missing
            return values

    def _take(self, snapshot: "_Snapshot") -> None:
        try:
            if self._instance_id is None:
                pynvml.nvmlGpmSampleGet(self._gpu.handle, snapshot.buffer)
            else:
                pynvml.nvmlGpmMigSampleGet(self._gpu.handle, self._instance_id, snapshot.buffer)
        except pynvml.NVMLError_NoPermission as error:
            raise UnavailableError(ADMIN_ONLY) from error
        snapshot.time_s = time.perf_counter()


class _Snapshot:
    """A buffer of NVML, and the time at which it was filled."""

    def __init__(self, resources: contextlib.ExitStack) -> None:
        self.buffer = pynvml.nvmlGpmSampleAlloc()
        resources.callback(pynvml.nvmlGpmSampleFree, self.buffer)
        self.time_s = 0.0


def _metrics(begin: _Snapshot, end: _Snapshot) -> tuple[dict[str, float], dict[str, str]]:
    """Return counters between two snapshots, and the reasons of those that GPM does not give."""
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(_METRICS)
    asked.sample1, asked.sample2 = begin.buffer, end.buffer
    for index, (_, metric, _, _) in enumerate(_METRICS):
        asked.metrics[index].metricId = metric
    pynvml.nvmlGpmMetricsGet(asked)
    values, missing = {}, {}
    for index, (name, _, unit, _) in enumerate(_METRICS):
        answer = asked.metrics[index]
        if answer.nvmlReturn == pynvml.NVML_SUCCESS:
            values[name] = answer.value * unit
        else:
            missing[name] = f"NVML: {pynvml.NVMLError(answer.nvmlReturn)}"
    busy, active = values.get("sm_utilization_frac"), values.get("sm_occupancy_frac")
    if busy and active is not None:
        values[_OCCUPANCY.name] = active / busy
    else:
        missing[_OCCUPANCY.name] = ("no multiprocessor was busy" if busy == 0
                                    else "needs sm_occupancy_frac and sm_utilization_frac")
    return values, missing


def _is_supported(gpu: Any) -> bool:
    return bool(pynvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice)


def _is_supported_at(index: int) -> bool:
    try:
        return _is_supported(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError:  # an older driver, or a GPU that this user may not use
        return False


SOURCE = GpmCounters()
