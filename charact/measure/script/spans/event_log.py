"""The event log that a watched program writes while it runs, so that a killed program leaves one. No torch in here.

    slices.bin     one fixed record a slice
    notes.jsonl    one line a note: what the owners of slices are, stretches of passes, rows of tables, the end

Only whole records count: what a kill cut off is left out. A file that a power loss or a broken disk has damaged counts
up to its first bad record, which is one that no writer writes.
"""

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from charact.core.bounded_reading import check_declared
from charact.core.files import writing
from charact.measure.script.spans.recorder import Kind, Slice
from charact.record.in_progress import NOTES, PANEL, SLICES
from charact.record.redaction import redacted
from charact.record.schema import PHASES

_RECORD = struct.Struct("<BBBqqqqq")
_KINDS = {int(kind): kind for kind in Kind}
_NAMED = (None, *PHASES)
"""What the program itself named; the phase is stored as its place here."""
_PLACES = {phase: place for place, phase in enumerate(_NAMED)}

_GRAD, _TRAINING, _ENDS, _BEGINS = 1, 2, 4, 8
_ALL_FLAGS = _GRAD | _TRAINING | _ENDS | _BEGINS
_NO_TIME = -1
_MOST_BYTES = 2**30
"""Limit of a file's size; a program writes some 20 MB of slices, and less of notes."""


class Damage(NamedTuple):
    """Where a file of an event log is damaged: what lies before can be read, and is kept."""

    file: str
    at_byte: int
    lost_bytes: int

    def __str__(self) -> str:
        share = self.lost_bytes / (self.at_byte + self.lost_bytes)
        return (f"{self.file} is damaged from byte {self.at_byte:,} on: its last {self.lost_bytes:,} bytes "
                f"({share:.0%}) are lost, what came before is kept")


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
        """Append slices; `device_ns` returns the time of a CUDA event. The program waits: keep it fast."""
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
        self._append(NOTES, b"".join(
            json.dumps(redacted(note), ensure_ascii=False).encode("utf-8", "replace") + b"\n" for note in notes))

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
    """Reader of an event log that may still grow. A damaged file is read up to its first bad record.

    Raises:
        UserError: a file is larger than any that a program writes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._slices_read = self._notes_read = 0
        self._last_ns = -(1 << 63)
        self.damage: dict[str, Damage] = {}
        """By name the files that have turned out to be damaged."""

    def slices(self) -> Iterator[Slice]:
        """Slices since the last call; their events are times of the device in nanoseconds, or None."""
        content = self._since(SLICES, self._slices_read)
        whole = len(content) - len(content) % _RECORD.size
        for record in _RECORD.iter_unpack(content[:whole]):
            number, flags, named, start_ns, end_ns, owner, begun, ended = record
            if number not in _KINDS or flags > _ALL_FLAGS or named >= len(_NAMED) or end_ns < start_ns:
                self._note_damage(SLICES, self._slices_read)
                return
            if start_ns < self._last_ns:  # slices come in order: the time of this one is wrong, or of the one before
                self._note_damage(SLICES, self._slices_read - _RECORD.size)
                return
            self._slices_read += _RECORD.size
            self._last_ns = end_ns
            yield Slice(_KINDS[number], start_ns, end_ns, owner, bool(flags & _GRAD), bool(flags & _TRAINING),
                        bool(flags & _ENDS), None if begun == _NO_TIME else begun,
                        None if ended == _NO_TIME else ended, _NAMED[named],
                        bool(flags & _BEGINS))

    def notes(self) -> list[dict[str, Any]]:
        """Notes since the last call."""
        from charact.measure.script.spans.event_log_notes import read_note  # a watched program only writes them

        content = self._since(NOTES, self._notes_read)
        *lines, rest = content.split(b"\n")
        found = []
        for line in lines:
            try:
                found.append(read_note(line))
            except ValueError:
                self._note_damage(NOTES, self._notes_read)
                return found
            self._notes_read += len(line) + 1
        if b"\0" in rest:  # no part of a line that goes on
            self._note_damage(NOTES, self._notes_read)
        return found

    def _note_damage(self, name: str, at_byte: int) -> None:
        size = (self._directory / name).stat().st_size
        self.damage[name] = Damage(name, at_byte, size - at_byte)

    def _since(self, name: str, offset: int) -> bytes:
        if name in self.damage:
            return b""
        try:
            with open(self._directory / name, "rb") as file:
                check_declared(os.fstat(file.fileno()).st_size, self._directory / name, _MOST_BYTES)
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            return b""


def num_slices(num_bytes: int) -> int:
    """Number of whole records of slices in so many bytes."""
    return num_bytes // _RECORD.size


def remove_spool(directory: Path) -> None:
    """Remove a spool that was made into tables, and what a live view may have left."""
    for name in (SLICES, NOTES, PANEL):
        (directory / name).unlink(missing_ok=True)
