"""Corrections of constructed latencies, learned on a machine from models, and the user's cache that keeps them."""

import re
import time
from dataclasses import astuple, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from charact.core.files import user_cache, write_text, writing

_Frac = Annotated[float, msgspec.Meta(ge=0)]


class NotCorrected(Exception):
    """There is no correction in the cache; the message says why."""


class Correction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What bricks cannot see, as calibration models taught it.

    The corrected latency is `factor` times the plain sum, and so much for each call of a module, each piece and each
    start of a backward pass. What the models could not tell stays at 1 or 0; `reasons` then has why, by the
    coefficient's name.
    """

    factor: Annotated[float, msgspec.Meta(gt=0)]
    module_call_s: float
    piece_s: float
    backward_start_s: float
    reasons: dict[str, str]
    models: Annotated[list[str], msgspec.Meta(min_length=2)]
    """What it was learned from."""
    plain_error_frac: _Frac
    """Mean |error| of the plain sum on these models."""
    error_frac: _Frac
    """Mean |error| on each of these models of what the others teach."""
    worst_error_frac: _Frac
    """The largest of these."""


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """A correction as the cache keeps it."""

    format: Literal[1]
    charact: str
    """Version that learned it: another may time bricks otherwise."""
    learned: str
    """When."""
    correction: Correction


@dataclass(frozen=True)
class CorrectionKey:
    """All that a correction depends on.

    The suite is no part of it: what is learned is of the machine and of how bricks are cut and timed, and holds for
    models and suites that were not there when it was learned.
    """

    fingerprint: str
    """Of the machine."""
    torch_version: str
    num_threads: int
    device: str
    mode: str
    precision: str
    g: int
    cut_method: str
    timing_method: str


def correction_file(key: CorrectionKey) -> Path:
    """Where a correction is kept: all that it depends on is in the name.

    Raises:
        NotCorrected: the user has no home directory.
    """
    try:
        cache = user_cache()
    except RuntimeError:
        raise NotCorrected("there is no home directory to keep it in: set XDG_CACHE_HOME") from None
    name = "-".join(re.sub(r"[^\w.+]", "_", str(part)) for part in astuple(key))
    return cache / "corrections" / f"{name}.json"


def read_correction(path: Path) -> Correction:
    """The correction that was kept.

    Raises:
        NotCorrected: there is none, or what is there cannot be used.
    """
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        raise NotCorrected("no correction was learned on this machine: charact bricks calibrate does") from None
    except OSError as error:
        raise NotCorrected(f"{path} cannot be read ({(error.strerror or str(error)).lower()})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotCorrected(f"{path} is damaged, or of another version of charact") from None
    if kept.charact != version("charact"):
        raise NotCorrected(f"it was learned by charact {kept.charact}: charact bricks calibrate learns anew")
    return kept.correction


def keep_correction(path: Path, correction: Correction) -> None:
    """Write a correction to the cache, whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    kept = Kept(1, version("charact"), time.strftime("%Y-%m-%dT%H:%M:%S%z"), correction)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, msgspec.json.format(msgspec.json.encode(kept), indent=1).decode())
