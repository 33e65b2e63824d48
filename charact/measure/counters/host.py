"""What the operating system counts for the process: resident memory, processor time, page faults, switches."""

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from charact.hardware import usable_cores
from charact.measure.counters import Counter, Refusal

_STATUS = Path("/proc/self/status")
_CHANGES = {
    "num_minor_page_faults": ("page faults served without reading a disk, most of them first touches of fresh memory",
                              "ru_minflt"),
    "num_major_page_faults": ("page faults that had to read a disk", "ru_majflt"),
    "num_voluntary_context_switches": ("times a thread gave up its core to wait", "ru_nvcsw"),
    "num_involuntary_context_switches": ("times a thread was taken off its core", "ru_nivcsw"),
}


@dataclass(frozen=True)
class _Reading:
    time_s: float
    cpu_s: float
    changes: dict[str, int]


class HostCounters:
    """What the operating system counts for all threads of the process; no thread of its own.

    Data-loader workers are processes of their own and not counted.
    """

    name = "host"
    cost = "two system calls and a read of /proc, before the first iteration and after the last"
    devices = frozenset({"cpu", "cuda"})
    reads: Literal["host"] = "host"
    taken: Literal["along"] = "along"
    period_s = None
    counters = (
        Counter("rss_bytes", "resident memory of the process when the pass ends", "measured", "process"),
        Counter("peak_rss_bytes", "largest resident memory of the process since it began, not only in this pass",
                "measured", "process"),
        Counter("cpu_utilization_frac", "processor time of the process over wall time times usable cores",
                "measured", "process"),
        *(Counter(name, f"{definition}, over the pass", "measured", "process")
          for name, (definition, _) in _CHANGES.items()),
    )

    def available(self) -> Refusal | None:
        """Only on Linux, whose /proc it reads."""
        return None if sys.platform == "linux" else Refusal(
            f"read from Linux's /proc, which {sys.platform} does not have")

    def open(self, device: torch.device) -> "_HostReading":
        """Take the first reading; the device is the host, whatever the case runs on."""
        return _HostReading()


class _HostReading:
    """Differences from the opening to the close."""

    missing: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._begin = _read()

    def sample(self) -> Mapping[str, float]:
        """Nothing is sampled."""
        return {}

    def close(self) -> Mapping[str, float]:
        """Take the last reading."""
        begin, end = self._begin, _read()
        status = _STATUS.read_text(encoding="ascii", errors="replace")
        return {
            "rss_bytes": _status_bytes(status, "VmRSS"),
            # Not ru_maxrss: a process inherits that from the one that started it.
            "peak_rss_bytes": _status_bytes(status, "VmHWM"),
            "cpu_utilization_frac": (end.cpu_s - begin.cpu_s) / ((end.time_s - begin.time_s) * usable_cores()),
            **{name: end.changes[name] - begin.changes[name] for name in _CHANGES},
        }


def _read() -> _Reading:
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return _Reading(time_s=time.perf_counter(), cpu_s=usage.ru_utime + usage.ru_stime,
                    changes={name: getattr(usage, field) for name, (_, field) in _CHANGES.items()})


def _status_bytes(status: str, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None, f"{_STATUS} has no {field}"
    return int(found[1]) * 1024


SOURCE = HostCounters()
