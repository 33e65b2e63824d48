"""Collectives of this process, from the flight recorder of torch.distributed. Imports no torch when loaded."""

import os
import sys
import time
from collections.abc import MutableMapping
from typing import Any

import msgspec

from charact.traces.collective_names import Dump

BUFFER_ENTRIES = 512
"""Entries that the flight recorder holds; a read takes some 5 ms. The program's own choice has precedence."""
_SIZE_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_TOO_OLD = "this PyTorch has no flight recorder for collectives: PyTorch 2.9 and newer have one"
_OFF = f"the flight recorder is off: remove {_SIZE_VARIABLE}=0"
_EMPTY = "the flight recorder of this PyTorch recorded none of this rank"


def enable_flight_recorder(environment: MutableMapping[str, str], num_entries: int = BUFFER_ENTRIES) -> None:
    """Set the variable that switches the flight recorder on, before torch.distributed is imported."""
    environment.setdefault(_SIZE_VARIABLE, str(num_entries))


class FlightRecorder:
    """Reader of the flight recorder: a ring buffer in which PyTorch keeps the latest collectives of this process.

    It reads again before the buffer can have overwritten what is new, judged by the most collectives that an iteration
    has had. Overwritten entries are counted.
    """

    def __init__(self) -> None:
        self._last_id = -1
        self._most_per_iteration = 0.0
        self._iterations_at_read = 0
        self._capacity = _capacity(os.environ)
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
        new = [one for one in dump.entries if one.record_id > self._last_id]
        if not new:
            return None
        num_lost = max(min(one.record_id for one in new) - self._last_id - 1, 0)
        since = num_iterations - self._iterations_at_read
        if since and self._last_id >= 0:  # the first ones are of the start: they tell nothing of an iteration
            self._most_per_iteration = max(self._most_per_iteration, (len(new) + num_lost) / since)
        self._last_id, self._iterations_at_read = max(one.record_id for one in new), num_iterations
        return {"note": "collectives", "lost": num_lost, "rows": [  # see `Arrival`
            [one.time_created_ns - offset_ns, one.group, dump.group_size(one), one.sequence, one.operation,
             one.num_bytes, None if one.duration_ms is None else round(one.duration_ms * 1e6), one.backend]
            for one in new]}

    def unfinished(self) -> str | None:
        """Return the first collective that has not ended, as text; None if all have."""
        dump = self._dump()
        waiting = [one for one in dump.entries if not one.retired] if dump is not None else []
        if not waiting:
            return None
        first = min(waiting, key=lambda one: one.record_id)
        return f"{first.operation} {first.sequence} of group {first.group}"

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


def _capacity(environment: MutableMapping[str, str]) -> int:
    text = environment.get(_SIZE_VARIABLE, "")
    return int(text) if text.isdigit() and int(text) else BUFFER_ENTRIES
