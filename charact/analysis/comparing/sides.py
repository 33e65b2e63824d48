"""What is compared: sides, each a name and one or more runs of the same thing."""

from dataclasses import dataclass

from charact.store import Run


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison; several runs are repeats, pooled case by case.

    Of the sides that an analysis is given, the first is the baseline, and labels differ.
    """

    label: str
    runs: tuple[Run, ...]
