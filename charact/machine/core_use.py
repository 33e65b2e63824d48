"""Processor time over an interval: used by this process, waited for by its threads, and used by other programs."""

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from charact.machine.facts import usable_cores
from charact.record.manifest_passes import CoreUse

_SHORTEST_S = 0.1
"""Shortest interval that is reported: the kernel counts the processor time of all programs in steps of 10 ms."""


@dataclass(frozen=True)
class _Totals:
    """Counters since some time in the past; `busy_s` is the processor time of all programs on the usable cores."""

    time_s: float
    processor_s: float
    busy_s: float
    waiting_s: float | None
    stolen_s: float | None
    num_involuntary_switches: int | None


class CoreMeter:
    """Processor time of this process, its children, and all other programs since the object was created.

    Each end of the interval costs about 1 ms, and nothing is read between them.

    *Error*: waits of threads and children that end within the interval are missed.
    """

    def __init__(self) -> None:
        self._begin = _totals()

    def facts(self) -> CoreUse | None:
        """Return the use of the cores until now; None after less than 0.1 s.

        processor_s is that of the process and its children; others_s, processor time of all other programs on the
        usable cores; waiting_s, sum of the times that threads of the process and its children were ready to run and had
        no core; stolen_s, sum over the usable cores of the times that the host of a virtual machine ran something else;
        num_involuntary_switches, how often a thread of the process was taken off its core. The last three are None
        where the system does not count them.
        """
        begin, end = self._begin, _totals()
        length_s, processor_s = end.time_s - begin.time_s, end.processor_s - begin.processor_s
        if length_s < _SHORTEST_S:
            return None
        return CoreUse(
            length_s, usable_cores(), max(0.0, processor_s), max(0.0, end.busy_s - begin.busy_s - processor_s),
            _increase(begin.waiting_s, end.waiting_s), _increase(begin.stolen_s, end.stolen_s),
            _increase(begin.num_involuntary_switches, end.num_involuntary_switches))


def _increase(begin: float | None, end: float | None) -> float | None:
    """Return how much a counter grew; 0 if it shrank, because threads or children ended."""
    return None if begin is None or end is None else max(0, end - begin)


def _totals() -> _Totals:
    process = psutil.Process()
    allowed = process.cpu_affinity() if hasattr(process, "cpu_affinity") else None
    cores = [times._asdict() for times in psutil.cpu_times(percpu=True)]
    if allowed is not None and max(allowed) < len(cores):  # else some cores are offline, and the list has no numbers
        cores = [cores[number] for number in allowed]
    own = process.cpu_times()
    processor_s = time.process_time() + own.children_user + own.children_system
    waiting_s = _waiting_s("self")
    for child in _descendants(process.pid):
        with contextlib.suppress(psutil.Error):  # it has ended
            times = psutil.Process(child).cpu_times()
            processor_s += times.user + times.system
            if waiting_s is not None:
                waiting_s += _waiting_s(str(child)) or 0.0
    try:
        import resource  # Unix only
    except ImportError:
        num_switches = None
    else:
        num_switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    return _Totals(
        time.perf_counter(), processor_s,
        busy_s=sum(core.get(name, 0.0) for core in cores for name in _BUSY), waiting_s=waiting_s,
        stolen_s=sum(core["steal"] for core in cores) if "steal" in cores[0] else None,
        num_involuntary_switches=num_switches,
    )  # fmt: skip


_BUSY = ("user", "nice", "system", "irq", "softirq", "interrupt", "dpc")
"""Times in which a core works, by the names of Linux, macOS and Windows."""


def _descendants(process: int) -> list[int]:
    """Return the IDs of a process's children, their children, and so on.

    Where the kernel lists children, no other process is read: a machine may have thousands.
    """
    if not Path("/proc/self/task", str(threading.get_native_id()), "children").exists():
        return [child.pid for child in psutil.Process(process).children(recursive=True)]
    children: list[int] = []
    for thread in Path("/proc", str(process), "task").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            children += map(int, (thread / "children").read_text(encoding="ascii").split())
    return [*children, *(inner for child in children for inner in _descendants(child))]


def _waiting_s(process: str) -> float | None:
    """Return how long the threads of a process were ready to run without a core; None if the kernel does not count."""
    waiting_ns, is_counted = 0, False
    for thread in Path("/proc", process, "task").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            waiting_ns += int((thread / "schedstat").read_text(encoding="ascii").split()[1])
            is_counted = True
    return waiting_ns / 1e9 if is_counted else None
