"""Hardware counters of the processor, from Linux's perf_event_open: instructions, cycles, cache misses."""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from charact.measure.counters._support.protocol import Counter, SampledSource, Unavailable, UnavailableError

TASKS = Path("/proc/self/task")
LINE_BYTES = 64
"""Size of a cache line on x86-64 and on most ARM servers."""
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTE_BYTES = 112
"""Size of perf_event_attr, version 5 (linux/perf_event.h)."""
_TOTAL_TIMES = 0b11
"""Flags to read the enabled and the running time of an event: events share the hardware's counters."""
_INHERITED, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_ANY_CORE, _NO_GROUP, _CLOSE_ON_EXEC = -1, -1, 8

OpenEvent = Callable[["Event", int], int]
"""Opens an event for a thread; returns its file descriptor."""


@dataclass(frozen=True)
class Event:
    """Type and number of an event in linux/perf_event.h."""

    kind: int
    number: int


HARDWARE = {"num_cycles": Event(0, 0), "num_instructions": Event(0, 1), "num_llc_misses": Event(0, 3)}
_FOLLOWS = {"num_cycles": ["num_instructions_per_cycle"], "num_instructions": ["num_instructions_per_cycle"],
            "num_llc_misses": ["llc_miss_bytes"]}
"""Counters that are computed from these."""
_ERRORS = {
    (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP): Unavailable(
        "the processor's counters are not available, as in most virtual machines", "run on the bare machine"),
    (errno.EACCES, errno.EPERM): Unavailable(
        "the kernel reserves the processor's counters for administrators",
        "sudo sysctl kernel.perf_event_paranoid=1, or give the process CAP_PERFMON (in a container: "
        "--cap-add=PERFMON, and a seccomp profile that allows perf_event_open)"),
    (errno.EMFILE,): Unavailable("the process may not open a file for each thread and event", "ulimit -n 65536"),
    (errno.ENOSYS,): Unavailable("this kernel has no perf_event_open"),
}


class PerfCounters(SampledSource):
    """Hardware counters in user space, of all threads and of child processes that they start during the pass.

    *Error*: with fewer hardware counters than events, each event is counted for a part of the time, and scaled.
    """

    name = "perf"
    cost = "some system calls per thread before the first iteration and after the last"
    devices = frozenset({"cpu", "cuda"})
    reads = "host"
    period_s = None
    counters = (
        Counter("num_instructions", "completed instructions, in user space", "measured", "process"),
        Counter("num_cycles", "core cycles, in user space, all threads together", "measured", "process"),
        Counter("num_llc_misses", "misses of the last-level cache that the processor counts", "measured",
                "process"),
        Counter("num_instructions_per_cycle", "instructions over cycles", "measured", "process"),
        Counter("llc_miss_bytes", f"memory traffic as these misses times {LINE_BYTES} bytes: too low, since lines "
                "that are prefetched or written back are not misses", "estimated", "process"),
    )

    def __init__(self, open_event: OpenEvent) -> None:
        self._open_event = open_event

    def available(self) -> Unavailable | None:
        """Require that the kernel lets this process count cycles."""
        if sys.platform != "linux" or platform.machine() not in _SYSTEM_CALL:
            return Unavailable(f"perf_event_open is not known here: {sys.platform} on {platform.machine()}")
        try:
            os.close(self._open_event(HARDWARE["num_cycles"], 0))
        except OSError as error:
            return unavailable_for(error)
        return None

    def open(self, device: torch.device) -> "EventReading":
        """Start to count."""
        return EventReading(HARDWARE, self._open_event)


class EventReading:
    """Events counted for every existing thread, and for those that they start.

    Raises:
        UnavailableError: no event can be counted.
    """

    def __init__(self, events: Mapping[str, Event], open_event: OpenEvent) -> None:
        self.missing: dict[str, str] = {}
        self._files: dict[str, list[int]] = {}
        unavailable: Unavailable | None = None
        for name, event in events.items():
            try:
                self._files[name] = _open_for_threads(event, open_event)
            except OSError as error:
                unavailable = unavailable_for(error)
                self._miss(name, unavailable.reason)
        if not self._files and unavailable is not None:
            raise UnavailableError(unavailable)

    def sample(self) -> Mapping[str, float]:
        """Return nothing: these counters are not sampled."""
        return {}

    def close(self) -> Mapping[str, float]:
        """Return counts over the whole pass, and counters computed from them."""
        counted: dict[str, float] = {}
        for name, files in self._files.items():
            readings = []  # count, enabled time and running time in ns
            for file in files:
                with os.fdopen(file, "rb", buffering=0) as counter:
                    readings.append(struct.unpack("=QQQ", counter.read(24)))
            if any(running_ns for _, _, running_ns in readings):
                counted[name] = sum(count * enabled_ns / running_ns for count, enabled_ns, running_ns in readings
                                    if running_ns)
            else:
                self._miss(name, "other events used all of the processor's counters")
        if counted.get("num_cycles") and "num_instructions" in counted:
            counted["num_instructions_per_cycle"] = counted["num_instructions"] / counted["num_cycles"]
        if "num_llc_misses" in counted:
            counted["llc_miss_bytes"] = counted["num_llc_misses"] * LINE_BYTES
        return counted

    def _miss(self, name: str, reason: str) -> None:
        self.missing |= dict.fromkeys([name, *_FOLLOWS.get(name, ())], reason)


def open_perf_event(event: Event, thread: int) -> int:
    """Start to count an event for a thread (0: the calling one); return its file descriptor.

    Raises:
        OSError: the kernel refuses.
    """
    attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    struct.pack_into("=IIQQQQQ", attributes, 0, event.kind, _ATTRIBUTE_BYTES, event.number, 0, 0, _TOTAL_TIMES,
                     _INHERITED | _NO_KERNEL | _NO_HYPERVISOR)
    library = ctypes.CDLL(None, use_errno=True)
    file: int = library.syscall(_SYSTEM_CALL[platform.machine()], attributes, thread, _ANY_CORE, _NO_GROUP,
                                ctypes.c_ulong(_CLOSE_ON_EXEC))
    if file < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return file


def unavailable_for(error: OSError) -> Unavailable:
    """Return why the kernel does not count, and the remedy."""
    return next((unavailable for numbers, unavailable in _ERRORS.items() if error.errno in numbers),
                Unavailable(f"perf_event_open: {error.strerror}"))


def _open_for_threads(event: Event, open_event: OpenEvent) -> list[int]:
    files: list[int] = []
    for thread in map(int, os.listdir(TASKS)):
        try:
            files.append(open_event(event, thread))
        except ProcessLookupError:  # it has ended
            continue
        except OSError:
            for file in files:
                os.close(file)
            raise
    return files


SOURCE = PerfCounters(open_perf_event)
