"""Collectives of a rank's iterations: the phase of each, and how long the host waits. No torch in here."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from charact.core.timeline import Interval, Iteration, at
from charact.record.schema import Rows

_BLOCKING = ("gloo", "mpi", "ucc")
"""Backends whose collectives the host waits for; those of a GPU are waited for on the device."""


class Arrival(NamedTuple):
    """A collective as the rank called it: the time on the clock of the spans, and what is exchanged.

    `sequence` counts the collectives of a group. `size` is the number of its ranks, `device_ns` the time that the
    collective took on the device; both may be None.
    """

    time_ns: int
    group: str
    size: int | None
    sequence: int
    operation: str
    num_bytes: int | None
    device_ns: int | None
    backend: str


class Arrivals:
    """Collectives in order of time."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._all = sorted(arrivals)
        self._times = [arrival.time_ns for arrival in self._all]

    def __len__(self) -> int:
        return len(self._all)

    @property
    def backend(self) -> str | None:
        """Backend of most of the collectives; None if there are none."""
        return next((name for name, _ in Counter(arrival.backend for arrival in self._all).most_common(1)), None)

    def between(self, start_ns: int, end_ns: int) -> list[Arrival]:
        """Return the collectives that were called in a half-open interval."""
        return self._all[bisect_left(self._times, start_ns):bisect_left(self._times, end_ns)]


def with_waiting(iteration: Iteration, arrivals: Arrivals) -> Iteration:
    """Return the iteration; each backward becomes communication from its last gradient exchange on.

    `DistributedDataParallel` exchanges gradients inside the backward, without a call of a Python function. The host
    computes until it calls the last of these collectives, and then waits for all of them.
    """
    if iteration.start_device_ns is not None:  # an accelerator computes: the host's wait is no time of its own
        return iteration
    intervals = list(iteration.intervals)
    for first, last in reversed(_backwards(intervals)):
        called = [arrival.time_ns for part in intervals[first:last + 1] if part.phase == "backward"
                  for arrival in arrivals.between(part.start_ns, part.end_ns) if arrival.backend in _BLOCKING]
        if called:
            place = next(place for place in range(first, last + 1) if called[-1] < intervals[place].end_ns)
            waiting = Interval("communication", called[-1], intervals[last].end_ns, intervals[place].owner,
                               inside="backward")
            intervals[place:last + 1] = [replace(intervals[place], end_ns=called[-1]), waiting]
    return replace(iteration, intervals=intervals)


def _backwards(intervals: Sequence[Interval]) -> list[tuple[int, int]]:
    """Return the places of the first and the last interval of each backward, with the communication inside of it."""
    backwards: list[tuple[int, int]] = []
    for place, interval in enumerate(intervals):
        if interval.phase == "backward" or interval.inside == "backward":
            if backwards and backwards[-1][1] == place - 1 and intervals[place - 1].end_ns == interval.start_ns:
                backwards[-1] = backwards[-1][0], place
            else:
                backwards.append((place, place))
    return backwards


def collective_rows(number: int, iteration: Iteration, arrivals: Arrivals) -> Rows:
    """Return rows of the table `collectives` for one iteration.

    The collectives called in a wait share it, each up to the next call; without a call, the wait belongs to the latest
    one before. Only the last call of a wait gets its end; the ends of the others are unknown.
    """
    called = arrivals.between(iteration.start_ns, iteration.end_ns)
    exposed_ns = [0] * len(called)
    ends: list[int | None] = [None] * len(called)
    times = [arrival.time_ns for arrival in called]
    for part in iteration.intervals:
        if part.phase != "communication":
            continue
        begin, end = bisect_left(times, part.start_ns), bisect_left(times, part.end_ns)
        if begin == end:
            if begin:
                exposed_ns[begin - 1] += part.host_ns
                ends[begin - 1] = part.end_ns
            continue
        bounds = [part.start_ns, *times[begin + 1:end], part.end_ns]
        for place in range(begin, end):
            exposed_ns[place] += bounds[place - begin + 1] - bounds[place - begin]
        ends[end - 1] = part.end_ns
    rows = []
    for arrival, end_ns, exposed in zip(called, ends, exposed_ns, strict=True):
        around, blocks = at(iteration.intervals, arrival.time_ns), arrival.backend in _BLOCKING
        rows.append({
            "iteration": number, "phase": "other" if around is None else around.inside or around.phase,
            "group": arrival.group, "group_size": arrival.size, "sequence": arrival.sequence,
            "operation": arrival.operation, "bytes": arrival.num_bytes,
            "start_s": (arrival.time_ns - iteration.start_ns) / 1e9,
            "wait_s": None if end_ns is None or not blocks else (end_ns - arrival.time_ns) / 1e9,
            "exposed_s": exposed / 1e9 if blocks else None,
            "device_s": None if arrival.device_ns is None else arrival.device_ns / 1e9})
    return rows
