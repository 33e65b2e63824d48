"""Groups of runs to compare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from charact.record.reader import Run


@dataclass(frozen=True, eq=False)
class Group:
    """A group of runs with the same setup; several runs are repeats, pooled for each case.

    An analysis takes a sequence of groups with unique labels; the first is the baseline. Columns `side` hold labels.
    """

    label: str
    runs: tuple[Run, ...]
    found: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Results of analyses with this group as the baseline, cached by `memoize_comparison` and `gathered`."""
    on_run: Callable[[Run], object] = field(default=lambda run: None, repr=False)
    """Called after each read of a run of this group."""


class _Copied(Protocol):
    def copy(self) -> Self: ...


P = ParamSpec("P")
Found = TypeVar("Found", bound=_Copied)
Analysis = Callable[Concatenate[Sequence[Group], P], Found]


def memoize_comparison(analysis: Analysis[P, Found]) -> Analysis[P, Found]:
    """Decorate an analysis to memoize its result by groups and arguments; each call returns a copy."""

    @wraps(analysis)
    def known(sides: Sequence[Group], /, *arguments: P.args, **named: P.kwargs) -> Found:
        key = (analysis.__qualname__, tuple(sides), arguments, tuple(named.items()))
        kept = sides[0].found
        if key not in kept:
            kept[key] = analysis(sides, *arguments, **named)
        found: Found = kept[key].copy()
        return found

    return known
