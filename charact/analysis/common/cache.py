"""Memoization of analyses per run."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, Self, TypeVar

from charact.record.reader import Run


class _Copied(Protocol):
    def copy(self) -> Self: ...


P = ParamSpec("P")
Found = TypeVar("Found", bound=_Copied)
Analysis = Callable[Concatenate[Run, P], Found]


def memoize(analysis: Analysis[P, Found]) -> Analysis[P, Found]:
    """Decorate an analysis to memoize its result per run and arguments; each call returns a copy."""

    @wraps(analysis)
    def known(run: Run, /, *arguments: P.args, **named: P.kwargs) -> Found:
        key = (analysis.__qualname__, arguments, tuple(named.items()))
        if key not in run.found:
            run.found[key] = analysis(run, *arguments, **named)
        found: Found = run.found[key].copy()
        return found

    return known
