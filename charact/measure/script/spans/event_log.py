"""Event log that a profiled program writes while it runs, so that a killed program leaves one. No torch in here.

    slices.bin     one record of fixed size per slice
    notes.jsonl    one line per note: facts of the owners, windows and tables of the passes, the end
    windows.jsonl  one line per window of time after slices.bin is full, see `charact.measure.script.windows`

`event_log_reader.py` reads it.
"""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from charact.core.files import writing
from charact.measure.script.spans.recorder import Kind, Slice
from charact.record.in_progress import LATEST, NOTES, PANEL, SLICES, WINDOWS
from charact.record.redaction import redacted_notes
from charact.record.schema import PHASES

RECORD = struct.Struct("<BBBqqqqq")
KINDS = {int(kind): kind for kind in Kind}
NAMED = (None, *PHASES)
"""Phases named by the program; the record stores the index."""
_INDICES = {phase: index for index, phase in enumerate(NAMED)}
GRAD, TRAINING, ENDS, BEGINS, METHOD = 1, 2, 4, 8, 16
ALL_FLAGS = GRAD | TRAINING | ENDS | BEGINS | METHOD
NO_TIME = -1


def packed(slices: list[Slice], device_ns: Callable[[Any], int]) -> bytes:
    """Return slices as records; `device_ns` returns the time of a CUDA event. The program waits: keep it fast."""
    pack, indices = RECORD.pack, _INDICES
    return b"".join([
        pack(each.kind, each.grad * GRAD + each.training * TRAINING + each.ends * ENDS + each.begins * BEGINS
             + each.method * METHOD,
             indices[each.phase], each.start_ns, each.end_ns, each.owner,
             NO_TIME if each.start_event is None else device_ns(each.start_event),
             NO_TIME if each.end_event is None else device_ns(each.end_event))
        for each in slices
    ])


class EventLogWriter:
    """Appends to an event log; all written data survives the process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.num_slices = 0
        """Number of slices written."""
        for name in (SLICES, NOTES):
            self._append(name, b"", os.O_CREAT)

    def slices(self, slices: list[Slice], device_ns: Callable[[Any], int]) -> None:
        """Append slices; `device_ns` returns the time of a CUDA event."""
        self.num_slices += len(slices)
        self._append(SLICES, packed(slices, device_ns))

    def notes(self, notes: list[dict[str, Any]]) -> None:
        """Append notes, with secrets redacted."""
        self._append(NOTES, b"".join(
            json.dumps(note, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for note in redacted_notes(notes)))

    def _append(self, name: str, content: bytes | bytearray, flags: int = 0) -> None:
        """Append to a file, and close it at once.

        A program that closes all descriptors could open a file of its own under the same number.
        """
        with writing(self._directory):
            file = os.open(self._directory / name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o644)
            try:
                left = memoryview(content)
                while left:
                    left = left[os.write(file, left):]
            finally:
                os.close(file)


def remove_event_log(directory: Path) -> None:
    """Remove an event log that was converted to tables, and the file of a live view."""
    for name in (SLICES, NOTES, WINDOWS, LATEST, PANEL):
        (directory / name).unlink(missing_ok=True)
