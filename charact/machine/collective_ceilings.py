"""Best bandwidth of collectives between ranks of this machine, and its cache in the user's folder."""

import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from charact.machine.ceilings_cache import NotCached, cache_file, read_cached

_Positive = Annotated[float, msgspec.Meta(gt=0)]


class CollectiveCeiling(TypedDict):
    """Bandwidth of a collective of one size."""

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
    bytes: Annotated[int, msgspec.Meta(gt=0)]
    """The larger of a rank's inputs and outputs."""
    time_s: _Positive
    """Median time of a call on the slowest rank."""
    bus_bytes_per_s: _Positive
    low: _Positive
    high: _Positive
    """Bus bandwidth at that time, and at the ends of its 95 % interval."""


class CachedCollectives(msgspec.Struct, forbid_unknown_fields=True):
    """Collectives between ranks of this machine, as stored in the cache."""

    format: Literal[1]
    charact: str
    """Version that measured them."""
    measured: str
    """Time of the measurement."""
    backend: str
    num_ranks: Annotated[int, msgspec.Meta(ge=2)]
    rows: Annotated[list[CollectiveCeiling], msgspec.Meta(min_length=1)]
    """Every operation and size, in the order of measurement."""
    unavailable: dict[str, str]
    """Why an operation has no rows, by operation."""

    @property
    def when(self) -> str:
        """Time of the measurement, to the minute."""
        return self.measured[:16].replace("T", " ")

    @property
    def best(self) -> list[CollectiveCeiling]:
        """The size with the highest bus bandwidth of each operation."""
        found: dict[str, CollectiveCeiling] = {}
        for row in self.rows:
            if row["bus_bytes_per_s"] > found.get(row["operation"], {"bus_bytes_per_s": 0.0})["bus_bytes_per_s"]:
                found[row["operation"]] = row
        return list(found.values())


def collectives_file(fingerprint: str, torch_version: str, num_ranks: int, backend: str) -> Path:
    """Return the path of the collectives' cache file; its name has everything that they depend on.

    Raises:
        NotCached: the user has no home directory.
    """
    return cache_file(f"{fingerprint}-torch{torch_version}-{num_ranks}ranks-{backend}")


def read_collectives(path: Path) -> CachedCollectives:
    """Return collectives from the cache.

    Raises:
        NotCached: there are none, or they cannot be used.
    """
    return read_cached(path, CachedCollectives)


def collectives_now_measured(backend: str, num_ranks: int, rows: list[CollectiveCeiling],
                             unavailable: dict[str, str]) -> CachedCollectives:
    """Return collectives in the cache's format, measured now."""
    return CachedCollectives(1, version("charact"), time.strftime("%Y-%m-%dT%H:%M:%S%z"), backend, num_ranks, rows,
                             unavailable)


def best_collectives(fingerprint: str, torch_version: str, wanted: Iterable[tuple[int, str]]) -> dict[str, Any]:
    """Return the manifest's entries `collective_ceilings` and, for those not in the cache, the reason.

    Args:
        fingerprint: fingerprint of the machine.
        torch_version: version of PyTorch.
        wanted: numbers of ranks, each with its backend.
    """
    rows: list[dict[str, Any]] = []
    reasons = []
    for num_ranks, backend in wanted:
        try:
            kept = read_collectives(collectives_file(fingerprint, torch_version, num_ranks, backend))
            rows += [{"backend": backend, "num_ranks": num_ranks, **row} for row in kept.best]
        except NotCached as missing:
            reasons.append(f"collectives of {num_ranks} ranks ({backend}): {missing}; {remedy(num_ranks)}")
    return {"collective_ceilings": rows, "collective_ceilings_reason": "; ".join(reasons) or None}


def remedy(num_ranks: int) -> str:
    """Return what measures the collectives of a number of ranks."""
    return f"charact doctor --ceilings --nproc {num_ranks} measures them"
