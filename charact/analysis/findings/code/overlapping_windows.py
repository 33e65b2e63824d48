"""Data hold each value of a series many times, in windows that overlap."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity

_LEAST_BYTES = 32 * 2**20
_LEAST_FRAC = 0.1
"""Minimum memory that the remedy frees, in bytes and as a share of the process's largest memory."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for tensors or arrays of overlapping windows, if they hold much of the memory."""
    resident_bytes = float(case.iterations["rss_bytes"].max())
    for data in case.inspection.get("held_data") or []:
        if not data.get("overlaps"):
            continue
        length = data["shape"][1]
        freed_bytes = data["bytes"] * (1 - 1 / length)
        if not freed_bytes >= max(_LEAST_BYTES, _LEAST_FRAC * resident_bytes):
            continue
        yield Finding(
            f"overlapping windows in {data['variable']} hold each value of a series {length:,} times",
            f"keep the series only, and cut windows from it: series[index:index + {length}] in __getitem__, or "
            f"series.unfold(0, {length}, 1), which copies nothing", None,
            (f"{data['variable']}, of shape {data['shape']}, takes {quantity(data['bytes'], 'B')}; in all rows that "
             "were looked at, each is the one before shifted by one",), memory_bytes=freed_bytes,
            memory_frac=min(freed_bytes / resident_bytes, 1.0), place=Place.of(data), setting="windows")
