"""Memoization of analyses."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from charact.record.reader import Run


class _Copied(Protocol):
    def copy(self) -> Self: ...


P = ParamSpec("P")
Subject = TypeVar("Subject")
Result = TypeVar("Result", bound=_Copied)
Analysis = Callable[Concatenate[Subject, P], Result]


def memoize(analysis: Analysis[Subject, P, Result]) -> Analysis[Subject, P, Result]:
    """Decorate an analysis of a run, or of groups of runs, to memoize its result; each call returns a copy.

    Results are kept by the arguments in `found` of the run, or of the first group.
    """

    @wraps(analysis)
    def memoized(subject: Subject, /, *arguments: P.args, **named: P.kwargs) -> Result:
        groups: Any = () if isinstance(subject, Run) else tuple(subject)  # type: ignore[arg-type]
        results: dict[Any, Any] = subject.found if isinstance(subject, Run) else groups[0].found
        key = (analysis.__qualname__, groups, arguments, tuple(named.items()))
        if key not in results:
            results[key] = analysis(subject, *arguments, **named)
        result: Result = results[key].copy()
        return result

    return memoized
