"""Counters of NVIDIA's driver through NVML: power, energy, clocks, throttling, memory, temperature, PCIe."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pynvml
import torch

from charact.measure.counters._support.nvml_library import (
    Gpu,
    UuidOf,
    find_gpu,
    is_lasting,
    nvml_errors,
    started,
    torch_uuid,
)
from charact.measure.counters._support.protocol import Counter, SampledSource, Unavailable, UnavailableError

_WHOLE = "the whole GPU, with all that runs on it"
_WHOLE_GPU_ONLY = "NVML reports it for the whole GPU only, and the case runs on a MIG instance"

_POWER = pynvml.nvmlClocksEventReasonSwPowerCap
_THERMAL = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
_HARDWARE = pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
_THROTTLES = {
    "throttled_frac": ("for power, for heat or by the board", _POWER | _THERMAL | _HARDWARE),
    "throttled_power_frac": ("to stay within the power limit", _POWER),
    "throttled_thermal_frac": ("since the GPU was too hot", _THERMAL),
    "throttled_hardware_frac": ("by the board: too hot, too much power, or its power brake", _HARDWARE),
}


@dataclass(frozen=True)
class _Read:
    """One query of NVML, and its counters."""

    counters: tuple[Counter, ...]
    ask: Callable[[Any], tuple[float, ...]]
    of: Literal["instance", "gpu", "nobody"]
    """Handle to query on a MIG instance: the instance; the GPU, if the value also holds for its instances; or none, if
    the value covers all instances together."""

    def whom(self, gpu: Gpu) -> Any:
        if gpu.instance is None:
            return gpu.handle
        return {"instance": gpu.instance, "gpu": gpu.handle, "nobody": None}[self.of]


def _newest(*names: str) -> Callable[..., Any]:
    """Return a function that calls the first of these functions, newest first, that binding and driver have."""
    functions = [getattr(pynvml, name) for name in names if hasattr(pynvml, name)]

    def call(*arguments: Any) -> Any:
        for function in functions[:-1]:
            with contextlib.suppress(pynvml.NVMLError_FunctionNotFound):
                return function(*arguments)
        return functions[-1](*arguments)

    return call


_reasons = _newest("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_temperature = _newest("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")


def _memory_used(gpu: Any) -> tuple[float, ...]:
    """Return the memory in use (bytes), by the second version of the query where both know it.

    The first counts what the driver reserves for itself, 615 MiB on an H200, which CUDA's total and free leave out.
    """
    try:
        return (float(pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used),)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported,
            pynvml.NVMLError_ArgumentVersionMismatch):
        return (float(pynvml.nvmlDeviceGetMemoryInfo(gpu).used),)


def _throttles(gpu: Any) -> tuple[float, ...]:
    reasons = _reasons(gpu)
    return tuple(float(bool(reasons & mask)) for _, mask in _THROTTLES.values())


_READS = (
    _Read((Counter("utilization_frac", "share of time in which any kernel ran, over the driver's own window of 1/6 to "
                   "1 s", "sampled", _WHOLE),),
          lambda gpu: (pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,), "nobody"),
    _Read((Counter("memory_used_bytes", "memory in use, contexts included; drivers before 510 add what they reserve",
                   "sampled", "the device, with all that runs on it"),), _memory_used, "instance"),
    _Read((Counter("power_w", "power of the GPU with its memory: over the pass energy_j over time, where there is a "
                   "meter; a sample is, from Ampere on except GA100, the mean of the last second", "sampled", _WHOLE),),
          lambda gpu: (pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,), "nobody"),
    _Read((Counter("sm_clock_hz", "clock of the multiprocessors", "sampled", "the whole GPU"),
           Counter("memory_clock_hz", "clock of the memory", "sampled", "the whole GPU")),
          lambda gpu: tuple(pynvml.nvmlDeviceGetClockInfo(gpu, clock) * 1e6
                            for clock in (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)), "gpu"),
    _Read(tuple(Counter(name, f"share of the samples at which clocks were held down {why}", "sampled", "the whole GPU")
                for name, (why, _) in _THROTTLES.items()), _throttles, "gpu"),
    _Read((Counter("temperature_c", "temperature of the GPU's die", "sampled", "the whole GPU"),),
          lambda gpu: (float(_temperature(gpu, pynvml.NVML_TEMPERATURE_GPU)),), "gpu"),
    _Read((Counter("pcie_sent_bytes_per_s", "data that the GPU sends over PCIe, over 20 ms", "sampled", _WHOLE),
           Counter("pcie_received_bytes_per_s", "data that the GPU receives over PCIe, over 20 ms", "sampled", _WHOLE)),
          lambda gpu: tuple(pynvml.nvmlDeviceGetPcieThroughput(gpu, way) * 1e3
                            for way in (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)), "nobody"),
)  # fmt: skip


class NvmlCounters(SampledSource):
    """NVML's values, some ten times a second, and the energy of the whole pass.

    *Error*: NVML takes 20 ms for each direction of PCIe, so the energy meter may be read up to 40 ms after the pass.
    The driver updates the meter in steps.

    *Source*: nvml.h of NVIDIA's driver.
    """

    name = "nvml"
    cost = "a thread that queries the driver some 10 times a second; kernels are not interrupted"
    tried_on = "NVIDIA H200"
    period_s = 0.05
    counters = (
        *(counter for read in _READS for counter in read.counters),
        Counter("energy_j", "energy of the GPU with its memory over the pass: the difference of its meter's readings",
                "measured", _WHOLE),
    )

    def __init__(self, uuid_of: UuidOf = torch_uuid) -> None:
        self._uuid_of = uuid_of

    def available(self) -> Unavailable | None:
        """Require NVIDIA's driver and a GPU."""
        try:
            with started():
                return None if pynvml.nvmlDeviceGetCount() else Unavailable("NVIDIA's driver finds no GPU")
        except UnavailableError as error:
            return error.unavailable

    def open(self, device: torch.device) -> "_NvmlReading":
        """Find the device and read its energy meter."""
        with started() as resources:
            return _NvmlReading(find_gpu(self._uuid_of(device)), resources)


class _NvmlReading:
    """Values of one GPU; a query that fails once is not repeated."""

    def __init__(self, gpu: Gpu, resources: contextlib.ExitStack) -> None:
        self.missing: dict[str, str] = {}
        self._gpu = gpu
        self._asked = []
        for read in _READS:
            if read.whom(gpu) is None:
                self._miss(read, _WHOLE_GPU_ONLY)
            else:
                self._asked.append(read)
        self._begin_j, self._begun_s = self._energy_j(), time.perf_counter()
        self._resources = resources.pop_all()

    def sample(self) -> Mapping[str, float]:
        values: dict[str, float] = {}
        with nvml_errors():
            for read in list(self._asked):
                try:
                    answer = read.ask(read.whom(self._gpu))
                except pynvml.NVMLError as error:
                    if is_lasting(error):
                        raise
                    self._asked.remove(read)
                    self._miss(read, f"NVML: {error}")
                else:
                    values |= zip((counter.name for counter in read.counters), answer, strict=True)
        return values

    def close(self) -> Mapping[str, float]:
        """Return the energy of the pass, and the mean power from it.

        The mean of the samples would cover more than the pass: each sample is a mean over the previous second.
        """
        with nvml_errors(), self._resources:
            if self._begin_j is None:
                return {}
            energy_j = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu.handle) / 1e3 - self._begin_j
            if energy_j <= 0:
                self.missing["energy_j"] = "the pass is too short: the driver did not update its energy meter"
                return {}
            return {"energy_j": energy_j, "power_w": energy_j / (time.perf_counter() - self._begun_s)}

    def _energy_j(self) -> float | None:
        if self._gpu.instance is not None:
            self.missing["energy_j"] = _WHOLE_GPU_ONLY
            return None
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu.handle)) / 1e3
        except pynvml.NVMLError as error:
            if is_lasting(error):
                raise
            self.missing["energy_j"] = f"NVML: {error} (GPUs have the meter from Volta on)"
            return None

    def _miss(self, read: _Read, reason: str) -> None:
        self.missing |= {counter.name: reason for counter in read.counters}


SOURCE = NvmlCounters()
