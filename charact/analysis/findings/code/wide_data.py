"""Data are held in a wider type than their values need."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._freed_memory import freed_memory
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity

_SIZES = {"uint8": 1, "int8": 1, "int16": 2, "int32": 4, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
          "int64": 8}
"""Bytes of a value."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for tensors or arrays whose values fit a narrower type, if they hold much of the memory."""
    for data in case.inspection.get("held_data") or []:
        if data.get("overlaps"):  # see `overlapping_windows`
            continue
        kind, narrower = data["dtype"], data.get("narrower")
        if kind not in _SIZES or narrower not in _SIZES:
            continue
        freed = freed_memory(case, data, 1 - _SIZES[narrower] / _SIZES[kind])
        if freed is None:
            continue
        scale = data.get("scale") or 1
        back = f"batch.to(torch.{kind})" + (f" / {scale}" if scale > 1 else "")
        tensors = f"{data['num_tensors']:,} of shape" if data["num_tensors"] > 1 else "of shape"
        times = f", times {scale}," if scale > 1 else ""
        yield Finding(
            f"{kind} values in {data['variable']} fit {narrower}",
            f"store it as {narrower} (dtype=torch.{narrower}), and convert each batch where it is used: {back}", None,
            (f"{data['variable']}, {tensors} {data['shape']}, takes {quantity(data['bytes'], 'B')}; all values that "
             f"were looked at{times} fit {narrower}",), "medium", memory_bytes=freed.num_bytes,
            memory_frac=freed.share_frac, place=Place.of(data), setting="dtype")
