"""What AMD's driver tells of a GPU through PyTorch's ROCm build, which asks amdsmi."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from charact.execution.case_outcome import one_line
from charact.measure.counters._support.protocol import Counter, Refusal

_SCOPE = "the device, with all that runs on it"


def _number(answer: Any) -> float | None:
    """An answer of amdsmi, which says `N/A` where there is none."""
    return None if isinstance(answer, str) else float(answer)


def _positive(answer: Any) -> float | None:
    """The same where PyTorch makes 0 of `N/A`."""
    return _number(answer) or None


def _memory_used(device: torch.device) -> float:
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free)


# How to ask, what the answer's unit is worth. PyTorch hands on amdsmi's watts, though it documents milliwatts.
_READS: dict[Counter, tuple[Callable[[torch.device], float | None], float]] = {
    Counter("utilization_frac", "share of time in which the graphics engine was active, over the driver's own window",
            "sampled", _SCOPE): (lambda device: _number(torch.cuda.utilization(device)), 0.01),
    Counter("memory_used_bytes", "memory that is taken, with what the driver keeps for itself", "sampled",
            _SCOPE): (_memory_used, 1),
    Counter("power_w", "power of the socket, in the mean over the driver's own window", "sampled",
            _SCOPE): (lambda device: _positive(torch.cuda.power_draw(device)), 1),
    Counter("sm_clock_hz", "clock of the graphics engine, whose compute units AMD's multiprocessors are", "sampled",
            _SCOPE): (lambda device: _positive(torch.cuda.clock_rate(device)), 1e6),
    Counter("temperature_c", "temperature of the GPU's hottest spot", "sampled",
            _SCOPE): (lambda device: _number(torch.cuda.temperature(device)), 1),
}  # fmt: skip


class AmdCounters:
    """Amdsmi's answers, some ten times a second.

    *Source*: `torch.cuda` and the documentation of AMD's amdsmi.
    """

    name = "amd"
    cost = "a thread that asks the driver some 10 times a second; kernels run on"
    devices = frozenset({"cuda"})
    reads: Literal["device"] = "device"
    taken: Literal["along"] = "along"
    period_s = 0.1
    counters = tuple(_READS)

    def available(self) -> Refusal | None:
        """Only in a build of PyTorch for AMD's devices."""
        if torch.version.hip is None:
            return Refusal(f"torch {torch.__version__} is built without ROCm", "on an AMD GPU, install a ROCm build")
        return None

    def open(self, device: torch.device) -> "_AmdReading":
        """Nothing is asked before the first sample."""
        return _AmdReading(device)


class _AmdReading:
    """Answers of one device; what it refuses once is asked no more."""

    def __init__(self, device: torch.device) -> None:
        self.missing: dict[str, str] = {}
        self._device = device

    def sample(self) -> Mapping[str, float]:
        """What amdsmi answers now."""
        values = {}
        for counter, (ask, unit) in _READS.items():
            if counter.name in self.missing:
                continue
            try:
                answer = ask(self._device)
            except Exception as error:  # amdsmi is optional, and what it raises is of no common type
                self.missing[counter.name] = one_line(error)
                continue
            if answer is None:
                self.missing[counter.name] = "amdsmi gives no value here"
            else:
                values[counter.name] = answer * unit
        return values

    def close(self) -> Mapping[str, float]:
        """Nothing is counted over the whole stretch."""
        return {}


SOURCE = AmdCounters()
