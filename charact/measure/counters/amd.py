"""Counters of AMD GPUs, from `torch.cuda` of PyTorch's ROCm build, which calls amdsmi."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from charact.execution.case_outcome import one_line
from charact.measure.counters._support.protocol import Counter, SampledSource, Unavailable

_SCOPE = "the device, with all that runs on it"


def _number(answer: Any) -> float | None:
    return None if isinstance(answer, str) else float(answer)


def _positive(answer: Any) -> float | None:
    return _number(answer) or None


def _memory_used(device: torch.device) -> float:
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free)


# Query and its unit. PyTorch documents milliwatts, but returns amdsmi's watts.
_READS: dict[Counter, tuple[Callable[[torch.device], float | None], float]] = {
    Counter("utilization_frac", "share of time in which the graphics engine was active, over the driver's own window",
            "sampled", _SCOPE): (lambda device: _number(torch.cuda.utilization(device)), 0.01),
    Counter("memory_used_bytes", "memory in use, including the driver's own", "sampled",
            _SCOPE): (_memory_used, 1),
    Counter("power_w", "mean power of the socket over the driver's own window", "sampled",
            _SCOPE): (lambda device: _positive(torch.cuda.power_draw(device)), 1),
    Counter("sm_clock_hz", "clock of the graphics engine, which contains the compute units", "sampled",
            _SCOPE): (lambda device: _positive(torch.cuda.clock_rate(device)), 1e6),
    Counter("temperature_c", "temperature of the GPU's hottest spot", "sampled",
            _SCOPE): (lambda device: _number(torch.cuda.temperature(device)), 1),
}  # fmt: skip


class AmdCounters(SampledSource):
    """amdsmi's values, some ten times a second.

    *Source*: `torch.cuda` and the documentation of AMD's amdsmi.
    """

    name = "amd"
    cost = "a thread that queries the driver some 10 times a second; kernels are not interrupted"
    period_s = 0.1
    counters = tuple(_READS)

    def available(self) -> Unavailable | None:
        """Require PyTorch's ROCm build."""
        if torch.version.hip is None:
            return Unavailable(f"torch {torch.__version__} is built without ROCm",
                               "on an AMD GPU, install a ROCm build")
        return None

    def open(self, device: torch.device) -> "_AmdReading":
        """Return a reading; the first query is the first sample's."""
        return _AmdReading(device)


class _AmdReading:
    """Values of one device; a query that fails once is not repeated."""

    def __init__(self, device: torch.device) -> None:
        self.missing: dict[str, str] = {}
        self._device = device

    def sample(self) -> Mapping[str, float]:
        values = {}
        for counter, (ask, unit) in _READS.items():
            if counter.name in self.missing:
                continue
            try:
                answer = ask(self._device)
            except Exception as error:  # amdsmi is optional, and its errors have no common type
                self.missing[counter.name] = one_line(error)
                continue
            if answer is None:
                self.missing[counter.name] = "amdsmi gives no value here"
            else:
                values[counter.name] = answer * unit
        return values

    def close(self) -> Mapping[str, float]:
        return {}


SOURCE = AmdCounters()
