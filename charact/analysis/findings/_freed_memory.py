"""Memory that a remedy frees of data which the program holds."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from charact.analysis.findings._watched_case import WatchedCase

_LEAST_BYTES = 32 * 2**20
_LEAST_FRAC = 0.1
"""Minimum memory that is reported, in bytes and as a share of the process's largest memory."""


class FreedMemory(NamedTuple):
    """Memory in bytes, and as a share of the process's largest memory, at most 1."""

    num_bytes: float
    share_frac: float


def freed_memory(case: WatchedCase, data: Mapping[str, Any], freed_frac: float) -> FreedMemory | None:
    """Return the memory of a remedy that frees a share of held data; None if it is negligible."""
    resident_bytes = float(case.iterations["rss_bytes"].max())
    freed_bytes = data["bytes"] * freed_frac
    if not freed_bytes >= max(_LEAST_BYTES, _LEAST_FRAC * resident_bytes):
        return None
    return FreedMemory(freed_bytes, min(freed_bytes / resident_bytes, 1.0))
