"""Cleaning of names from a trace for display."""

import os
from pathlib import Path

from charact.core.text import label

MAX_NAME_LENGTH = 10_000


def clean(name: str) -> str:
    """Return a name of limited length without control characters and lone surrogates."""
    name = label(name)
    return f"{name[:MAX_NAME_LENGTH]}…" if len(name) > MAX_NAME_LENGTH else name


def readable(path: Path) -> str:
    """Return a path as text, whatever bytes its name has."""
    return clean(os.fsencode(path).decode("utf-8", "replace"))
