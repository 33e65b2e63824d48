"""What a metric is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from charact.analysis.common.significance import Sample
from charact.record.reader import Run

Unit = Literal["s", "B", "J", "1", "samples/s", "tokens/s"]
"""Seconds, bytes, joules, a fraction of 1 (shown as a percentage), samples and tokens per second."""


@dataclass(frozen=True)
class Metric:
    """A metric of cases: a number with its uncertainty, of which a comparison shows ratios.

    Args:
        name: as in commands and exports; also the name of the file.
        place: position in tables, in steps of ten.
        label: words for it in tables.
        unit: unit of its values.
        meaning: definition, for the reference.
        samples: returns identifiers of a run's cases that have it, each with a sample.
        higher_is_better: whether a larger value is better.
        is_exact: whether it is counted: then every difference is significant.
        measured_by: optional pass of a case that measures it, which may say why it is missing.
        why_missing: optional function of a run and a case without it, which may say why.
        is_limited_itself: whether a number in a threshold limits the value, not its ratio to the baseline's.
    """

    name: str
    place: int
    label: str
    unit: Unit
    meaning: str
    samples: Callable[[Run], Iterable[tuple[str, Sample]]]
    higher_is_better: bool = False
    is_exact: bool = False
    measured_by: str | None = None
    why_missing: Callable[[Run, str], str | None] = lambda run, case: None
    is_limited_itself: bool = False
