"""Ceilings that were measured on a machine, and the user's cache that keeps them."""

import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, TypedDict

import msgspec

from charact.core.files import user_cache, write_text, writing

UNDISTURBED_FRAC = 0.8
"""Share of its cores' time that the process must have had for ceilings to be kept: others had the rest."""
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class Ceiling(TypedDict):
    """The best that a device was measured to reach, a row of the manifest's `ceilings`."""

    device: str
    ceiling: Literal["gemm", "copy", "triad", "launch", "host_to_device", "device_to_host"]
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None
    """Of `gemm`; pure-bf16 shares bf16's."""
    working_set_bytes: int | None
    level: str | None
    """Of `copy` and `triad`: L2, L3 or memory."""
    value: _Positive
    low: _Positive
    high: _Positive
    """95 % interval of the median."""
    unit: Literal["flop_per_s", "bytes_per_s", "s"]
    datasheet: _Positive | None
    """What the maker says, in the same unit."""
    datasheet_source: str | None
    theoretical: _Positive | None
    """Of memory: what its clock and width make, as the driver tells them."""
    cores_frac: Annotated[float, msgspec.Meta(ge=0)] | None
    """Of a CPU's `gemm`: share of its cores' time that the process had; below 1 other processes were running."""


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """Ceilings of a device as the cache keeps them."""

    format: Literal[1]
    charact: str
    """Version that measured them: another may measure otherwise."""
    measured: str
    """When."""
    ceilings: Annotated[list[Ceiling], msgspec.Meta(min_length=1)]

    @property
    def when(self) -> str:
        """When they were measured, to the minute."""
        return self.measured[:16].replace("T", " ")


class NotKept(Exception):
    """There are no ceilings in the cache; the message says why."""


def ceilings_file(fingerprint: str, torch_version: str, num_threads: int, device: str) -> Path:
    """Where the ceilings of a device are kept: all that they depend on is in the name.

    Raises:
        NotKept: the user has no home directory.
    """
    try:
        cache = user_cache()
    except RuntimeError:
        raise NotKept("there is no home directory to keep them in: set XDG_CACHE_HOME") from None
    name = f"{fingerprint}-torch{torch_version}-{num_threads}threads-{device}"
    return cache / "ceilings" / (re.sub(r"[^\w.+-]", "_", name) + ".json")


def read_ceilings(path: Path) -> Kept:
    """Ceilings that were kept.

    Raises:
        NotKept: they were not, or what is there cannot be used.
    """
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        raise NotKept("they were not measured yet") from None
    except OSError as error:
        raise NotKept(f"{path} cannot be read ({(error.strerror or str(error)).lower()})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotKept(f"{path} is damaged, or of another version of charact") from None
    if kept.charact != version("charact"):
        raise NotKept(f"they were measured by charact {kept.charact}")
    return kept


def keep_ceilings(path: Path, ceilings: list[Ceiling]) -> Kept:
    """Write ceilings to the cache, whole or not at all.

    Raises:
        UserError: they cannot be written.
    """
    kept = now_measured(ceilings)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, msgspec.json.format(msgspec.json.encode(kept), indent=1).decode())
    return kept


def is_disturbed(ceilings: list[Ceiling]) -> bool:
    """Whether other processes took so much of the cores that the machine reaches more than was measured."""
    return any(row["cores_frac"] is not None and row["cores_frac"] < UNDISTURBED_FRAC for row in ceilings)


def now_measured(ceilings: list[Ceiling]) -> Kept:
    """Ceilings as the cache would keep them."""
    return Kept(1, version("charact"), time.strftime("%Y-%m-%dT%H:%M:%S%z"), ceilings)
