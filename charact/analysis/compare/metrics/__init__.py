"""Metrics by which cases of runs are compared, judged by a gate, and followed over time: one file each.

A file is named as its metric and holds it as `METRIC`. `charact compare`, `--fail-if`, `charact history`, queries, the
completion of the shell and the reference know it by that.
"""

from functools import cache

from charact.analysis.compare.metrics._metric import Metric
from charact.core.plugins import modules_in


@cache
def all_metrics() -> dict[str, Metric]:
    """Return the metrics by name, in the order in which tables show them."""
    metrics: list[Metric] = [module.METRIC for module in modules_in(__name__)]
    return {metric.name: metric for metric in sorted(metrics, key=lambda metric: metric.place)}
