"""Crash notes: which brick was running when its process ended, in memory that outlives the process."""

import contextlib
import mmap
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

TIMING, DESCRIBING = "timing", "describing"
"""Activities. A brick that crashes in `DESCRIBING` (counting its work) keeps its times."""
_ACTIVITIES = {b"t": TIMING, b"d": DESCRIBING}
_ID_BYTES = 16


class Note:
    """The running brick, in memory shared with forked processes."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, brick: str, what: str) -> None:
        """Record the identifier of the running brick and the activity."""
        self._memory[: _ID_BYTES + 1] = what[:1].encode() + brick.encode()

    def clear(self) -> None:
        """Record that no brick runs."""
        self._memory[:1] = b"\0"

    def read(self) -> tuple[str, str] | None:
        """Return the running brick and the activity, or None."""
        what = _ACTIVITIES.get(self._memory[:1])
        return None if what is None else (self._memory[1 : _ID_BYTES + 1].decode(), what)


@dataclass
class Crashes:
    """Bricks that ended earlier processes of a run, and the note of the running brick.

    Args:
        note: note to write; None outside a worker process, where a crash ends the whole run.
        signals: signals that ended a process, by brick and activity.
    """

    note: Note | None = None
    signals: dict[tuple[str, str], int] = field(default_factory=dict)

    @contextlib.contextmanager
    def running(self, brick: str, what: str) -> Iterator[None]:
        """Record that a brick runs in the context."""
        if self.note is None:
            yield
            return
        self.note.write(brick, what)
        try:
            yield
        finally:
            self.note.clear()

    def endings(self, what: str) -> dict[str, dict[str, Any]]:
        """Return status and reason of the bricks that ended a process during an activity."""
        return {brick: ending_by(number) for (brick, done), number in self.signals.items() if done == what}


def ending_by(number: int) -> dict[str, Any]:
    """Return status and reason of a brick whose process was ended by a signal."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL:
        return {"status": "oom", "reason": f"its process was ended by {name}, which usually means out of memory"}
    return {"status": "error", "reason": f"it ended its process by {name}"}
