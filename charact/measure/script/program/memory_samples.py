"""Samples of the memory of a watched program and of its loaders' workers. No torch in here."""

import contextlib
import os
from collections.abc import Callable, Iterable
from time import perf_counter_ns, thread_time_ns

INTERVAL_NS, _LONG_INTERVAL_NS = 20_000_000, 100_000_000
"""Shortest time between two samples of the program's own memory: the first ones, and later. One takes some 70 µs."""
_NUM_DENSE = 200
"""Number of these first samples."""
_WORKERS_INTERVAL_NS = 100_000_000
"""Shortest time between two samples of the workers' memory."""
_COST_FACTOR, _FIRST_COST_FACTOR, _NUM_FIRST = 100, 20, 20
"""Time between two samples of the workers' memory, in times of the processor time of one; the same for the first ones,
and their number."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MOST_BYTES = 4096
"""Largest number of bytes that are read of a file."""


class MemorySamples:
    """Buffer of samples of the program's and its workers' memory, until they are written as notes.

    A sample of the program has its resident set and the bytes in the CUDA allocator; one of the workers has the memory
    that they do not share.
    """

    def __init__(self) -> None:
        self.allocated_bytes: Callable[[], int] | None = None
        """Returns the bytes in the allocator of the program's device; None on a CPU."""
        self._due_ns = self._num_samples = 0
        self._program: list[tuple[int, int, int | None]] = []
        self._workers: list[tuple[int, int]] = []
        self._worker_processes: set[int] = set()
        self._workers_due_ns = self._num_workers_samples = 0

    def sample(self, now_ns: int) -> None:
        """Sample the program's memory, unless it was sampled shortly before."""
        if now_ns < self._due_ns:
            return
        self._num_samples += 1
        self._due_ns = now_ns + (INTERVAL_NS if self._num_samples < _NUM_DENSE else _LONG_INTERVAL_NS)
        fields = _read("/proc/self/statm").split()
        allocated = None
        if self.allocated_bytes is not None:
            with contextlib.suppress(Exception):  # no error of the device may reach the program here
                allocated = self.allocated_bytes()
        if len(fields) > 1:
            self._program.append((now_ns, int(fields[1]) * _PAGE_BYTES, allocated))

    def watch_workers(self, processes: Iterable[int]) -> None:
        """Add processes whose memory is sampled until they end."""
        self._worker_processes.update(processes)

    def sample_workers(self) -> bool:
        """Sample the memory that the workers share with no other process, and return True, unless it is too early.

        The kernel walks all pages of a process for it, some milliseconds, so samples take 1 % of a core at most; the
        first 20 take 5 %. Another thread may call this.
        """
        if not self._worker_processes or perf_counter_ns() < self._workers_due_ns:
            return False
        begin_ns = thread_time_ns()
        total = 0
        for process in list(self._worker_processes):
            unshared = _unshared_bytes(process)
            if unshared is None:
                self._worker_processes.discard(process)
            else:
                total += unshared
        now_ns = perf_counter_ns()
        if self._worker_processes:
            self._workers.append((now_ns, total))
        self._num_workers_samples += 1
        factor = _FIRST_COST_FACTOR if self._num_workers_samples <= _NUM_FIRST else _COST_FACTOR
        self._workers_due_ns = now_ns + max(_WORKERS_INTERVAL_NS, factor * (thread_time_ns() - begin_ns))
        return True

    def take(self) -> list[dict[str, object]]:
        """Return the samples since the last call as notes."""
        (program, self._program), (workers, self._workers) = (self._program, []), (self._workers, [])
        return [{"note": name, "rows": rows} for name, rows in (("memory", program), ("workers' memory", workers))
                if rows]


def _unshared_bytes(process: int) -> int | None:
    """Return the memory that a process shares with no other; None if it has ended or must not be read."""
    lines = _read(f"/proc/{process}/smaps_rollup").splitlines()
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Private_")]
    return sum(sizes) if sizes else None


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, _MOST_BYTES)
        finally:
            os.close(file)
    return b""
