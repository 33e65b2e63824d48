"""Comparison of groups of runs with a baseline: the same cases on other machines, versions or repeats."""

from charact.analysis.compare.matching import (
    Group,
    Turns,
    ignored_differences,
    ignoring_differences,
    matched_cases,
    unmatched_cases,
)
from charact.analysis.compare.ratios import RATIOS_BY, metric_ratios, ratios
from charact.analysis.compare.speedups import GROUPS, geometric_means, speedups

__all__ = [
    "GROUPS", "RATIOS_BY", "Group", "Turns", "geometric_means", "ignored_differences",
    "ignoring_differences", "matched_cases", "metric_ratios", "ratios",
    "speedups", "unmatched_cases",
]  # fmt: skip
