"""Collectives of a rank's iterations: the phase of each, and how long the host waits. No torch in here."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from charact.core.timeline import phase_at
from charact.measure.script.spans.iterations import Interval, Iteration
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
        self._times = [one.time_ns for one in self._all]

    def __len__(self) -> int:
        return len(self._all)

    @property
    def backend(self) -> str | None:
        """Backend of most of the collectives; None if there are none."""
        return next((name for name, _ in Counter(one.backend for one in self._all).most_common(1)), None)

    def between(self, start_ns: int, end_ns: int) -> list[Arrival]:
        """Return the collectives that were called in a half-open interval."""
        return self._all[bisect_left(self._times, start_ns):bisect_left(self._times, end_ns)]


def with_waiting(iteration: Iteration, arrivals: Arrivals) -> Iteration:
    """Return the iteration; each backward becomes communication from its last gradient exchange on.

    `DistributedDataParallel` exchanges gradients inside the backward, without a call of a Python function. The host
    computes until it calls the last of these collectives, and then waits for all of them.
    """
    if iteration.start_event is not None:  # an accelerator computes: the host's wait is no time of its own
        return iteration
    intervals = list(iteration.intervals)
    for first, last in reversed(_backwards(intervals)):
        called = [one.time_ns for part in intervals[first:last + 1] if part.phase == "backward"
                  for one in arrivals.between(part.start_ns, part.end_ns) if one.backend in _BLOCKING]
        if called:
            place = next(place for place in range(first, last + 1) if called[-1] < intervals[place].end_ns)
            waiting = Interval("communication", intervals[place].owner, called[-1], intervals[last].end_ns,
                               end_event=intervals[last].end_event, inside="backward")
            intervals[place:last + 1] = [replace(intervals[place], end_ns=called[-1], end_event=None), waiting]
    return replace(iteration, intervals=intervals)


def _backwards(intervals: Sequence[Interval]) -> list[tuple[int, int]]:
    """Return the places of the first and the last interval of each backward, with the communication inside of it."""
    found: list[tuple[int, int]] = []
    for place, one in enumerate(intervals):
        if one.phase == "backward" or one.inside == "backward":
            if found and found[-1][1] == place - 1 and intervals[place - 1].end_ns == one.start_ns:
                found[-1] = found[-1][0], place
            else:
                found.append((place, place))
    return found


def collective_rows(number: int, iteration: Iteration, arrivals: Arrivals) -> Rows:
    """Return rows of the table `collectives` for one iteration.

    The collectives called in a wait share it, each up to the next call; without a call, the wait belongs to the latest
    one before. Only the last call of a wait gets its end; the ends of the others are unknown.
    """
    found = arrivals.between(iteration.start_ns, iteration.end_ns)
    exposed_ns = [0] * len(found)
    ends: list[int | None] = [None] * len(found)
    times = [one.time_ns for one in found]
    for part in iteration.intervals:
        if part.phase != "communication":
            continue
        begin, end = bisect_left(times, part.start_ns), bisect_left(times, part.end_ns)
        if begin == end:
            if begin:
                exposed_ns[begin - 1] += part.end_ns - part.start_ns
                ends[begin - 1] = part.end_ns
            continue
        bounds = [part.start_ns, *times[begin + 1:end], part.end_ns]
        for place in range(begin, end):
            exposed_ns[place] += bounds[place - begin + 1] - bounds[place - begin]
        ends[end - 1] = part.end_ns
    spans = [(part.start_ns, part.end_ns, part.inside or part.phase) for part in iteration.intervals]
    return [
        {"iteration": number, "phase": phase_at(spans, one.time_ns) or "other",
         "group": one.group, "group_size": one.size, "sequence": one.sequence, "operation": one.operation,
         "bytes": one.num_bytes,
         "start_s": (one.time_ns - iteration.start_ns) / 1e9,
         "wait_s": None if end_ns is None or one.backend not in _BLOCKING else (end_ns - one.time_ns) / 1e9,
         "exposed_s": exposed / 1e9 if one.backend in _BLOCKING else None,
         "device_s": None if one.device_ns is None else one.device_ns / 1e9}
        for one, end_ns, exposed in zip(found, ends, exposed_ns, strict=True)
    ]
