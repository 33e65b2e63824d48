"""Ceilings measured on a machine, also of collectives between its ranks, and their cache in the user's folder."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec

from charact.core.files import user_cache, write_text, writing

REMEDY = "charact doctor --ceilings measures them"
UNDISTURBED_FRAC = 0.8
"""Lowest share of its cores' time that the process must have had, for ceilings to be cached."""
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Ceiling(TypedDict):
    """Best measured rate or time of a device; a row of the manifest's `ceilings`."""

    device: str
    ceiling: Literal["gemm", "copy", "triad", "launch", "host_to_device", "device_to_host"]
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None
    """For `gemm`; pure-bf16 uses bf16's."""
    working_set_bytes: int | None
    level: str | None
    """For `copy` and `triad`: L2, L3 or memory."""
    value: _Positive
    low: _Positive
    high: _Positive
    """95 % interval of the median."""
    unit: Literal["flop_per_s", "bytes_per_s", "s"]
    datasheet: _Positive | None
    """The manufacturer's value, in the same unit."""
    datasheet_source: str | None
    theoretical: _Positive | None
    """For memory: computed from its clock and bus width, as reported by the driver."""
    cores_frac: Annotated[float, msgspec.Meta(ge=0)] | None
    """For a CPU's `gemm`: share of its cores' time that the process had; below 1 other processes were running."""
    origin: str | None
    """For `gemm`: operator type, layer and case whose rate exceeded all probes; null for a probe."""


class CollectiveBandwidth(TypedDict):
    """Bandwidth of a collective of one size between ranks of this machine."""

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
    bytes: Annotated[int, msgspec.Meta(gt=0)]
    """The larger of a rank's inputs and outputs."""
    time_s: _Positive
    """Median time of a call on the slowest rank."""
    bus_bytes_per_s: _Positive
    low: _Positive
    high: _Positive
    """Bus bandwidth at that time, and at the ends of its 95 % interval."""


class Cached(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is stored in the cache of measurements; a kind has more fields."""

    format: Literal[1] = 1
    charact: str = msgspec.field(default_factory=lambda: version("charact"))
    """Version that measured them; another may measure differently."""
    measured: str = msgspec.field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))
    """Time of the measurement."""

    @property
    def when(self) -> str:
        """Time of the measurement, to the minute."""
        return self.measured[:16].replace("T", " ")


class CachedCeilings(Cached):
    """Ceilings of a device, as stored in the cache."""

    ceilings: Annotated[list[Ceiling], msgspec.Meta(min_length=1)]
    check_flop_per_s: _Positive | None = None
    """Rate of the short check (see `measure.microbench.ceilings.check_speed`) at that time; null if not checked."""


class CachedCollectives(Cached):
    """Collectives between ranks of this machine, as stored in the cache."""

    backend: str
    num_ranks: Annotated[int, msgspec.Meta(ge=2)]
    rows: Annotated[list[CollectiveBandwidth], msgspec.Meta(min_length=1)]
    """Every operation and size, in the order of measurement."""
    unavailable: dict[str, str]
    """Why an operation has no rows, by operation."""

    @property
    def best(self) -> list[CollectiveBandwidth]:
        """The size with the highest bus bandwidth of each operation."""
        rows: dict[str, CollectiveBandwidth] = {}
        for row in self.rows:
            if row["operation"] not in rows or row["bus_bytes_per_s"] > rows[row["operation"]]["bus_bytes_per_s"]:
                rows[row["operation"]] = row
        return list(rows.values())


Kept = TypeVar("Kept", bound=Cached)


class NotCached(Exception):
    """There is no usable measurement in the cache; the message is the reason."""


def ceilings_file(fingerprint: str, torch_version: str, num_threads: int, device: str) -> Path:
    """Return the path of a device's ceilings in the cache; its name has everything that they depend on.

    Raises:
        NotCached: the user has no home directory.
    """
    return cache_file("ceilings", f"{fingerprint}-torch{torch_version}-{num_threads}threads-{device}")


def collectives_file(fingerprint: str, torch_version: str, num_ranks: int, backend: str) -> Path:
    """Return the path of the collectives in the cache; its name has everything that they depend on.

    Raises:
        NotCached: the user has no home directory.
    """
    return cache_file("ceilings", f"{fingerprint}-torch{torch_version}-{num_ranks}ranks-{backend}")


def cache_file(folder: str, name: str) -> Path:
    """Return the path of a measurement in a folder of the cache.

    Raises:
        NotCached: the user has no home directory.
    """
    try:
        cache = user_cache()
    except RuntimeError:
        raise NotCached("there is no home directory for the cache: set XDG_CACHE_HOME") from None
    return cache / folder / (re.sub(r"[^\w.+-]", "_", name) + ".json")


def read_cached(path: Path, kind: type[Kept], absent: str = "they were not measured yet",
                other: str = "they were measured by charact {}") -> Kept:
    """Return the ceilings of a device, the collectives, or another measurement from the cache.

    Raises:
        NotCached: there is none (`absent`), it cannot be used, or is of another version of charact (`other`).
    """
    try:
        cached = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise NotCached(absent) from None
    except OSError as error:
        raise NotCached(f"{path} cannot be read ({(error.strerror or str(error)).lower()})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotCached(f"{path} is damaged, or of another version of charact") from None
    if cached.charact != version("charact"):
        raise NotCached(other.format(cached.charact))
    return cached


def cached_ceilings(fingerprint: str, torch_version: str, num_threads: int, devices: Iterable[str]) -> dict[str, Any]:
    """Return the manifest's entries `ceilings` of devices and, for those not in the cache, `ceilings_reason`."""
    rows: list[Ceiling] = []
    reasons = []
    for device in distinct_devices(devices):
        try:
            file = ceilings_file(fingerprint, torch_version, num_threads, device)
            rows += read_cached(file, CachedCeilings).ceilings
        except NotCached as missing:
            reasons.append(f"ceilings of {device}: {missing}; {REMEDY}")
    return {"ceilings": rows, "ceilings_reason": "; ".join(reasons) or None}


def best_collectives(fingerprint: str, torch_version: str, wanted: Iterable[tuple[int, str]]) -> dict[str, Any]:
    """Return the manifest's entries `collective_ceilings` and, for those not in the cache, the reason.

    `wanted` are numbers of ranks, each with its backend.
    """
    rows: list[dict[str, Any]] = []
    reasons = []
    for num_ranks, backend in wanted:
        try:
            cached = read_cached(collectives_file(fingerprint, torch_version, num_ranks, backend), CachedCollectives)
            rows += [{"backend": backend, "num_ranks": num_ranks, **row} for row in cached.best]
        except NotCached as missing:
            reasons.append(f"collectives of {num_ranks} ranks ({backend}): {missing}; charact doctor --ceilings "
                           f"--nproc {num_ranks} measures them")
    return {"collective_ceilings": rows, "collective_ceilings_reason": "; ".join(reasons) or None}


def distinct_devices(devices: Iterable[str]) -> Sequence[str]:
    """Return the distinct names of devices; `cuda` is the first GPU."""
    return list(dict.fromkeys("cuda:0" if device == "cuda" else device for device in devices))


def cache_ceilings(path: Path, cached: Cached) -> None:
    """Write ceilings or another measurement to the cache, atomically."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, msgspec.json.format(msgspec.json.encode(cached), indent=1).decode())


def is_disturbed(ceilings: list[Ceiling]) -> bool:
    """Return whether other processes used so much processor time meanwhile that the ceilings are too low."""
    return any(row["cores_frac"] is not None and row["cores_frac"] < UNDISTURBED_FRAC for row in ceilings)


def raise_ceilings(cached: CachedCeilings, reached: Mapping[str, tuple[float, str]]) -> CachedCeilings:
    """Return a device's ceilings in which higher rates that workloads reached replace those of products.

    `reached` has the rate (FLOP/s) and its origin by precision.
    """
    rows: list[Ceiling] = []
    for row in cached.ceilings:
        rate, origin = reached.get(row["precision"] or "", (0.0, ""))
        if row["ceiling"] == "gemm" and rate > row["value"]:
            row = row | {"value": rate, "low": rate, "high": rate, "origin": origin, "working_set_bytes": None}
        rows.append(row)
    return msgspec.structs.replace(cached, ceilings=rows)
