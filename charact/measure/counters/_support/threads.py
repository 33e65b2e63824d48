"""Processor time of this process's threads by pool, and of its data-loader workers (Linux).

Threads are identified by name: autograd's threads and the loader's pinning thread have names of PyTorch. Threads that
Python did not start and that have the process's name are compute threads (OpenMP sets no names).
"""

import contextlib
import os
import threading
import time
from pathlib import Path

TASKS = Path("/proc/self/task")
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


class ProcessorTimes:
    """Processor time of threads and workers since the last reading.

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


def lists_children() -> bool:
    """Return whether this kernel lists a process's children, which is needed to find workers."""
    return (TASKS / str(threading.main_thread().native_id) / "children").exists()


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
