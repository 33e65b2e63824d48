"""Processor time of a thread, read by another one, to find out whether it waits. No torch in here."""

import contextlib
import ctypes
import os
import threading
import time
from typing import NamedTuple

_RUNS_FRAC = 0.9
"""Share of a time from which a thread that used the processor did not wait."""
_MOST_BYTES = 4096


class ClockReading(NamedTuple):
    """Times (ns): of the reading, of the processor that the thread used, and for which it had none but wanted one.

    The last is None if it was not read.
    """

    time_ns: int
    used_ns: int
    refused_ns: int | None


class ThreadClock:
    """Clock of the thread that creates it.

    *Error*: while all cores are busy, a thread that has just woken up counts as waiting until it runs.
    """

    def __init__(self) -> None:
        self._clock: int | None = None
        with contextlib.suppress(AttributeError, OSError):  # the system has no such clock
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        folder = f"/proc/self/task/{threading.get_native_id()}"
        self._schedstat, self._stat = _KernelFile(f"{folder}/schedstat"), _KernelFile(f"{folder}/stat")

    def used_ns(self) -> int | None:
        """Return the processor time that the thread has used; None if unknown. It keeps the GIL."""
        return None if self._clock is None else time.clock_gettime_ns(self._clock)

    def read(self) -> ClockReading | None:
        """Return the times until now; None if unknown. It keeps the GIL."""
        used_ns = self.used_ns()
        return None if used_ns is None else ClockReading(time.monotonic_ns(), used_ns, self._refused_ns())

    def waiting_frac(self, since: ClockReading, until: ClockReading) -> float:
        """Return the share of the time between two readings in which the thread waited for something but a processor.

        Call it soon after the second.
        """
        elapsed_ns = max(1, until.time_ns - since.time_ns)
        idle_ns = elapsed_ns - (until.used_ns - since.used_ns)
        if idle_ns < (1 - _RUNS_FRAC) * elapsed_ns or self._is_runnable():
            return 0.0
        refused_ns = self._refused_ns()
        if refused_ns is not None and since.refused_ns is not None:
            idle_ns -= refused_ns - since.refused_ns
        return min(1.0, max(0.0, idle_ns / elapsed_ns))

    def _refused_ns(self) -> int | None:
        fields = self._schedstat.read().split()
        return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None

    def _is_runnable(self) -> bool:
        return self._stat.read().rpartition(b")")[2].split()[:1] == [b"R"]  # the name before may have spaces

    def close(self) -> None:
        """Close its files; afterwards, `read` and `waiting_frac` know less."""
        self._schedstat.close()
        self._stat.close()


class _KernelFile:
    """A file of Linux's /proc, which is read without releasing the GIL: another thread does not run meanwhile."""

    def __init__(self, path: str) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._buffer = ctypes.create_string_buffer(_MOST_BYTES)
            self._pread = ctypes.PyDLL(None).pread
            self._pread.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long
            self._pread.restype = ctypes.c_ssize_t

    def read(self) -> bytes:
        """Return the file's content; empty if it cannot be read."""
        if self._file is None:
            return b""
        num_bytes = self._pread(self._file, self._buffer, _MOST_BYTES, 0)
        return self._buffer.raw[:max(0, num_bytes)]

    def close(self) -> None:
        """Close the file; afterwards it is empty."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
