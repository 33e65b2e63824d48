"""Sizes of the processor's caches, from Linux."""

import os
from dataclasses import dataclass
from pathlib import Path

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class CacheLevel:
    """The data caches of one level: L1, L2, ..."""

    level: str
    bytes_each: int
    num_usable: int
    """Number of caches that the threads can fill, with one thread per core."""

    @property
    def usable_bytes(self) -> int:
        """Size of the level over all threads (bytes)."""
        return self.bytes_each * self.num_usable


def cache_levels(num_threads: int, root: Path = Path("/sys/devices/system/cpu")) -> list[CacheLevel]:
    """Return the caches of the cores that the process may use, innermost first; empty if not available."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    levels: dict[str, dict[str, int]] = {}
    for core in sorted(cores):
        for folder in sorted((root / f"cpu{core}/cache").glob("index*")):
            if _read(folder / "type") in ("Data", "Unified"):
                size = _read(folder / "size")
                sharing = levels.setdefault(f"L{_read(folder / 'level')}", {})
                # A shared cache is listed with each of its cores.
                sharing[_read(folder / "shared_cpu_list")] = int(size[:-1]) * _UNITS[size[-1]]
    return [CacheLevel(level, max(caches.values()), min(len(caches), num_threads))
            for level, caches in sorted(levels.items())]


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
