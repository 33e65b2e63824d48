"""Groups of runs to compare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from charact.record.reader import Run


@dataclass(frozen=True)
class Turns:
    """The end of a measurement of two commands by turns, each of which has one run of both.

    `ending` is one of `ENDINGS`. `max_minutes` is the limit of the time; None if the number of turns was given.
    """

    num_turns: int
    ending: str
    max_minutes: float | None = None

    @property
    def is_sequential(self) -> bool:
        """Return whether the times decided on the number of turns, or might have."""
        return self.ending != "repeat"


ENDINGS = ("decided", "time", "repeat", "interrupted", "untimed")
"""Reasons to stop: every case is decided, the time is up, the given number is reached, Ctrl-C, nothing was timed."""


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
    turns: Turns | None = None
    """How the measurement by turns ended that ran all groups; None if there was none."""


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
