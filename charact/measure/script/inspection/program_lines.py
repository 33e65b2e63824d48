"""Lines of a program's source code, found by their text."""

import linecache
import re
from collections.abc import Sequence
from typing import Any

from charact.measure.script.hooks.variable_names import program_frames
from charact.measure.script.spans.stack_sampler import short_path

NO_LINE: dict[str, Any] = {"file": None, "line": None, "text": None}
_MOST_CHARACTERS = 120


def line_of_program(pattern: str, files: Sequence[str] = ()) -> dict[str, Any]:
    """Return file, number and text of the first line that contains a pattern; None each if no line does.

    Args:
        pattern: regular expression.
        files: source files to search before those of the running functions of the program.
    """
    running = dict.fromkeys(frame.f_code.co_filename for frame in program_frames())
    for file in (*files, *running):
        for number, text in enumerate(linecache.getlines(file), 1):
            if re.search(pattern, text) and not text.lstrip().startswith("#"):
                return {"file": short_path(file), "line": number, "text": text.strip()[:_MOST_CHARACTERS]}
    return dict(NO_LINE)
