"""Suggestions for names that were misspelled."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return "did you mean ...?" with up to three similar names, ignoring case; without any, `otherwise`."""
    by_lower = {each.lower(): each for each in reversed(list(names))}
    near = [by_lower[each] for each in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    return f"did you mean {', '.join(near)}?" if near else otherwise
