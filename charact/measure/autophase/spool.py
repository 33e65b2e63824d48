"""The spool: what a watched program writes as it runs, so that even a killed one leaves it. No torch in here.

    slices.bin     one fixed record a slice
    notes.jsonl    one line a note: what the owners of slices are, stretches of passes, rows of tables, the end

Only whole records count: what a kill cut off is left out.
"""

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from charact.files import writing
from charact.measure.autophase.spans import Kind, Slice
from charact.partial import PANEL
from charact.redaction import redacted
from charact.schema import PHASES

SLICES, NOTES = "slices.bin", "notes.jsonl"
_RECORD = struct.Struct("<BBBqqqqq")
_KINDS = {int(kind): kind for kind in Kind}
_NAMED = (None, *PHASES)
"""What the program itself named; the phase is stored as its place here."""
_PLACES = {phase: place for place, phase in enumerate(_NAMED)}

_GRAD, _TRAINING, _ENDS, _BEGINS = 1, 2, 4, 8
_NO_TIME = -1


class SpoolWriter:
    """Appends to a spool; what was written survives the process.

    Raises:
        UserError: the directory cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.num_slices = 0
        """So many were appended."""
        for name in (SLICES, NOTES):
            self._append(name, b"", os.O_CREAT)

    def slices(self, slices: list[Slice], device_ns: Callable[[Any], int]) -> None:
        """Append slices; `device_ns` tells the time of a CUDA event. The program waits meanwhile: no step too many."""
        pack, places = _RECORD.pack, _PLACES
        self.num_slices += len(slices)
        self._append(SLICES, b"".join([
            pack(one.kind, one.grad * _GRAD + one.training * _TRAINING + one.ends * _ENDS + one.begins * _BEGINS,
                 places[one.phase], one.start_ns, one.end_ns, one.owner,
                 _NO_TIME if one.start_event is None else device_ns(one.start_event),
                 _NO_TIME if one.end_event is None else device_ns(one.end_event))
            for one in slices
        ]))

    def notes(self, notes: list[dict[str, Any]]) -> None:
        """Append notes, without secrets."""
        self._append(NOTES, b"".join(json.dumps(redacted(note)).encode() + b"\n" for note in notes))

    def _append(self, name: str, content: bytes | bytearray, flags: int = 0) -> None:
        """Append to a file, which is open no longer than that.

        A program that closes all descriptors would get the number of an open one for a file of its own.
        """
        with writing(self._directory):
            file = os.open(self._directory / name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o644)
            try:
                left = memoryview(content)
                while left:
                    left = left[os.write(file, left):]
            finally:
                os.close(file)


class SpoolReader:
    """Reads a spool, again and again where it grows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._slices_read = self._notes_read = 0

    def slices(self) -> Iterator[Slice]:
        """Slices since the last call; their events are times of the device in nanoseconds, or None."""
        content = self._since(SLICES, self._slices_read)
        whole = len(content) - len(content) % _RECORD.size
        self._slices_read += whole
        for number, flags, named, start_ns, end_ns, owner, begun, ended in _RECORD.iter_unpack(content[:whole]):
            yield Slice(_KINDS[number], start_ns, end_ns, owner, bool(flags & _GRAD), bool(flags & _TRAINING),
                        bool(flags & _ENDS), None if begun == _NO_TIME else begun,
                        None if ended == _NO_TIME else ended, _NAMED[named],
                        bool(flags & _BEGINS))

    def notes(self) -> list[dict[str, Any]]:
        """Notes since the last call."""
        content = self._since(NOTES, self._notes_read)
        whole = content.rfind(b"\n") + 1
        self._notes_read += whole
        return [json.loads(line) for line in content[:whole].splitlines()]

    def _since(self, name: str, offset: int) -> bytes:
        try:
            with open(self._directory / name, "rb") as file:
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            return b""


def remove_spool(directory: Path) -> None:
    """Remove a spool that was made into tables, and what a live view may have left."""
    for name in (SLICES, NOTES, PANEL):
        (directory / name).unlink(missing_ok=True)
