"""Reading the JSON of a trace by pieces, so that a large file takes little memory.

A piece is cut where an event seems to end, and the parser that reads it proves the cut: what begins at an event's start
and is a list of whole values ends at an event's end. Only where the guess was wrong every bracket is looked at.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from charact.core.errors import UserError

Event = TypeVar("Event")

PIECE_BYTES = 1 << 20
MOST_VALUES = 10_000
"""A trace has some tens of values outside of its events."""
LARGEST_VALUE_BYTES = 16 << 20
"""No event is longer in any real trace, nor are all values outside of the events together."""
_NO_EVENTS = (msgspec.DecodeError, UnicodeDecodeError)
_BETWEEN = re.compile(rb"\}\s*,(?=\s*\{)")
_MOST_AT_ONCE = 2
"""So many pieces are decoded at once at most: events take many times the memory of their text."""
_MOST_DEPTH = 10_000
_NEAR_END_BYTES = 1 << 18
"""So far back a cut is looked for."""
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+"
_INNERMOST = rb"[\[{]" + _FLAT + rb"[\]}]"
_CLOSED = re.compile(_STRING + rb"|" + _INNERMOST, re.DOTALL)
"""A string, or a list or object without another one inside."""
_BRACKETS = re.compile(_INNERMOST + rb"(?:" + _FLAT + _INNERMOST + rb"){0,100}+|" + _STRING + rb'|["\[\]{}]', re.DOTALL)
"""What nesting is told by. Neighbours that are closed in themselves are found at once: one by one is slow."""
_SCALAR_END = re.compile(rb"[\s,\]}]")
_NO_SPACE = re.compile(rb"[^ \t\r\n]")
_ODD = re.compile(rb"""
    (?P<sound>(?:"(?:[^"\\]++|\\.)*+"(?:[\s:,{}\[\]]++|-?\d{1,25}+(?:\.\d{1,25}+)?(?![\w.+-]))*+)++)  # from a string on
    |(?P<large>(?<![\w.+-])-?(?:(?:0|[1-9]\d*+)(?:\.\d++)?[eE]\+?\d{3,}+|[1-9]\d{299,}+(?:\.\d++)?(?:[eE][+-]?\d++)?))
    |-?\b(?:inf|nan|Infinity|NaN)\b
    """, re.DOTALL | re.VERBOSE)
_LONE_SURROGATE = re.compile(rb"(\\u[dD][89abAB]..\\u[dD][c-fC-F]|\\[^u])|\\u[dD][89a-fA-F]..", re.DOTALL)
_KEY = re.compile(rb'"((?:[^"\\]++|\\.)*+)"[ \t\r\n]*:', re.DOTALL)


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes; none at the end."""


class JsonStream:
    """The JSON of a trace file: its events in lists, piece by piece, and the values outside of them.

    Args:
        file: the text, unpacked.
        path: what messages name.
        kept: names of the values outside of the events that are wanted.
    """

    def __init__(self, file: Readable, path: Path, kept: frozenset[str]) -> None:
        self._file, self._path, self._kept = file, path, kept
        self._text, self._at, self._ended = b"", 0, False
        self._passed_bytes = self._beside_bytes = self._num_beside = 0
        self.beside: dict[str, Any] = {}
        """What stands beside the events; whole once all events were read."""

    def events(self, decode: Callable[[bytes], list[Event]]) -> Iterator[list[Event]]:
        """Lists of events, in the order of the file.

        Raises:
            UserError: the text is no trace, or is cut off or damaged.
        """
        first = self._next()
        found = first == b"["
        if found:  # the other form of such files: events alone
            self._at += 1
            yield from self._array(decode)
        elif first == b"{":
            self._at += 1
            while (key := self._key()) is not None:
                if key == "traceEvents" and self._next() == b"[":
                    found = True
                    self._at += 1
                    yield from self._array(decode)
                else:
                    self._beside(key)
        else:
            raise UserError(f"{self._path} is {'no JSON' if first else 'empty'}: name a trace of torch.profiler")
        if not found:
            raise UserError(f"{self._path} holds no traceEvents: name a trace of torch.profiler")
        if self._next():
            raise self._damaged("goes on after its end")

    def _key(self) -> str | None:
        """Name of the next value; None at the object's end."""
        if self._next() == b",":
            self._at += 1
        if self._next() == b"}":
            self._at += 1
            return None
        while (match := _KEY.match(self._text, self._at)) is None:
            self._more_or_cut_off()
        self._at = match.end()
        return match[1].decode("utf-8", "replace")

    def _beside(self, key: str) -> None:
        """Pass a value that is no event, and keep it if it is wanted."""
        self._next()
        while (end := self._end_of_value()) is None:
            self._more_or_cut_off()
        self._num_beside += 1
        self._beside_bytes += end - self._at
        if self._num_beside > MOST_VALUES or self._beside_bytes > LARGEST_VALUE_BYTES:
            raise self._damaged(f"holds more than {MOST_VALUES:,} values or {LARGEST_VALUE_BYTES >> 20} MB outside of "
                                "its events")
        if key in self._kept:
            try:
                self.beside[key] = msgspec.json.decode(mended(self._text[self._at:end]))
            except _NO_EVENTS as error:
                raise self._damaged(f"is no JSON at '{key}': {error}") from error
        self._at = end

    def _end_of_value(self) -> int | None:
        """Where the value that begins here ends; None where that is not in memory yet."""
        if self._text[self._at:self._at + 1] in b'[{"':
            if closed := _CLOSED.match(self._text, self._at):
                return closed.end()
            for end, depth in self._ends():
                if depth == 0:
                    return end
            return None
        scalar = _SCALAR_END.search(self._text, self._at)
        return scalar.start() if scalar else None

    def _ends(self) -> Iterator[tuple[int, int]]:
        """Ends of lists and objects that are in memory, and how deep in others each lies: -1 at the array's own end."""
        depth = 0
        for token in _BRACKETS.finditer(self._text, self._at):
            kind = token[0]
            if kind == b'"':  # the string goes on
                return
            if kind in (b"[", b"{"):
                depth += 1
                if depth > _MOST_DEPTH:
                    raise UserError(f"{self._path} is no trace of torch.profiler: it is nested too deeply")
            elif kind in (b"]", b"}"):
                depth -= 1
                yield token.end(), depth
            elif kind[:1] != b'"':
                yield token.end(), depth

    def _array(self, decode: Callable[[bytes], list[Event]]) -> Iterator[list[Event]]:
        comma_due = False
        while (first := self._next()) != b"]":
            if comma_due and first == b",":
                self._at += 1
            if first and (comma_due != (first == b",") or self._next() == b"]"):
                raise self._damaged("is no trace of torch.profiler: a comma is missing or too many")
            while len(self._text) - self._at < PIECE_BYTES and self._read():
                pass
            piece = self._guessed(decode)
            comma_due = piece is None
            yield self._looked_for(decode) if piece is None else piece
        self._at += 1

    def _guessed(self, decode: Callable[[bytes], list[Event]]) -> list[Event] | None:
        """Events up to the last place that looks like an event's end; None where it was none."""
        end = min(len(self._text), self._at + _MOST_AT_ONCE * PIECE_BYTES)
        cuts = list(_BETWEEN.finditer(self._text, max(self._at, end - _NEAR_END_BYTES), end))
        if not cuts:
            return None
        cut = cuts[-1]
        try:
            events = decode(b"[" + self._text[self._at:cut.start() + 1] + b"]")
        except _NO_EVENTS:
            return None
        self._at = cut.end()
        return events

    def _looked_for(self, decode: Callable[[bytes], list[Event]]) -> list[Event]:
        """Events up to the last end of one that is in memory, or to the end of the array."""
        while (end := self._last_end()) is None:
            self._more_or_cut_off()
        text = b"[" + self._text[self._at:end] + b"]"
        try:
            events = decode(mended(text))
        except _NO_EVENTS as error:
            raise self._damaged(f"is no trace of torch.profiler: {error}") from error
        self._at = end
        return events

    def _last_end(self) -> int | None:
        """Where the last event that is whole in memory ends; None where none is."""
        last = None
        for end, depth in self._ends():
            if depth < 0:  # the array's own end
                return end - 1
            if depth == 0:
                last = end
                if last - self._at > _MOST_AT_ONCE * PIECE_BYTES:
                    break
        return last

    def _next(self) -> bytes:
        """The next byte that is no space; none at the end."""
        while (found := _NO_SPACE.search(self._text, self._at)) is None:
            self._at = len(self._text)
            if not self._read():
                return b""
        self._at = found.start()
        return found[0]

    def _more_or_cut_off(self) -> None:
        if len(self._text) - self._at > LARGEST_VALUE_BYTES:
            raise self._damaged(f"holds a single value of more than {LARGEST_VALUE_BYTES >> 20} MB")
        if not self._read():
            raise UserError(f"{self._path} is cut off: it ends within a value; write the trace again")

    def _read(self) -> bool:
        """Read on; what was passed is forgotten. Returns whether there was more."""
        # As much again as is held: what is searched anew then stays in proportion to what is read.
        more = b"" if self._ended else self._file.read(max(PIECE_BYTES, len(self._text) - self._at))
        self._ended = not more
        self._passed_bytes += self._at
        self._text, self._at = self._text[self._at:] + more, 0
        return bool(more)

    def _damaged(self, what: str) -> UserError:
        return UserError(f"{self._path} {what} (near byte {self._passed_bytes + self._at:,}): write the trace again")


def mended(text: bytes) -> bytes:
    """JSON out of what profilers write that is none, or that no program could keep.

    Bytes that are no UTF-8 and lone surrogates are replaced; numbers that are infinite or none become null.
    """
    return _ODD.sub(_mended_token, text.decode("utf-8", "replace").encode())


def _mended_token(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if match["sound"] is not None:
        return token if b"\\u" not in token else _LONE_SURROGATE.sub(lambda found: found[1] or rb"\ufffd", token)
    return token if match["large"] is not None and math.isfinite(float(token)) else b"null"
