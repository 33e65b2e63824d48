"""Sizes of the processor's caches, as Linux tells them."""

import os
from dataclasses import dataclass
from pathlib import Path

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class CacheLevel:
    """The caches of one level that hold data: L1, L2, ..."""

    level: str
    bytes_each: int
    num_usable: int
    """Caches that so many threads fill at most, one thread a core."""

    @property
    def usable_bytes(self) -> int:
        """What all threads together have of the level."""
        return self.bytes_each * self.num_usable


def cache_levels(num_threads: int, root: Path = Path("/sys/devices/system/cpu")) -> list[CacheLevel]:
    """Caches of the cores that the process may use, innermost first; empty where the system does not tell."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    found: dict[str, dict[str, int]] = {}
    for core in sorted(cores):
        for folder in sorted((root / f"cpu{core}/cache").glob("index*")):
            if _read(folder / "type") in ("Data", "Unified"):
                size = _read(folder / "size")
                sharing = found.setdefault(f"L{_read(folder / 'level')}", {})
                # One that several cores share is listed with each of them.
                sharing[_read(folder / "shared_cpu_list")] = int(size[:-1]) * _UNITS[size[-1]]
    return [CacheLevel(level, max(caches.values()), min(len(caches), num_threads))
            for level, caches in sorted(found.items())]


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
