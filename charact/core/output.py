"""Output of charact on the terminal. All lines pass through here, so that untrusted text cannot control the terminal.

A broken pipe, a full disk or a closed descriptor does not end a measurement: output that cannot be written is dropped.
If standard output was lost, the exit status of a successful command is 1.
"""

import codecs
import contextlib
import errno
import os
import sys
from typing import IO, Any

from charact.core.text import label, printable

_PLAIN = {
    "’": "'", "‘": "'", "“": '"', "”": '"', "×": "x", "÷": "/", "·": "*", "–": "-", "−": "-", "±": "+-", "…": "...",
    "µ": "u", "→": "->", "█": "#", "■": "#", "▇": "@", "▆": "%", "▅": "#", "▄": "*", "▃": "+", "▂": "-", "▁": ".",
    "✓": "+", "⌈": "ceil(", "⌉": ")", "√": "sqrt ", "π": "pi", "ᵀ": "^T", "°": " deg", "²": "^2",
    "●": "o", "│": "|", "≤": "<=",
    "\xa0": " ", "\ufffd": "?",
}  # fmt: skip
"""charact's own characters in ASCII."""


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in found), error.end


codecs.register_error("charact", _in_ascii)


class Channel:
    """Standard output or standard error, as currently set in `sys`; also a file for rich."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lost: OSError | None = None
        """Error of the first failed write; nothing is written after it."""

    @property
    def _stream(self) -> Any:
        return getattr(sys, self._name)

    def print(self, *lines: str) -> None:
        """Print lines, with control characters replaced, and flush them."""
        self._put(self._stream, "".join(f"{label(line)}\n" for line in lines))

    def write(self, text: str) -> int:
        """Write what rich has drawn, bypassing rich's replacement of the stream."""
        self._put(getattr(self._stream, "rich_proxied_file", self._stream), text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._put(self._stream, "")

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        with contextlib.suppress(AttributeError, ValueError):  # there is none, or it was closed
            return bool(self._stream.isatty())
        return False

    def fileno(self) -> int:
        """Return the descriptor of the stream.

        Raises:
            OSError: it has no descriptor.
        """
        if self._stream is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return int(self._stream.fileno())

    @property
    def encoding(self) -> str:
        """Encoding of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def detach(self) -> None:
        """Do nothing unless a write failed; then forget that, and redirect the stream to /dev/null.

        Python flushes its buffer at exit, which would fail again.
        """
        if self.lost is not None:
            with contextlib.suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())
                os.close(null)
            self.lost = None

    def _put(self, stream: IO[str] | None, text: str) -> None:
        if self.lost is not None:
            return
        try:
            if stream is not None:
                if text:
                    stream.write(text.encode(self.encoding, "charact").decode(self.encoding))
                stream.flush()
            elif text:
                raise OSError(errno.EBADF, "it is closed")
        except OSError as error:
            self.lost = error
        except ValueError as error:  # the user's program closed it
            self.lost = OSError(errno.EBADF, str(error))


OUT, ERR = Channel("stdout"), Channel("stderr")


def show(*lines: str) -> None:
    """Print lines to standard output, by default an empty one; control characters within a line are replaced."""
    OUT.print(*(lines or ("",)))


def warn(*lines: str) -> None:
    """Print lines to standard error; control characters within a line, such as tabs, are replaced."""
    ERR.print(*lines)


def finish(status: int) -> int:
    """Flush output and return the exit status: 1 instead of 0 if standard output was lost.

    A broken pipe, as when `head` exits, is not reported.
    """
    OUT.flush()
    ERR.flush()
    lost = OUT.lost
    if lost is not None and not isinstance(lost, BrokenPipeError):
        reason = (lost.strerror or str(lost)).lower()
        warn(f"error: cannot write to standard output ({reason}): redirect it to another place")
    OUT.detach()
    ERR.detach()
    return 1 if lost is not None and status == 0 else status


def occupy_closed_descriptors() -> None:
    """Open /dev/null for closed standard streams: otherwise a record's file gets their number, and their output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class PrintableStream:
    """A stream for libraries that log: it replaces control characters."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text; newlines are kept."""
        self._stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
