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
_NAME = re.compile(r"\s*(?P<part>\w[\w.]*)")
_SIGN = re.compile(r"\s*(?P<part>[<>])")
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_LIMIT = re.compile(rf"\s*(?P<part>(?P<ratio>{_NUMBER})(?![0-9.]|\s*%)|(?P<change>[+-]\s*{_NUMBER})\s*%)(?P<rest>\s*)")
_LONGEST = 60


@dataclass(frozen=True)
class Threshold:
    """A metric, one of `all_metrics` or `phase.` with a phase, and the limit of its ratio to the baseline.

    `is_of_value`: the limit is that of the metric itself, as 0.4 of the MFU, which needs no baseline.
    """

    metric: str
    sign: str
    limit: float
    is_of_value: bool = False

    def __str__(self) -> str:
        metric = all_metrics().get(self.metric)
        if metric is not None and metric.is_limited_itself and not self.is_of_value:
            return f"{self.metric} {self.sign} {100 * self.limit - 100:+.10g}%"
        return f"{self.metric} {self.sign} {self.limit!r}"

    @property
    def phase(self) -> str | None:
        """The phase of the threshold; None for another metric."""
        return self.metric.removeprefix("phase.") if self.metric.startswith("phase.") else None

    def is_exceeded_by(self, number: float) -> bool:
        """Return whether a ratio, or a value if the limit is of that, is beyond the limit."""
        return _SIGNS[self.sign](number, self.limit)


def parse(text: str) -> Threshold:
    """Return the threshold from a text such as `time > 1.05`, `phase.backward > +10%` or `throughput < 0.95`.

    A limit is a ratio to the baseline, or a change with its sign and a percent sign. It must not be exceeded by an
    unchanged ratio, and some ratio must exceed it. Of a metric with `is_limited_itself`, such as `mfu < 0.4`, the
    number is a limit of the value.
    """
    metrics = all_metrics()
    name = _match(_NAME, text, 0, "a metric (" + ", ".join(metrics) + " or phase.NAME)")
    metric, start = name["part"], name.start("part")
    if metric.startswith("phase."):
        if metric.removeprefix("phase.") not in PHASES:
            raise _error(text, start + len("phase."), f"unknown phase, choose from {', '.join(PHASES)}")
    elif metric not in metrics:
        raise _error(text, start, f"unknown metric, choose from {', '.join(metrics)}, phase.NAME")
    sign = _match(_SIGN, text, name.end(), "> or <")
    number = _match(_LIMIT, text, sign.end(), "a limit as in 1.05 or +5%")
    limit = float(number["ratio"] or (100 + float(re.sub(r"\s", "", number["change"]))) / 100)
    of_metric = metrics.get(metric)
    is_of_value = of_metric is not None and of_metric.is_limited_itself and number["ratio"] is not None
    if is_of_value and not 0 < limit < math.inf:
        raise _error(text, number.start("part"), "the limit must be above 0, as in 0.4")
    if sign["part"] == ">" and not is_of_value and not 1 <= limit < math.inf:
        raise _error(text, number.start("part"), "after > the limit must be 1 or more, as in 1.05 or +5%")
    if sign["part"] == "<" and not is_of_value and not 0 < limit <= 1:
        raise _error(text, number.start("part"), "after < the limit must be above 0 and up to 1, as in 0.95 or -5%")
    if number.end() < len(text):
        raise _error(text, number.end(), "expected the end of the threshold: write one --fail-if for each")
    return Threshold(metric, sign["part"], limit, is_of_value)


def _match(pattern: re.Pattern[str], text: str, start: int, wanted: str) -> re.Match[str]:
    match = pattern.match(text, start)
    if match is None:
        raise _error(text, len(text) - len(text[start:].lstrip()), f"expected {wanted}")
    return match


def _error(text: str, at: int, message: str) -> UserError:
    rest = repr(text[at : at + _LONGEST]) if at < len(text) else "the end"
    whole = repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
    return UserError(f"threshold {whole}, character {at + 1}, at {rest}: {message}")
