"""Counters of the operating system for the process: memory, processor time by thread pool, page faults, switches."""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from charact.machine.facts import usable_cores
from charact.measure.counters._support.protocol import Counter, SampledSource, Unavailable

TASKS = Path("/proc/self/task")
_PROC = Path("/proc")
POOLS = {
    "main_thread": "the main thread",
    "autograd_threads": "autograd's threads, which run the backward pass on a GPU (on a CPU the calling thread does)",
    "compute_threads": "threads of OpenMP and PyTorch's own pools, which share an operator's work",
    "loader_threads": "the data loader's thread that pins memory",
    "other_threads": "all other threads, including charact's sampling threads",
}
_PREFIXES = {"pt_autograd_": "autograd_threads", "PTThreadPool": "compute_threads", "pt_data_": "loader_threads"}
_WORKER = "pt_data_worker"
_SCHEDULED, _ONE_THREAD = 2, 4
"""Clock of a process's or thread's processor time (Linux: CPUCLOCK_SCHED, CPUCLOCK_PERTHREAD_MASK)."""
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


class ProcessorTimes:
    """Processor time of this process's threads by pool, and of its data-loader workers, since the last reading.

    Threads are identified by name: autograd's threads and the loader's pinning thread have names of PyTorch. Threads
    that Python did not start and that have the process's name are compute threads (OpenMP sets no names).

    *Error*: the time of a thread that ends between two readings is missed since the last one.
    """

    def __init__(self) -> None:
        self._seen_ns: dict[int, int] = {}
        self._pools: dict[int, str] = {}
        self.total_s = dict.fromkeys([*POOLS, "loader_workers"], 0.0)
        """Processor time since the first reading in seconds, by pool."""
        self.workers: list[int] = []
        """Data-loader workers at the last reading."""
        self._look()

    def look(self) -> dict[str, float]:
        """Return processor seconds since the last reading, by pool."""
        spent_s = self._look()
        for pool, spent in spent_s.items():
            self.total_s[pool] += spent
        return spent_s

    def _look(self) -> dict[str, float]:
        spent_ns = dict.fromkeys(self.total_s, 0)
        known, self._pools = self._pools, {}
        for number in map(int, os.listdir(TASKS)):
            with contextlib.suppress(OSError):  # it has ended
                pool = known.get(number) or _pool(number)
                if number in self._seen_ns:  # a new thread may not have its name yet
                    self._pools[number] = pool
                spent_ns[pool] += self._since_last(number, _SCHEDULED | _ONE_THREAD)
        self.workers = []
        for thread in threading.enumerate():  # workers of a fork server are no children of a thread
            with contextlib.suppress(OSError):  # it has ended
                children = (TASKS / str(thread.native_id) / "children").read_text(encoding="ascii").split()
                self.workers += [int(child) for child in children if _name(Path("/proc", child)) == _WORKER]
        for worker in self.workers:
            with contextlib.suppress(OSError):
                spent_ns["loader_workers"] += self._since_last(worker, _SCHEDULED)
        return {pool: spent / 1e9 for pool, spent in spent_ns.items()}

    def _since_last(self, number: int, kind: int) -> int:
        """Return the processor time in ns of a thread or process since the last reading, or since its start.

        Raises:
            OSError: it has ended.
        """
        # Clock ID, computed as in glibc's pthread_getcpuclockid.
        now_ns = time.clock_gettime_ns((~number << 3) | kind)
        before_ns = self._seen_ns.get(number, 0)
        self._seen_ns[number] = now_ns
        return max(0, now_ns - before_ns)


def _pool(number: int) -> str:
    name = _name(TASKS / str(number))
    if number == os.getpid():
        return "main_thread"
    for prefix, pool in _PREFIXES.items():
        if name.startswith(prefix):
            return pool
    is_python = any(thread.native_id == number for thread in threading.enumerate())
    is_named = name != _name(TASKS / str(os.getpid()))
    return "other_threads" if is_named or is_python else "compute_threads"


def _name(directory: Path) -> str:
    return (directory / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")


@dataclass(frozen=True)
class _Totals:
    time_s: float
    cpu_s: float
    changes: dict[str, int]


class _HostReading:
    """Differences from opening to close, and from sample to sample."""

    def __init__(self) -> None:
        self.missing: Mapping[str, str] = {
            **({} if (TASKS / str(threading.main_thread().native_id) / "children").exists()
               else dict.fromkeys(_OF_WORKERS, _NO_CHILDREN)),
            **({} if (_PROC / "self/smaps_rollup").exists() else {"pss_bytes": _NO_ROLLUP}),
        }
        self._num_cores = usable_cores()
        self._times = ProcessorTimes()
        self._begin = self._last = _now()

    def sample(self) -> Mapping[str, float]:
        last, self._last = self._last, _now()
        spent_s, length_s = self._times.look(), self._last.time_s - last.time_s
        return self._available({
            "rss_bytes": _rss_bytes("self"),
            "cpu_utilization_frac": (self._last.cpu_s - last.cpu_s) / (length_s * self._num_cores),
            **{f"num_cores_{pool}": spent / length_s for pool, spent in spent_s.items()},
            **_of_workers(self._times.workers),
        })

    def close(self) -> Mapping[str, float]:
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
    match = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


SOURCE = HostCounters()
