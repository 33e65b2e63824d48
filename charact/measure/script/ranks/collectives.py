"""Collectives of a rank from PyTorch's flight recorder, their phases, and the host's waits. Imports no torch itself."""

import os
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from charact.core.timeline import Interval, Iteration, at
from charact.record.schema import Rows
from charact.traces.collective_names import Dump

BUFFER_ENTRIES = 512
"""Entries that the flight recorder holds; a read takes some 5 ms. The program's own choice has precedence."""
_SIZE_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_TOO_OLD = "this PyTorch has no flight recorder for collectives: PyTorch 2.9 and newer have one"
_OFF = f"the flight recorder is off: remove {_SIZE_VARIABLE}=0"
_EMPTY = "the flight recorder of this PyTorch recorded none of this rank"
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


def enable_flight_recorder(environment: MutableMapping[str, str], num_entries: int = BUFFER_ENTRIES) -> None:
    """Set the variable that switches the flight recorder on, before torch.distributed is imported."""
    environment.setdefault(_SIZE_VARIABLE, str(num_entries))


class FlightRecorder:
    """Reader of the flight recorder: a ring buffer in which PyTorch keeps the latest collectives of this process.

    `note_if_due` is called after each iteration, and reads once a third of the buffer may be new, judged by the most
    collectives that an iteration has had. Overwritten entries are counted.
    """

    def __init__(self) -> None:
        self._last_id = -1
        self._most_per_iteration = 0.0
        self._iterations_at_read = 0
        text = os.environ.get(_SIZE_VARIABLE, "")
        self._capacity = int(text) if text.isdigit() and int(text) else BUFFER_ENTRIES
        self._is_missing = False

    @property
    def problem(self) -> str | None:
        """Why there are no collectives; None if there are some."""
        if self._last_id >= 0:
            return None
        return _TOO_OLD if self._is_missing else _OFF if os.environ.get(_SIZE_VARIABLE) == "0" else _EMPTY

    def note_if_due(self, num_iterations: int) -> dict[str, Any] | None:
        """Return a note with the new collectives; None if there are none, or not yet enough."""
        self._iterations_at_read = min(self._iterations_at_read, num_iterations)  # the count may have begun again
        since = num_iterations - self._iterations_at_read
        if not since or (self._most_per_iteration and since * self._most_per_iteration < self._capacity / 3):
            return None
        return self.note(num_iterations)

    def note(self, num_iterations: int) -> dict[str, Any] | None:
        """Return a note with all new collectives; None if there are none."""
        dump = self._dump()
        if dump is None:
            return None
        # Time stamps are of the clock of the day; spans use the monotonic clock.
        offset_ns = time.time_ns() - time.perf_counter_ns()
        new = [entry for entry in dump.entries if entry.record_id > self._last_id]
        if not new:
            return None
        num_lost = max(min(entry.record_id for entry in new) - self._last_id - 1, 0)
        since = num_iterations - self._iterations_at_read
        if since and self._last_id >= 0:  # the first ones are of the start: they tell nothing of an iteration
            self._most_per_iteration = max(self._most_per_iteration, (len(new) + num_lost) / since)
        self._last_id, self._iterations_at_read = max(entry.record_id for entry in new), num_iterations
        return {"note": "collectives", "lost": num_lost, "rows": [
            Arrival(entry.time_created_ns - offset_ns, entry.group, dump.group_size(entry), entry.sequence,
                    entry.operation, entry.num_bytes,
                    None if entry.duration_ms is None else round(entry.duration_ms * 1e6), entry.backend)
            for entry in new]}

    def unfinished(self) -> str | None:
        """Return the first collective that has not ended, as text; None if all have."""
        dump = self._dump()
        waiting = [entry for entry in dump.entries if not entry.retired] if dump is not None else []
        first = min(waiting, key=lambda entry: entry.record_id, default=None)
        return None if first is None else f"{first.operation} {first.sequence} of group {first.group}"

    def _dump(self) -> Dump | None:
        """Return the content of the flight recorder; None if torch.distributed is not in use or too old."""
        bindings = sys.modules.get("torch._C._distributed_c10d")
        if bindings is None or "torch.distributed" not in sys.modules:
            return None
        from torch._C import _distributed_c10d

        dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
        if dump is None:
            self._is_missing = True
            return None
        return msgspec.json.decode(dump(True, False), type=Dump)


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
    backwards: list[tuple[int, int]] = []  # places of the first and the last interval, with communication inside
    for place, interval in enumerate(intervals):
        if interval.phase == "backward" or interval.inside == "backward":
            if backwards and backwards[-1][1] == place - 1 and intervals[place - 1].end_ns == interval.start_ns:
                backwards[-1] = backwards[-1][0], place
            else:
                backwards.append((place, place))
    for first, last in reversed(backwards):
        called = [arrival.time_ns for part in intervals[first:last + 1] if part.phase == "backward"
                  for arrival in arrivals.between(part.start_ns, part.end_ns) if arrival.backend in _BLOCKING]
        if called:
            place = next(place for place in range(first, last + 1) if called[-1] < intervals[place].end_ns)
            waiting = Interval("communication", called[-1], intervals[last].end_ns, intervals[place].owner,
                               inside="backward")
            intervals[place:last + 1] = [replace(intervals[place], end_ns=called[-1]), waiting]
    return replace(iteration, intervals=intervals)


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
