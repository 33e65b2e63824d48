"""Names out of a trace, as text that every view can show."""

import os
from pathlib import Path

from charact.core.text import label

MAX_NAME_LENGTH = 10_000


def clean(name: str) -> str:
    """A name without control characters and lone surrogates, which files and terminals cannot take; at most so long."""
    name = label(name)
    return f"{name[:MAX_NAME_LENGTH]}…" if len(name) > MAX_NAME_LENGTH else name


def readable(path: Path) -> str:
    """A path as text, whatever bytes its name is made of."""
    return clean(os.fsencode(path).decode("utf-8", "replace"))
