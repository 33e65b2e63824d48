"""Bricks that end the process they run in: which one was running, noted where it outlives the process."""

import contextlib
import mmap
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

TIMING, DESCRIBING = "timing", "describing"
"""What is done with a brick; one that ends the process while it is described keeps its times."""
_PLACES = {b"t": TIMING, b"d": DESCRIBING}
_ID_BYTES = 16


class Note:
    """The brick that runs now, in memory that a process shares with those that it forks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, brick: str, what: str) -> None:
        """Note a brick, by its identifier, and what is done with it."""
        self._memory[: _ID_BYTES + 1] = what[:1].encode() + brick.encode()

    def clear(self) -> None:
        """Note that no brick runs."""
        self._memory[:1] = b"\0"

    def read(self) -> tuple[str, str] | None:
        """The brick that runs, and what is done with it; None where none does."""
        what = _PLACES.get(self._memory[:1])
        return None if what is None else (self._memory[1 : _ID_BYTES + 1].decode(), what)


@dataclass
class Crashes:
    """Which bricks ended earlier processes of a run, and the note of the one that runs.

    Args:
        note: None where a crash ends the run.
        signals: that ended a process, by brick and by what was done with it.
    """

    note: Note | None = None
    signals: dict[tuple[str, str], int] = field(default_factory=dict)

    @contextlib.contextmanager
    def running(self, brick: str, what: str) -> Iterator[None]:
        """Note that a brick runs inside."""
        if self.note is None:
            yield
            return
        self.note.write(brick, what)
        try:
            yield
        finally:
            self.note.clear()

    def endings(self, what: str) -> dict[str, dict[str, Any]]:
        """Status and reason of bricks that ended a process while this was done with them."""
        return {brick: ending_by(number) for (brick, done), number in self.signals.items() if done == what}


def ending_by(number: int) -> dict[str, Any]:
    """Status and reason of a brick whose process was ended by a signal."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL:
        return {"status": "oom", "reason": f"its process was ended by {name}, as the system does where memory runs out"}
    return {"status": "error", "reason": f"it ended its process by {name}"}
