"""Data hold each value of a series many times, in windows that overlap."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._freed_memory import freed_memory
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for tensors or arrays of overlapping windows, if they hold much of the memory."""
    for data in case.inspection.get("held_data") or []:
        if not data.get("overlaps"):
            continue
        length = data["shape"][1]
        freed = freed_memory(case, data, 1 - 1 / length)
        if freed is None:
            continue
        yield Finding(
            f"overlapping windows in {data['variable']} hold each value of a series {length:,} times",
            f"keep the series only, and cut windows from it: series[index:index + {length}] in __getitem__, or "
            f"series.unfold(0, {length}, 1), which copies nothing", None,
            (f"{data['variable']}, of shape {data['shape']}, takes {quantity(data['bytes'], 'B')}; in all rows that "
             "were looked at, each is the one before shifted by one",), memory_bytes=freed.num_bytes,
            memory_frac=freed.share_frac, place=Place.of(data), setting="windows")
