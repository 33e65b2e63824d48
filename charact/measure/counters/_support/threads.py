"""Processor time of this process's threads by what they are for, and of its data-loader workers (Linux).

Threads are told by their names: autograd's, and the loader's that pins memory, have one of PyTorch's. Threads that
Python did not begin and that have the process's own name are those that compute (OpenMP names none of its own).
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
    "other_threads": "all other threads, charact's own that sample among them",
}
_PREFIXES = {"pt_autograd_": "autograd_threads", "PTThreadPool": "compute_threads", "pt_data_": "loader_threads"}
_WORKER = "pt_data_worker"
_SCHEDULED, _ONE_THREAD = 2, 4
"""Which clock of a process or thread (Linux: CPUCLOCK_SCHED, CPUCLOCK_PERTHREAD_MASK): its time on a core."""


class ProcessorTimes:
    """Processor time that threads and workers have taken since the last time they were looked at.

    *Error*: of a thread that ends in between, what it did since the last look is missed.
    """

    def __init__(self) -> None:
        self._seen_ns: dict[int, int] = {}
        self._pools: dict[int, str] = {}
        self.total_s = dict.fromkeys([*POOLS, "loader_workers"], 0.0)
        """All that was taken since the first look, by pool."""
        self.workers: list[int] = []
        """Data-loader workers at the last look."""
        self._look()

    def look(self) -> dict[str, float]:
        """Seconds taken since the last look, by pool."""
        spent_s = self._look()
        for pool, spent in spent_s.items():
            self.total_s[pool] += spent
        return spent_s

    def _look(self) -> dict[str, float]:
        spent_ns = dict.fromkeys(self.total_s, 0)
        known, self._pools = self._pools, {}
        for number in map(int, os.listdir(TASKS)):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                pool = known.get(number) or _pool(number)
                if number in self._seen_ns:  # one that has only begun may not have its name yet
                    self._pools[number] = pool
                spent_ns[pool] += self._since_last(number, _SCHEDULED | _ONE_THREAD)
        self.workers = _loader_workers()
        for worker in self.workers:
            with contextlib.suppress(OSError):
                spent_ns["loader_workers"] += self._since_last(worker, _SCHEDULED)
        return {pool: spent / 1e9 for pool, spent in spent_ns.items()}

    def _since_last(self, number: int, kind: int) -> int:
        """Nanoseconds that a thread or process has spent on a core since the last look; of a new one all.

        Raises:
            OSError: it has ended.
        """
        # A clock's number, made as glibc's pthread_getcpuclockid does it.
        now_ns = time.clock_gettime_ns((~number << 3) | kind)
        before_ns = self._seen_ns.get(number, 0)
        self._seen_ns[number] = now_ns
        return max(0, now_ns - before_ns)


def lists_children() -> bool:
    """Whether this kernel tells a process's children, without which its workers are not found."""
    return (TASKS / str(threading.main_thread().native_id) / "children").exists()


def _loader_workers() -> list[int]:
    """Processes that a data loader of this process began, in one of Python's threads; not those of a fork server."""
    found = []
    for thread in threading.enumerate():
        with contextlib.suppress(OSError):  # one that ends meanwhile
            children = (TASKS / str(thread.native_id) / "children").read_text(encoding="ascii").split()
            found += [int(child) for child in children if _name(Path("/proc", child)) == _WORKER]
    return found


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
