"""The program's line in which slow iterations spend their extra time."""

from charact.analysis.findings._slow_groups import SlowGroup
from charact.analysis.findings._watched_case import SampledLine, WatchedCase

_MUCH_FRAC = 0.3
"""Minimum share of the samples in slow iterations."""


def slow_line(case: WatchedCase, group: SlowGroup) -> SampledLine | None:
    """Return the line with most samples in slow iterations; None if it cannot explain the group."""
    lines = case.lines("slow")
    if not lines or lines[0].share_frac < _MUCH_FRAC or group.phase in ("backward", "update"):
        return None
    return lines[0]
