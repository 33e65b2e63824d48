"""Ratios of metrics to the baseline's."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.significance import Judgement
from charact.analysis.compare.metrics import all_metrics
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.pairs import Pair, measured, pairs, typed
from charact.analysis.compare.run_groups import Group, memoize_comparison
from charact.analysis.compare.samples import Samples
from charact.record.reader import Run


@memoize_comparison
def metric_ratios(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the ratio of each metric to the baseline's, for each group and matched case.

    Columns: case; side; metric, of `all_metrics`; base and value in the metric's unit; ratio, low, high, p_value,
    significant and reason as in `ratios`.
    """
    rows = [
        [pair.case, pair.side, metric.name, *pair.values(metric.name), *_judged(pair, metric)]
        for pair in pairs(sides, MEASURED) for metric in all_metrics().values()
    ]  # fmt: skip
    return typed(rows, ["case", "side", "metric", "base", "value"], ["base", "value"])


def _judged(pair: Pair, metric: Metric) -> Judgement:
    """Return the judgement of a metric; if the group lacks it, use the reason of the pass that measures it."""
    judgement = pair.judged(metric.name)
    if metric.name in pair.new or pair.base_reason or pair.new_reason or metric.measured_by is None:
        return judgement
    return judgement._replace(reason=pass_reason(*pair.place, metric.measured_by) or judgement.reason)


def metric_samples(run: Run) -> Samples:
    """Return the samples of a run's cases, by case and metric."""
    return {(case, metric.name): sample for metric in all_metrics().values() for case, sample in metric.samples(run)}


MEASURED = measured(metric_samples)
"""Fact to gather from each run: samples of its cases by metric."""
