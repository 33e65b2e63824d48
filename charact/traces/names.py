"""Names out of a trace, as text that every view can show."""

import os
import re
from pathlib import Path

MAX_NAME_LENGTH = 10_000
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(name: str) -> str:
    """A name without control characters and lone surrogates, which files and terminals cannot take; at most so long."""
    name = _CONTROL.sub("\ufffd", name)
    return f"{name[:MAX_NAME_LENGTH]}…" if len(name) > MAX_NAME_LENGTH else name


def readable(path: Path) -> str:
    """A path as text, whatever bytes its name is made of."""
    return clean(os.fsencode(path).decode("utf-8", "replace"))
