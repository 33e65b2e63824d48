"""Reading of a trace's JSON in blocks, so that a large file needs little memory.

A block is cut where an event seems to end, and parsing it proves the cut: a list of whole values that starts at an
event ends at one. Only if the guess was wrong, all brackets are scanned.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from charact.core.errors import UserError
from charact.core.text import label
from charact.traces.foreign_files import HEAD_BYTES, foreign_kind, wrong_type

Event = TypeVar("Event")

PIECE_BYTES = 1 << 20
MOST_VALUES = 10_000
"""Limit of values outside the events; a trace has some tens."""
LARGEST_VALUE_BYTES = 16 << 20
"""Limit of a single event, and of all values outside the events together."""
_NO_EVENTS = (msgspec.DecodeError, UnicodeDecodeError)
_decode_any = msgspec.json.Decoder(list[msgspec.Raw]).decode
_BETWEEN = re.compile(rb"\}\s*,(?=\s*\{)")
"""Where an event may end. A format whose events contain lists of objects should give a pattern of its own."""
_MOST_AT_ONCE = 2
"""Largest number of blocks that are decoded at once: events need many times the memory of their text."""
_MOST_DEPTH = 10_000
_NEAR_END_BYTES = 1 << 18
"""Distance from the end in which a cut is searched."""
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+"
_INNERMOST = rb"[\[{]" + _FLAT + rb"[\]}]"
_CLOSED = re.compile(_STRING + rb"|" + _INNERMOST, re.DOTALL)
"""A string, or a list or object without another one inside."""
_BRACKETS = re.compile(_INNERMOST + rb"(?:" + _FLAT + _INNERMOST + rb"){0,100}+|" + _STRING + rb'|["\[\]{}]', re.DOTALL)
"""Tokens of nesting. Adjacent closed values are matched at once, because one by one is slow."""
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
    """The JSON of a trace file: its events as lists, block by block, and the values outside them.

    Args:
        file: the text.
        path: the file's path, for messages.
        wanted: keys whose values outside the events are stored.
        format_name: what the file should be, for messages.
        between: where an event may end, up to the comma after it, outside of strings.
    """

    def __init__(self, file: Readable, path: Path, wanted: frozenset[str] = frozenset(),
                 format_name: str = "a trace of torch.profiler", between: re.Pattern[bytes] = _BETWEEN) -> None:
        self._file, self._path, self._wanted = file, path, wanted
        self._format_name, self._between = format_name, between
        self._text, self._at, self._ended = b"", 0, False
        self._passed_bytes = self._metadata_bytes = self._num_metadata = 0
        self.metadata: dict[str, Any] = {}
        """Wanted values outside the events; complete after all events were read."""

    def events(self, decode: Callable[[bytes], list[Event]]) -> Iterator[list[Event]]:
        """Yield lists of events, in the order of the file."""
        first = self.first()
        found = first == b"["
        if found:  # the other form of traces: events only
            yield from self.array(decode)
        else:
            self._at += 1
            while (key := self._key()) is not None:
                if key == "traceEvents" and self._next() == b"[":
                    found = True
                    yield from self.array(decode)
                else:
                    self._read_metadata(key)
        if not found:
            raise UserError(f"{self._path} has no traceEvents: name {self._format_name}")
        self.check_end()

    def first(self) -> bytes:
        """Return the first bracket of the file, of an object or a list."""
        first = self._next()
        if (kind := foreign_kind(self._text[:HEAD_BYTES])) is not None:
            raise UserError(f"{self._path} {kind}")
        if first not in (b"[", b"{"):
            raise UserError(f"{self._path} is {'not JSON' if first else 'empty'}: name {self._format_name}")
        return first

    def check_end(self) -> None:
        """Raise an error if there is more after the value of the file."""
        if self._next():
            raise self._damaged("has data after its end")

    def keys(self) -> Iterator[str]:
        """Yield the keys of the object at the current position; values that are not read meanwhile are skipped."""
        if self._next() != b"{":
            raise self._damaged(f"is not {self._format_name}: an object is missing")
        self._at += 1
        while (key := self._key()) is not None:
            self._next()
            place = self._passed_bytes + self._at
            yield key
            if self._passed_bytes + self._at == place:
                self._skip()

    def elements(self) -> Iterator[None]:
        """Move to each element of the list at the current position; those that are not read meanwhile are skipped."""
        if self._next() != b"[":
            raise self._damaged(f"is not {self._format_name}: a list is missing")
        self._at += 1
        is_first = True
        while (found := self._next()) != b"]":
            if not found:
                self._more_or_cut_off()
            if (found == b",") is is_first:
                raise self._bad_comma()
            self._at += not is_first
            if not is_first and self._next() in (b"]", b","):
                raise self._bad_comma()
            is_first = False
            place = self._passed_bytes + self._at
            yield
            if self._passed_bytes + self._at == place:
                self._skip()
        self._at += 1

    def value(self) -> Any:
        """Return the value at the current position, which is held in memory."""
        self._next()
        while (end := self._end_of_value()) is None:
            self._more_or_cut_off()
        text = mended(self._text[self._at:end])
        try:
            found = msgspec.json.decode(text)
        except _NO_EVENTS as error:
            raise self._damaged(f"is not {self._format_name}: {error}") from error
        self._at = end
        return found

    def _skip(self) -> None:
        """Move behind the value at the current position; a list may be longer than what is held in memory."""
        if self._next() == b"[":
            for _ in self.array(_decode_any):
                pass
        else:
            self.value()

    def _key(self) -> str | None:
        """Return the name of the next value; None at the object's end."""
        if self._next() == b",":
            self._at += 1
        if self._next() == b"}":
            self._at += 1
            return None
        while (match := _KEY.match(self._text, self._at)) is None:
            self._more_or_cut_off()
        self._at = match.end()
        return match[1].decode("utf-8", "replace")

    def _read_metadata(self, key: str) -> None:
        """Skip a value outside the events, and store it if it is wanted."""
        self._next()
        while (end := self._end_of_value()) is None:
            self._check_size(key, len(self._text) - self._at)
            self._more_or_cut_off()
        self._check_size(key, end - self._at)
        self._num_metadata += 1
        self._metadata_bytes += end - self._at
        if self._num_metadata > MOST_VALUES or self._metadata_bytes > LARGEST_VALUE_BYTES:
            raise self._damaged(f"has more than {MOST_VALUES:,} values or {LARGEST_VALUE_BYTES >> 20} MB of metadata")
        if key in self._wanted:
            try:
                self.metadata[key] = msgspec.json.decode(mended(self._text[self._at:end]))
            except _NO_EVENTS as error:
                raise self._damaged(f"is not JSON at '{key}': {error}") from error
        self._at = end

    def _check_size(self, key: str, num_bytes: int) -> None:
        if num_bytes > LARGEST_VALUE_BYTES:
            raise UserError(f"{self._path} has a value '{label(key)}' of more than {LARGEST_VALUE_BYTES >> 20} MB "
                            "outside of events: name a trace of torch.profiler")

    def _end_of_value(self) -> int | None:
        """Return the end of the value at the current position; None if it is not in memory yet."""
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
        """Yield ends of lists and objects in memory, and their depth: -1 at the array's own end."""
        depth = 0
        for token in _BRACKETS.finditer(self._text, self._at):
            kind = token[0]
            if kind == b'"':  # the string goes on
                return
            if kind in (b"[", b"{"):
                depth += 1
                if depth > _MOST_DEPTH:
                    raise UserError(f"{self._path} is not {self._format_name}: it is nested too deeply")
            elif kind in (b"]", b"}"):
                depth -= 1
                yield token.end(), depth
            elif kind[:1] != b'"':
                yield token.end(), depth

    def array(self, decode: Callable[[bytes], list[Event]]) -> Iterator[list[Event]]:
        """Yield the elements of the list at the current position as lists, block by block."""
        self._next()
        self._at += 1
        comma_due = False
        while (first := self._next()) != b"]":
            if comma_due and first == b",":
                self._at += 1
            if first and (comma_due != (first == b",") or self._next() == b"]"):
                raise self._bad_comma()
            while len(self._text) - self._at < PIECE_BYTES and self._read():
                pass
            block = self._guessed(decode)
            comma_due = block is None
            yield self._scanned(decode) if block is None else block
        self._at += 1

    def _guessed(self, decode: Callable[[bytes], list[Event]]) -> list[Event] | None:
        """Return events up to the last position that looks like an event's end; None if it is not one."""
        end = min(len(self._text), self._at + _MOST_AT_ONCE * PIECE_BYTES)
        cuts = list(self._between.finditer(self._text, max(self._at, end - _NEAR_END_BYTES), end))
        if not cuts:
            return None
        cut = cuts[-1]
        try:
            events = decode(b"[" + self._text[self._at:cut.start() + 1] + b"]")
        except _NO_EVENTS:
            return None
        self._at = cut.end()
        return events

    def _scanned(self, decode: Callable[[bytes], list[Event]]) -> list[Event]:
        """Return events up to the last end of one in memory, or to the end of the array."""
        while (end := self._last_end()) is None:
            self._more_or_cut_off()
        text = b"[" + self._text[self._at:end] + b"]"
        try:
            events = decode(mended(text))
        except _NO_EVENTS as error:
            if isinstance(error, msgspec.ValidationError):
                raise UserError(f"{self._path} is not {self._format_name}: {wrong_type(error)}") from error
            raise self._damaged(f"is not {self._format_name}: {wrong_type(error)}") from error
        self._at = end
        return events

    def _last_end(self) -> int | None:
        """Return the end of the last event that is complete in memory; None if there is none."""
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
        """Return the next byte that is not whitespace; empty at the end."""
        while (found := _NO_SPACE.search(self._text, self._at)) is None:
            self._at = len(self._text)
            if not self._read():
                return b""
        self._at = found.start()
        return found[0]

    def _more_or_cut_off(self) -> None:
        if len(self._text) - self._at > LARGEST_VALUE_BYTES:
            raise self._damaged(f"has a single value of more than {LARGEST_VALUE_BYTES >> 20} MB")
        if not self._read():
            raise UserError(f"{self._path} is truncated: it ends within a value; write the trace again")

    def _read(self) -> bool:
        """Read more and drop processed text; returns whether there was more."""
        # Doubles the text in memory, so that repeated scans stay proportional to the size read.
        more = b"" if self._ended else self._file.read(max(PIECE_BYTES, len(self._text) - self._at))
        self._ended = not more
        self._passed_bytes += self._at
        self._text, self._at = self._text[self._at:] + more, 0
        return bool(more)

    def _bad_comma(self) -> UserError:
        return self._damaged(f"is not {self._format_name}: a comma is missing or extra")

    def _damaged(self, what: str) -> UserError:
        return UserError(f"{self._path} {what} (near byte {self._passed_bytes + self._at:,}): write the trace again")


def mended(text: bytes) -> bytes:
    """Repair invalid JSON of profilers.

    Invalid UTF-8 and lone surrogates are replaced; infinite numbers and NaN become null.
    """
    return _ODD.sub(_mended_token, text.decode("utf-8", "replace").encode())


def _mended_token(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if match["sound"] is not None:
        return token if b"\\u" not in token else _LONE_SURROGATE.sub(lambda found: found[1] or rb"\ufffd", token)
    return token if match["large"] is not None and math.isfinite(float(token)) else b"null"
