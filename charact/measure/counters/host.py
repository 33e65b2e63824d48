"""Counters of the operating system for the process: memory, processor time by thread pool, page faults, switches."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from charact.machine.facts import usable_cores
from charact.measure.counters._support.protocol import Counter, SampledSource, Unavailable
from charact.measure.counters._support.threads import POOLS, ProcessorTimes, lists_children

_PROC = Path("/proc")
_CHANGES = {
    "num_minor_page_faults": ("page faults served without reading a disk, most of them first touches of fresh memory",
                              "ru_minflt"),
    "num_major_page_faults": ("page faults that had to read a disk", "ru_majflt"),
    "num_voluntary_context_switches": ("times a thread gave up its core to wait", "ru_nvcsw"),
    "num_involuntary_context_switches": ("times a thread was taken off its core", "ru_nivcsw"),
}
_OF_WORKERS = ("num_loader_workers", "loader_workers_rss_bytes", "num_cores_loader_workers")
_NO_ROLLUP = "this kernel does not sum up a process's memory (it has no /proc/self/smaps_rollup)"
_NO_CHILDREN = "this kernel does not list a process's children (built without CONFIG_PROC_CHILDREN)"


class HostCounters(SampledSource):
    """Counters of the operating system for all threads of the process, and for its data-loader workers."""

    name = "host"
    cost = "0.1 ms of processor time every 0.1 s; at the end 10 ms, and 10 ms per GB of resident memory"
    devices = frozenset({"cpu", "cuda"})
    reads = "host"
    tried_on = "AMD EPYC (virtual machine)"
    period_s = 0.1
    counters = (
        Counter("rss_bytes", "resident memory of the process; over the pass: when it ends", "measured", "process"),
        Counter("peak_rss_bytes", "largest resident memory of the process since it began, not only in this pass",
                "measured", "process"),
        Counter("pss_bytes", "resident memory of the process and its data-loader workers when the pass ends; shared "
                "memory counts once", "measured", "process and its data-loader workers"),
        Counter("cpu_utilization_frac", "processor time of the process over wall time times usable cores",
                "measured", "process"),
        *(Counter(f"num_cores_{pool}", f"cores kept busy by {meaning}: processor time over wall time", "measured",
                  "process") for pool, meaning in POOLS.items()),
        *(Counter(name, f"{definition}, over the pass", "measured", "process")
          for name, (definition, _) in _CHANGES.items()),
        Counter("num_loader_workers", "processes of PyTorch's data loader", "measured", "data-loader workers"),
        Counter("loader_workers_rss_bytes", "sum of their resident memory; shared memory counts several times",
                "measured", "data-loader workers"),
        Counter("num_cores_loader_workers", "cores kept busy by them: processor time over wall time", "measured",
                "data-loader workers"),
    )

    def available(self) -> Unavailable | None:
        """Require Linux and its /proc."""
        return None if sys.platform == "linux" else Unavailable(
            f"read from Linux's /proc, which {sys.platform} does not have")

    def open(self, device: torch.device) -> "_HostReading":
        """Take the first reading; the device is ignored."""
        return _HostReading()


@dataclass(frozen=True)
class _Totals:
    time_s: float
    cpu_s: float
    changes: dict[str, int]


class _HostReading:
    """Differences from opening to close, and from sample to sample."""

    def __init__(self) -> None:
        self.missing: Mapping[str, str] = {
            **({} if lists_children() else dict.fromkeys(_OF_WORKERS, _NO_CHILDREN)),
            **({} if (_PROC / "self/smaps_rollup").exists() else {"pss_bytes": _NO_ROLLUP}),
        }
        self._num_cores = usable_cores()
        self._times = ProcessorTimes()
        self._begin = self._last = _now()

    def sample(self) -> Mapping[str, float]:
        """Return the current memory, and cores in use since the last sample."""
        last, self._last = self._last, _now()
        spent_s, length_s = self._times.look(), self._last.time_s - last.time_s
        return self._available({
            "rss_bytes": _rss_bytes("self"),
            "cpu_utilization_frac": (self._last.cpu_s - last.cpu_s) / (length_s * self._num_cores),
            **{f"num_cores_{pool}": spent / length_s for pool, spent in spent_s.items()},
            **_of_workers(self._times.workers),
        })

    def close(self) -> Mapping[str, float]:
        """Return the counters of the whole pass."""
        begin, end = self._begin, _now()
        self._times.look()
        length_s = end.time_s - begin.time_s
        whole = {
            "rss_bytes": _rss_bytes("self"),
            # Not ru_maxrss: a process inherits it from its parent.
            "peak_rss_bytes": _kilobytes("self/status", "VmHWM"),
            "cpu_utilization_frac": (end.cpu_s - begin.cpu_s) / (length_s * self._num_cores),
            **{f"num_cores_{pool}": spent / length_s for pool, spent in self._times.total_s.items()},
            **{name: end.changes[name] - begin.changes[name] for name in _CHANGES},
            **_of_workers(self._times.workers),
        }
        if "pss_bytes" not in self.missing:
            whole["pss_bytes"] = _summed(lambda process: _kilobytes(f"{process}/smaps_rollup", "Pss"),
                                         ["self", *self._times.workers])[0]
        return self._available(whole)

    def _available(self, values: Mapping[str, float]) -> Mapping[str, float]:
        return {name: value for name, value in values.items() if name not in self.missing}


def _now() -> _Totals:
    import resource  # Unix only

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return _Totals(time_s=time.perf_counter(), cpu_s=usage.ru_utime + usage.ru_stime,
                   changes={name: getattr(usage, field) for name, (_, field) in _CHANGES.items()})


def _of_workers(workers: Iterable[int]) -> dict[str, int]:
    held, num_workers = _summed(_rss_bytes, workers)
    return {"num_loader_workers": num_workers, "loader_workers_rss_bytes": held}


def _summed(bytes_of: Callable[[int | str], int], processes: Iterable[int | str]) -> tuple[int, int]:
    total, number = 0, 0
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            total += bytes_of(process)
            number += 1
    return total, number


def _rss_bytes(process: int | str) -> int:
    return int((_PROC / str(process) / "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _kilobytes(path: str, field: str) -> int:
    text = (_PROC / path).read_text(encoding="ascii", errors="replace")
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


SOURCE = HostCounters()
