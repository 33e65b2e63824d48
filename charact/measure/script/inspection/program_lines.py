"""Lines of a program's source code, found by their text."""

import linecache
import re
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from charact.measure.script.spans.stack_sampler import short_path

NO_LINE: dict[str, Any] = {"file": None, "line": None, "text": None}
_NOT_THE_PROGRAM = ("charact", "torch", "runpy")
_MOST_CHARACTERS = 120


def line_of_program(pattern: str, files: Sequence[str] = ()) -> dict[str, Any]:
    """Return file, number and text of the first line that contains a pattern; None each if no line does.

    Args:
        pattern: regular expression.
        files: source files to search before those of the running functions of the program.
    """
    for file in (*files, *_running_files()):
        for number, text in enumerate(linecache.getlines(file), 1):
            if re.search(pattern, text) and not text.lstrip().startswith("#"):
                return {"file": short_path(file), "line": number, "text": text.strip()[:_MOST_CHARACTERS]}
    return dict(NO_LINE)


def _running_files() -> list[str]:
    """Return the program's files with running functions, innermost first."""
    files: dict[str, None] = {}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_PROGRAM:
            files.setdefault(frame.f_code.co_filename)
        frame = frame.f_back
    return list(files)
