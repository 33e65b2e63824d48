"""Thresholds of the regression gate, and their parser."""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from charact.analysis.compare.metrics import all_metrics
from charact.core.errors import UserError
from charact.record.schema import PHASES

_SIGNS: dict[str, Callable[[float, float], bool]] = {">": operator.gt, "<": operator.lt}
_BLANKS = re.compile(r"\s*")
_NAME = re.compile(r"\w[\w.]*")
_SIGN = re.compile(r"[<>]")
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_LIMIT = re.compile(rf"(?P<ratio>{_NUMBER})(?![\d.]|\s*%)|(?P<change>[+-]\s*{_NUMBER})\s*%", re.ASCII)
_LONGEST = 60


@dataclass(frozen=True)
class Threshold:
    """A metric, one of `all_metrics` or `phase.` with a phase, and the limit of its ratio to the baseline."""

    metric: str
    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.limit!r}"

    @property
    def phase(self) -> str | None:
        """The phase of the threshold; None for another metric."""
        return self.metric.removeprefix("phase.") if self.metric.startswith("phase.") else None

    def is_exceeded_by(self, ratio: float) -> bool:
        """Return whether a ratio is beyond the limit."""
        return _SIGNS[self.sign](ratio, self.limit)


def parse(text: str) -> Threshold:
    """Return the threshold from a text such as `time > 1.05`, `phase.backward > +10%` or `throughput < 0.95`.

    A limit is a ratio to the baseline, or a change with its sign and a percent sign.
    """
    name, end = _take(_NAME, text, 0, "a metric (" + ", ".join(all_metrics()) + " or phase.NAME)")
    _check_metric(text, name)
    sign, end = _take(_SIGN, text, end, "> or <")
    limit, after = _take(_LIMIT, text, end, "a limit as in 1.05 or +5%")
    threshold = Threshold(name[0], sign[0], _ratio(limit))
    _check_limit(text, threshold, limit)
    rest = _BLANKS.match(text, after)
    assert rest is not None  # blanks may be none
    if rest.end() < len(text):
        raise _error(text, rest.end(), "expected the end of the threshold: write one --fail-if for each")
    return threshold


def _take(pattern: re.Pattern[str], text: str, start: int, wanted: str) -> tuple[re.Match[str], int]:
    """Return what a pattern matches after blanks, and where it ends."""
    blanks = _BLANKS.match(text, start)
    assert blanks is not None  # blanks may be none
    found = pattern.match(text, blanks.end())
    if found is None:
        raise _error(text, blanks.end(), f"expected {wanted}")
    return found, found.end()


def _check_metric(text: str, name: re.Match[str]) -> None:
    metric, dot, phase = name[0].partition(".")
    if metric == "phase" and dot:
        if phase not in PHASES:
            raise _error(text, name.start() + len("phase."), f"unknown phase, choose from {', '.join(PHASES)}")
    elif name[0] not in all_metrics():
        raise _error(text, name.start(), f"unknown metric, choose from {', '.join(all_metrics())}, phase.NAME")


def _ratio(limit: re.Match[str]) -> float:
    if limit["ratio"] is not None:
        return float(limit["ratio"])
    return (100 + float(re.sub(r"\s", "", limit["change"]))) / 100


def _check_limit(text: str, threshold: Threshold, limit: re.Match[str]) -> None:
    """Reject limits that an unchanged ratio would exceed, and limits that no ratio can exceed."""
    if threshold.sign == ">" and not 1 <= threshold.limit < math.inf:
        raise _error(text, limit.start(), "after > the limit must be 1 or more, as in 1.05 or +5%")
    if threshold.sign == "<" and not 0 < threshold.limit <= 1:
        raise _error(text, limit.start(), "after < the limit must be above 0 and up to 1, as in 0.95 or -5%")


def _error(text: str, at: int, message: str) -> UserError:
    found = repr(text[at : at + _LONGEST]) if at < len(text) else "the end"
    shown = repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
    return UserError(f"threshold {shown}, character {at + 1}, at {found}: {message}")
