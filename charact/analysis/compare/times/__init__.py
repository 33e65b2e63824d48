"""Times of further kinds of cases, by which comparisons compare them: one file a kind.

A file holds `TIMES`: by level of the comparison (`case`, `phase` or one of its own), a function that yields the samples
of a run, each with its case and the name of its part.
"""

from collections.abc import Callable, Iterator
from functools import cache

from charact.analysis.common.significance import Sample
from charact.core.plugins import modules_in
from charact.record.reader import Run

Timer = Callable[[Run], Iterator[tuple[tuple[str, str], Sample]]]


@cache
def further_times(level: str) -> list[Timer]:
    """Return all files' functions for a level of a comparison: `case`, `phase`, or a file's own such as `brick`."""
    return [module.TIMES[level] for module in modules_in(__name__) if level in module.TIMES]
