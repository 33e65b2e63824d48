"""Reserved lines at the bottom of a terminal, below the scrolling region of other processes.

*Source*: the control sequences are those of ECMA-48 and of DEC's VT100 (DECSTBM, DECSC, DECRC, IND), which terminals
on Linux and macOS support; apt reserves the line of its progress in the same way.
"""

import contextlib
import os
from collections.abc import Sequence

from charact.core.output import OUT

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_DOWN, _WHOLE, _CLEAR_BELOW, _CLEAR_LINE = "\x1bD", "\x1b[r", "\x1b[J", "\x1b[2K"
_LINES_LEFT = 5
"""Minimum number of lines that other output keeps; in a smaller terminal nothing is drawn."""


class BottomLines:
    """The last lines of a terminal, reserved when first drawn, and again after its size has changed.

    Each change is a single write, so that the output of other processes cannot split it.

    Args:
        terminal: descriptor of the terminal.
        num_lines: number of lines.
    """

    def __init__(self, terminal: int, num_lines: int) -> None:
        self._terminal, self._num_lines = terminal, num_lines
        self._size: os.terminal_size | None = None
        """Size of the terminal when the lines were reserved; None if none are reserved."""

    @property
    def width(self) -> int:
        """Return the columns of the terminal."""
        return os.get_terminal_size(self._terminal).columns

    @property
    def restoring(self) -> str:
        """Return the text that releases the lines, for any process to write; empty if none are reserved."""
        if self._size is None:
            return ""
        return f"{_SAVE}{_WHOLE}\x1b[{self._first_row};1H{_CLEAR_BELOW}{_RESTORE}"

    def draw(self, lines: Sequence[str]) -> None:
        """Draw these lines; do nothing if the terminal is too small, or another job is in its foreground."""
        size = os.get_terminal_size(self._terminal)
        if size.lines < self._num_lines + _LINES_LEFT or not self._is_ours():
            self.release()
            return
        reserving = ""
        if size != self._size:
            self._size = size
            reserving = self._reserving()
        rows = [*lines, *[""] * (self._num_lines - len(lines))]
        drawn = "".join(f"\x1b[{self._first_row + number};1H{_CLEAR_LINE}{row}" for number, row in enumerate(rows))
        self._write(f"{reserving}{_SAVE}{drawn}{_RESTORE}")

    def release(self) -> None:
        """Clear and release the lines; the text above and the cursor stay."""
        if self._size is not None:
            self._write(self.restoring)
            self._size = None

    @property
    def _first_row(self) -> int:
        assert self._size is not None
        return self._size.lines - self._num_lines + 1

    def _reserving(self) -> str:
        """Return the text that reserves the lines: move the cursor out, clear old lines, and set the scrolling region.

        Moving down at the end of the screen scrolls it. Setting the region moves the cursor to the first row.
        """
        out_of_them = _DOWN * self._num_lines + f"\x1b[{self._num_lines}A"
        below = f"{_SAVE}\x1b[E{_CLEAR_BELOW}{_RESTORE}"
        scrolling = f"{_SAVE}\x1b[1;{self._first_row - 1}r{_RESTORE}"
        return f"{_SAVE}{_WHOLE}{_RESTORE}{out_of_them}{below}{scrolling}"

    def _is_ours(self) -> bool:
        """Return whether this job is in the foreground; a terminal without a session counts as ours."""
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:
            return True

    def _write(self, text: str) -> None:
        """Write to the terminal; ignore a terminal that is gone."""
        with contextlib.suppress(OSError):
            os.write(self._terminal, text.encode(OUT.encoding, "replace"))
