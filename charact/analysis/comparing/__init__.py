"""Sides against a baseline: machines, versions or runs of the same cases, and whether they truly differ."""

from charact.analysis.comparing.matching import matched_cases, unmatched_cases
from charact.analysis.comparing.metrics import METRICS, metric_ratios
from charact.analysis.comparing.ratios import RATIOS_BY, ratios
from charact.analysis.comparing.sides import Side
from charact.analysis.comparing.speedups import GROUPS, geometric_means, speedups

__all__ = [
    "GROUPS", "METRICS", "RATIOS_BY", "Side", "geometric_means", "matched_cases", "metric_ratios", "ratios", "speedups",
    "unmatched_cases",
]  # fmt: skip
