"""What is compared: sides, each a name and one or more runs of the same thing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from charact.record.reader import Run


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison; several runs are repeats, pooled case by case.

    Of the sides that an analysis is given, the first is the baseline, and labels differ.
    """

    label: str
    runs: tuple[Run, ...]
    found: dict[Any, Any] = field(default_factory=dict, repr=False)
    """What analyses have found where this side is the baseline, kept by `once_a_comparison` and `gathered`."""
    on_run: Callable[[Run], object] = field(default=lambda run: None, repr=False)
    """Called each time that a run of this side has been read."""


class _Copied(Protocol):
    def copy(self) -> Self: ...


P = ParamSpec("P")
Found = TypeVar("Found", bound=_Copied)
Analysis = Callable[Concatenate[Sequence[Side], P], Found]


def once_a_comparison(analysis: Analysis[P, Found]) -> Analysis[P, Found]:
    """Return the analysis; for sides and arguments that it has seen, it returns a copy of what it found."""

    @wraps(analysis)
    def known(sides: Sequence[Side], /, *arguments: P.args, **named: P.kwargs) -> Found:
        key = (analysis.__qualname__, tuple(sides), arguments, tuple(named.items()))
        kept = sides[0].found
        if key not in kept:
            kept[key] = analysis(sides, *arguments, **named)
        found: Found = kept[key].copy()
        return found

    return known
