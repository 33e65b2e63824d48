"""Format base units as text: three significant digits and a prefix, "n/a (reason)" for a missing number."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Protocol

import pandas as pd

from charact.analysis.common.pass_status import MissedPrecision
from charact.core import units
from charact.core.units import digits, scale

ENDED_BY = {
    "precision": "target met", "max_iterations": "iteration limit", "max_seconds": "time limit", "stable": "stable",
    "number": "set number", "program": "the program", "trace": "the trace",
}  # fmt: skip
"""Texts for what ended a warm-up or the timing."""
DIRECTIONS = {"forward": "forward", "backward_input": "by input", "backward_weight": "by weight"}
"""Texts for the directions of an operation: its result, and its gradients by input and by weight."""
ABOVE_A_CEILING = "above 100 % of a ceiling: from a cache, or with fewer bytes than modelled"
LESS_PRECISE = "less precise than requested: the limit of seconds or repetitions was reached"
OF_NO_TASK = "The data are synthetic: losses and metrics say nothing about the task."
UNEXPLAINED = "To see what “other” was, use charact run --sample, or name it with a Profiler’s phase()."
"""Shown if much of a program's time is `other` and was not sampled."""


class Formatter(Protocol):
    """A function from a number, or null and the reason, to its text."""

    def __call__(self, value: float | None, reason: str | None = None, /) -> str:
        """Return the text."""


def rows(frame: pd.DataFrame) -> Iterator[Any]:
    """Iterate over the rows of a frame as named tuples, whatever the names of its columns."""
    return iter(frame.itertuples(index=False))


def missing(reason: str | None = None) -> str:
    """Return the text for a missing number."""
    return f"n/a ({reason})" if reason else "n/a"


def reason_of(text: str) -> str | None:
    """Return the reason in a text of `missing`; None for other texts."""
    return text[len("n/a ("):-1] if text.startswith("n/a (") else None


def absent(value: float | None) -> bool:
    """Return whether a number is null (None or NaN)."""
    return value is None or math.isnan(value)


def or_missing(text: Callable[[float], str]) -> Formatter:
    """Return a formatter that writes n/a for a null number, with the reason if there is one."""
    @wraps(text)
    def formatter(value: float | None, reason: str | None = None) -> str:
        return missing(reason) if value is None or math.isnan(value) else text(value)

    return formatter


def quantity(unit: str) -> Formatter:
    """Return a formatter of amounts in a unit."""
    return or_missing(lambda value: units.quantity(value, unit))


seconds = quantity("s")
num_bytes = quantity("B")
num_flop = quantity("FLOP")
flop_rate = quantity("FLOP/s")
byte_rate = quantity("B/s")
"""Formatters: 99.5 ms, 310 MiB, 8.18 GFLOP, 412 GFLOP/s, 24.1 GB/s."""


@or_missing
def change(value: float) -> str:
    """Format a difference of times with its sign: +3.10 ms."""
    return f"{'+' if value > 0 else '−' if value < 0 else '±'}{seconds(abs(value))}"


@or_missing
def duration(value: float) -> str:
    """Format a duration that may be long: 99.5 s, 3 min 20 s, 5 h 12 min."""
    if value < 120:
        return seconds(value)
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(value / 60), 60)
    return f"{hours:,} h {minutes} min"


@or_missing
def share(value: float) -> str:
    """Format a share of 1 as a percentage: 30.1 %."""
    return units.share(value)


@or_missing
def number(value: float) -> str:
    """Format a plain number: 80.4, or 25,557,032 if it is whole."""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else digits(value)


def crossover(row: Any) -> str:
    """Format a row of `sparse_crossover`: its density and range, 7.3 % (between 5.0 % and 10.0 %)."""
    if absent(row.crossover_density_frac):
        return missing(row.reason)
    between = f"between {share(row.from_density_frac)} and {share(row.to_density_frac)}"
    return f"{share(row.crossover_density_frac)} ({between})"


@or_missing
def error(value: float) -> str:
    """Format a relative error: 3.1e-07, 0 or not finite."""
    if math.isinf(value):
        return "not finite"
    return f"{value:.1e}" if value else "0"


@or_missing
def ratio(value: float) -> str:
    """Format a factor: × 1.04."""
    return f"× {value:.2f}"


def metric(name: str, value: float | None, reason: str | None = None) -> str:
    """Format the value of a metric by its name: accuracies as percentages."""
    return share(value, reason) if name.endswith("accuracy") else number(value, reason)


def best(row: Any) -> str:
    """Format the best value of a row of `training_summary` that has one: accuracy 97.5 % (epoch 4)."""
    return f"{row.best_metric} {metric(row.best_metric, row.best_value)} (epoch {row.best_epoch:.0f})"


def verdict(row: Any) -> str:
    """Format the verdict of a row of `bottlenecks`: compute-bound, 78.0 % of the iteration."""
    if not isinstance(row.verdict, str):
        return missing(row.reason)
    return row.verdict if absent(row.share_frac) else f"{row.verdict}, {share(row.share_frac)} of the iteration"


def failure(status: str, reason: str | None) -> str:
    """Return why a case failed."""
    if status == "running":
        return "not finished: it was killed, or is still running"
    return "no reason recorded" if not isinstance(reason, str) else str(reason)


def no_cases(partial: bool) -> str:
    """Return the text for a run without cases; `partial` if the run may still be running."""
    return "No iteration has finished yet." if partial else "This run has no cases: it ended before its first case."


def no_samples(batch_size: float | None) -> str | None:
    """Return why there is no rate of samples; None if the batch size is known."""
    return "the batch size is not known" if pd.isna(batch_size) else None


def outside(row: Any) -> str:
    """Format a row of `time_outside`: 12.3 s of 30.1 s (40.9 %): before the first 8.1 s, between …."""
    own = "" if absent(row.own_s) else f"; without the {duration(row.own_s)} that charact itself took"
    return (f"{duration(row.outside_s)} of {duration(row.duration_s)} ({share(row.outside_frac)}): before the first "
            f"{duration(row.before_s)}, between {duration(row.between_s)}, after the last {duration(row.after_s)}"
            f"{own}")


def target(row: Any) -> str:
    """Format the target of a row of `training_summary` that has one: accuracy 95.0 %."""
    return f"{row.target_metric} {metric(row.target_metric, row.target_value)}"


def missed_precision(missed: MissedPrecision | None, *, has_advice: bool = True) -> str:
    """Return a warning that an interval is wider than requested, and what to try; empty if it is not."""
    if missed is None:
        return ""
    limit = ENDED_BY.get(missed.ended_by, missed.ended_by)
    options = {"max_seconds": "; try a longer --max-seconds", "max_iterations": "; try more --max-iterations"}
    option = options.get(missed.ended_by, "") if has_advice else ""
    return f"Less precise than the target of ± {share(missed.target_frac)}: {limit}{option}"


def against(labels: Sequence[str]) -> str:
    """Name the compared labels, the first of which is the baseline: b, c against a."""
    return f"{', '.join(labels[1:])} against {labels[0]}"


def interval(low: float | None, high: float | None, reason: str | None = None) -> str:
    """Format a range of durations in one unit, with one more digit than `seconds`: 100.1–100.8 ms."""
    if absent(low) or absent(high):
        return missing(reason)
    assert low is not None
    assert high is not None
    factor, unit = scale([high], "s")
    return f"{digits(low * factor, 4)}–{digits(high * factor, 4)} {unit}"
