"""Corrections of constructed latencies, fitted on a machine, and their cache in the user's cache directory."""

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
    """There is no usable correction in the cache; the message gives the reason."""


class Correction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Systematic differences between models and their bricks, fitted on calibration models.

    The corrected latency is `factor` times the plain sum, plus a time for each module call, each segment and each start
    of a backward pass. A coefficient that the models do not determine stays at 1 or 0; `reasons` holds the reason by
    its name.
    """

    factor: Annotated[float, msgspec.Meta(gt=0)]
    module_call_s: float
    piece_s: float
    backward_start_s: float
    reasons: dict[str, str]
    models: Annotated[list[str], msgspec.Meta(min_length=2)]
    """Calibration models."""
    plain_error_frac: _Frac
    """Mean |error| of the plain sum on these models."""
    error_frac: _Frac
    """Mean |error| in leave-one-out cross-validation."""
    worst_error_frac: _Frac
    """Largest |error| in leave-one-out cross-validation."""


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """Cache entry of a correction."""

    format: Literal[1]
    charact: str
    """Version of charact that fitted it; others may time bricks differently."""
    learned: str
    """Time of the fit."""
    correction: Correction


@dataclass(frozen=True)
class CorrectionKey:
    """Key of a correction: everything it depends on.

    The suite is not part of it: a correction describes the machine and the way bricks are cut and timed, and also
    applies to other models and suites.
    """

    fingerprint: str
    """Fingerprint of the machine."""
    torch_version: str
    num_threads: int
    device: str
    mode: str
    precision: str
    g: int
    cut_method: str
    timing_method: str


def correction_file(key: CorrectionKey) -> Path:
    """Return the path of a correction's file, whose name contains the whole key.

    Raises:
        NotCorrected: the user has no home directory.
    """
    try:
        cache = user_cache()
    except RuntimeError:
        raise NotCorrected("there is no home directory for the cache: set XDG_CACHE_HOME") from None
    name = "-".join(re.sub(r"[^\w.+]", "_", str(part)) for part in astuple(key))
    return cache / "corrections" / f"{name}.json"


def read_correction(path: Path) -> Correction:
    """Read a correction from the cache.

    Raises:
        NotCorrected: there is none, or it cannot be used.
    """
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        raise NotCorrected("no correction was learned on this machine: charact bricks calibrate does") from None
    except OSError as error:
        raise NotCorrected(f"{path} cannot be read ({(error.strerror or str(error)).lower()})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotCorrected(f"{path} is damaged, or was written by another version of charact") from None
    if kept.charact != version("charact"):
        raise NotCorrected(f"it was learned by charact {kept.charact}: run charact bricks calibrate again")
    return kept.correction


def keep_correction(path: Path, correction: Correction) -> None:
    """Write a correction to the cache atomically.

    Raises:
        UserError: it cannot be written.
    """
    kept = Kept(1, version("charact"), time.strftime("%Y-%m-%dT%H:%M:%S%z"), correction)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, msgspec.json.format(msgspec.json.encode(kept), indent=1).decode())
