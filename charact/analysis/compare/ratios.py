"""Ratios of times and metrics to the baseline's: by case, phase, operator, layer, kernel, problem and others."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.pass_status import pass_reason
from charact.analysis.compare.matching import Group
from charact.analysis.compare.metrics import all_metrics
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.operator_shares import compositions
from charact.analysis.compare.pairs import Pair, Samples, measured, pairs, typed
from charact.analysis.compare.samples import CASE, time_samples
from charact.core.errors import UserError
from charact.record.reader import Run
from charact.record.schema import PHASES

RATIOS_BY = ("case", "phase", "operator_type", "operator", "layer", "kernel", "problem", "brick", "layer_type")
"""Parts by which times can be compared."""
TIMES = {by: measured(partial(time_samples, by=by)) for by in RATIOS_BY}
"""Facts to gather from each run: samples of its times by part, for each of `RATIOS_BY`."""


@memoize
def ratios(sides: Sequence[Group], by: str, cases: frozenset[str] | None = None) -> pd.DataFrame:
    """Return ratios of times to the baseline's, for each group and matched case, or for the parts of cases.

    Columns: case, as in `matched_cases`; the part, in a column named as `by` (absent by case); side; base_s and time_s;
    ratio = time_s / base_s (below 1: faster); low and high, its 95 % interval; p_value and significant, see
    `significance.judged`; reason, why a number is null. If a group lacks a part, its time is null.

    A case's time is that of its median iteration, a training's mean epoch, a call of an operation in each direction,
    one call of each of a suite's bricks, or a constructed model's latency. Several runs give their geometric mean,
    turns `value_of_turns`. By case, all matched cases are returned; by a part, the cases in which parts were measured.
    `cases` selects some.

    Operators, layers and kernels are measured under the profiler. On a CPU their times are scaled to the timing pass.
    Rows with the same name are summed over layers, shapes and phases. Phases and problems keep their order; other parts
    are sorted by time, longest first.

    *Error*: the profiler gives one value per run, so that a single run per group has no interval.
    """
    if by not in RATIOS_BY:
        raise UserError(f"cannot compare by '{by}': choose from {', '.join(RATIOS_BY)}")
    rows: list[list[object]] = []
    for pair in pairs(sides, TIMES[by], cases):
        for name in [CASE] if by == "case" else _in_order(pair, by):
            rows.append([pair.case, name, pair.side, *pair.values(name), *pair.judged(name)])
    frame = typed(rows, ["case", "part", "side", "base_s", "time_s"], ["base_s", "time_s"])
    return frame.drop(columns="part") if by == "case" else frame.rename(columns={"part": by})


def _in_order(pair: Pair, by: str) -> list[str]:
    names = list(dict.fromkeys([*pair.base, *pair.new]))
    if by == "phase":
        return sorted(names, key=PHASES.index)
    if by == "problem":
        return names
    return sorted(names, key=lambda name: -max(side[name].value for side in (pair.base, pair.new) if name in side))


def run_times(sides: Sequence[Group], case: str, side: str) -> tuple[list[float], list[float]]:
    """Return a case's time (s) in each run of the baseline, and in each run of the group `side`, as in `ratios`.

    The case must be in both.
    """
    pair = next(pair for pair in pairs(sides, TIMES[CASE], {case}) if pair.side == side)
    return list(pair.base[CASE].of_each_run), list(pair.new[CASE].of_each_run)


def phases_by_side(sides: Sequence[Group], cases: Collection[str] | None = None) -> pd.DataFrame:
    """Return the time of each phase of the median iteration, for each matched case or only for `cases`.

    Columns: case; side; phase; time_s. The times of a case's phases sum to its median iteration time.
    """
    rows = []
    for case, of_side in compositions(sides, cases).items():
        for side in (side.label for side in sides if side.label in of_side):
            times = of_side[side].phases
            rows += [[case, side, phase, times[phase]] for phase in PHASES if phase in times]
    return pd.DataFrame(rows, columns=["case", "side", "phase", "time_s"])


@memoize
def metric_ratios(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the ratio of each metric to the baseline's, for each group and matched case.

    Columns: case; side; metric, of `all_metrics`; base and value in the metric's unit; ratio, low, high, p_value,
    significant and reason as in `ratios`.
    """
    rows = []
    for pair in pairs(sides, MEASURED):
        for name, metric in all_metrics().items():
            judgement = pair.judged(name)
            if not (name in pair.new or pair.base_reason or pair.new_reason):
                judgement = judgement._replace(reason=_why_missing(pair, metric) or judgement.reason)
            rows.append([pair.case, pair.side, name, *pair.values(name), *judgement])
    return typed(rows, ["case", "side", "metric", "base", "value"], ["base", "value"])


@memoize
def metric_values(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the value of each metric in each group but the baseline; of a single group in that.

    Columns: case, as in `matched_cases`; side; metric; value in the metric's unit; low and high, its 95 % interval
    (null if not known); reason, why value is null.
    """
    # A single group is its own baseline, under another name.
    own = [replace(sides[0], label=f"{sides[0].label} itself", found={})] if len(sides) == 1 else []
    compared = [*own, *sides]
    rows: list[list[object]] = []
    for pair in pairs(compared, MEASURED):
        for name, metric in all_metrics().items():
            sample = pair.new.get(name)
            if sample is None:
                reason = pair.new_reason or _why_missing(pair, metric) or "not measured"
                rows.append([pair.case, pair.side, name, None, None, None, reason])
            else:
                rows.append([pair.case, pair.side, name, sample.value, *(sample.interval or (None, None)), None])
    frame = pd.DataFrame(rows, columns=["case", "side", "metric", "value", "low", "high", "reason"])
    return frame.astype(dict.fromkeys(["value", "low", "high"], "float64") | {"reason": "str"})


def _why_missing(pair: Pair, metric: Metric) -> str | None:
    """Return why the group lacks a metric, if its pass or the metric itself says so."""
    reason = None if metric.measured_by is None else pass_reason(*pair.place, metric.measured_by)
    return reason or metric.why_missing(*pair.place)


def metric_samples(run: Run) -> Samples:
    """Return the samples of a run's cases, by case and metric."""
    samples: Samples = {}
    for metric in all_metrics().values():
        for case, sample in metric.samples(run):
            samples.setdefault(case, {})[metric.name] = sample
    return samples


MEASURED = measured(metric_samples)
"""Fact to gather from each run: samples of its cases by metric."""
