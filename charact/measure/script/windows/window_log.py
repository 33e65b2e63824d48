"""File of a long program's windows: one line per window, of bounded size. No torch in here.

When there are `MOST_WINDOWS`, each two neighbours become one window, and later windows are twice as long.
"""

import contextlib
import os
from pathlib import Path

import msgspec

from charact.core.bounded_reading import check_declared
from charact.core.files import atomic_write, writing
from charact.measure.script.windows.window import Window
from charact.record.in_progress import LATEST, WINDOWS

WINDOW_NS = 10_000_000_000
"""Length of the first windows."""
MOST_WINDOWS = 2048
_MAX_BYTES = 2**28
"""Limit of the file's size in bytes; 2,048 windows take some 10 MB."""


class Second(msgspec.Struct):
    """About a second of a program: the iterations of one mode, and the sums of their phases (ns), with `other`."""

    training: bool
    end_ns: int
    num_iterations: int = 0
    phase_ns: dict[str, int] = {}


class Latest(msgspec.Struct):
    """State of a program in windows: the number of iterations in all windows so far, and the last seconds."""

    num_iterations: int
    seconds: list[Second]


class WindowLog:
    """Writes windows to a file of bounded size; what is written survives the process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._num_windows = 0
        self.length_ns = WINDOW_NS
        """Length of the next windows."""

    def append(self, window: Window) -> None:
        """Write a window."""
        with writing(self._directory):
            file = os.open(self._directory / WINDOWS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, msgspec.json.encode(window) + b"\n")
            finally:
                os.close(file)
        self._num_windows += 1
        if self._num_windows >= MOST_WINDOWS:
            self._merge_neighbours()

    def write_latest(self, latest: Latest) -> None:
        """Replace the state that `charact watch` shows."""
        with atomic_write(self._directory / LATEST, durable=False) as temporary:
            temporary.write_bytes(msgspec.json.encode(latest))

    def _merge_neighbours(self) -> None:
        merged: list[Window] = []
        for number, window in enumerate(read_windows(self._directory)[0]):
            if number % 2:
                merged[-1].extend(window)
            else:
                merged.append(window)
        with atomic_write(self._directory / WINDOWS, durable=False) as temporary:
            temporary.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in merged))
        self._num_windows = len(merged)
        self.length_ns *= 2


def read_windows(directory: Path) -> tuple[list[Window], int, int]:
    """Return the windows in order, the number of their bytes, and that of the bytes that are lost after them.

    A line that a kill cut off does not count as lost.
    """
    path, num_bytes = directory / WINDOWS, 0
    windows: list[Window] = []
    try:
        check_declared(path.stat().st_size, path, _MAX_BYTES)
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0, 0
    *lines, rest = content.split(b"\n")
    for line in lines:
        window = _window(line)
        if window is None or (windows and window.start_ns < windows[-1].end_ns):
            return windows, num_bytes, len(content) - num_bytes
        windows.append(window)
        num_bytes += len(line) + 1
    return windows, num_bytes, len(rest) if b"\0" in rest else 0


def _window(line: bytes) -> Window | None:
    """Return the window of a line; None if it is damaged."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        window = msgspec.json.decode(line, type=Window)
        return window if window.is_valid else None
    return None


def read_latest(directory: Path) -> Latest | None:
    """Return the last seconds of a program in windows; None for other programs."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode((directory / LATEST).read_bytes(), type=Latest)
    return None
