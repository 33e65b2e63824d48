"""Event log that a profiled program writes while it runs, so that a killed program leaves one. No torch in here.

    slices.bin     one record of fixed size per slice
    notes.jsonl    one line per note: facts of the owners, windows and tables of the passes, the end

A record or line that a kill cut off is ignored. A file damaged by a power loss or a broken disk is read up to its first
invalid record.
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
from charact.record.redaction import redacted_notes
from charact.record.schema import PHASES

_RECORD = struct.Struct("<BBBqqqqq")
_KINDS = {int(kind): kind for kind in Kind}
_NAMED = (None, *PHASES)
"""Phases named by the program; the record stores the index."""
_INDICES = {phase: index for index, phase in enumerate(_NAMED)}

_GRAD, _TRAINING, _ENDS, _BEGINS, _METHOD = 1, 2, 4, 8, 16
_ALL_FLAGS = _GRAD | _TRAINING | _ENDS | _BEGINS | _METHOD
_NO_TIME = -1
_MAX_BYTES = 2**30
"""Limit of a file's size in bytes; a program writes some 20 MB of slices, and less of notes."""


class Damage(NamedTuple):
    """Position from which a file of an event log is damaged; the bytes before it are valid."""

    file: str
    at_byte: int
    lost_bytes: int

    def __str__(self) -> str:
        share = self.lost_bytes / (self.at_byte + self.lost_bytes)
        return (f"{self.file} is damaged from byte {self.at_byte:,} on: its last {self.lost_bytes:,} bytes "
                f"({share:.0%}) are lost, the bytes before are kept")


class EventLogWriter:
    """Appends to an event log; all written data survives the process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.num_slices = 0
        """Number of slices written."""
        for name in (SLICES, NOTES):
            self._append(name, b"", os.O_CREAT)

    def slices(self, slices: list[Slice], device_ns: Callable[[Any], int]) -> None:
        """Append slices; `device_ns` returns the time of a CUDA event. The program waits: keep it fast."""
        pack, indices = _RECORD.pack, _INDICES
        self.num_slices += len(slices)
        self._append(SLICES, b"".join([
            pack(one.kind, one.grad * _GRAD + one.training * _TRAINING + one.ends * _ENDS + one.begins * _BEGINS
                 + one.method * _METHOD,
                 indices[one.phase], one.start_ns, one.end_ns, one.owner,
                 _NO_TIME if one.start_event is None else device_ns(one.start_event),
                 _NO_TIME if one.end_event is None else device_ns(one.end_event))
            for one in slices
        ]))

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


class EventLogReader:
    """Reader of an event log that may still grow. It reads a damaged file up to the first invalid record."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._slices_read = self._notes_read = 0
        self._last_ns = -(1 << 63)
        self.damage: dict[str, Damage] = {}
        """Damaged files, by name."""

    def slices(self) -> Iterator[Slice]:
        """Yield the slices since the last call; their events are device times in nanoseconds, or None."""
        content = self._since(SLICES, self._slices_read)
        whole = len(content) - len(content) % _RECORD.size
        for record in _RECORD.iter_unpack(content[:whole]):
            number, flags, named, start_ns, end_ns, owner, begun, ended = record
            if number not in _KINDS or flags > _ALL_FLAGS or named >= len(_NAMED) or end_ns < start_ns:
                self._note_damage(SLICES, self._slices_read)
                return
            if start_ns < self._last_ns:  # slices are in order, so one of the two times is wrong
                self._note_damage(SLICES, self._slices_read - _RECORD.size)
                return
            self._slices_read += _RECORD.size
            self._last_ns = end_ns
            yield Slice(_KINDS[number], start_ns, end_ns, owner, bool(flags & _GRAD), bool(flags & _TRAINING),
                        bool(flags & _ENDS), None if begun == _NO_TIME else begun,
                        None if ended == _NO_TIME else ended, _NAMED[named],
                        bool(flags & _BEGINS), bool(flags & _METHOD))

    def notes(self) -> list[dict[str, Any]]:
        """Return the notes since the last call."""
        from charact.measure.script.spans.event_log_notes import (
            read_note,  # slow import that a profiled program does not need
        )

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
        if b"\0" in rest:  # not the beginning of a line
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
                check_declared(os.fstat(file.fileno()).st_size, self._directory / name, _MAX_BYTES)
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            return b""


def num_slices(num_bytes: int) -> int:
    """Return the number of complete slice records in that many bytes."""
    return num_bytes // _RECORD.size


def remove_event_log(directory: Path) -> None:
    """Remove an event log that was converted to tables, and the file of a live view."""
    for name in (SLICES, NOTES, PANEL):
        (directory / name).unlink(missing_ok=True)
