"""Ceilings for a record and for `charact doctor`: from the user's cache, else measured and kept there."""

from collections.abc import Sequence
from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.case_outcome import one_line
from charact.execution.interrupt import Interrupt
from charact.machine.ceilings_cache import (
    Kept,
    NotKept,
    ceilings_file,
    is_disturbed,
    keep_ceilings,
    now_measured,
    read_ceilings,
)
from charact.measure.microbench.ceilings import measure_ceilings

REMEDY = "charact doctor --ceilings measures them"


def recorded_ceilings(fingerprint: str, devices: Sequence[str], interrupt: Interrupt | None = None, *,
                      quiet: bool = True) -> dict[str, Any]:
    """What the manifest holds of some devices' ceilings: `ceilings` and, of those that are missing, `ceilings_reason`.

    Args:
        fingerprint: of this machine.
        devices: by name; `cuda` is the first GPU. None, where what is predicted is for a device of another machine.
        interrupt: lets a signal end measuring; where None is given, only what the cache holds is taken.
        quiet: whether nothing is said while it is measured.
    """
    rows, reasons = [], [] if devices else ["the device is not here"]
    for device in dict.fromkeys("cuda:0" if device == "cuda" else device for device in devices):
        try:
            rows += kept_ceilings(fingerprint, device).ceilings
        except NotKept as missing:
            if interrupt is None:
                reasons.append(f"ceilings of {device}: {missing}; {REMEDY}")
                continue
            try:
                with interrupt.allowed():
                    rows += new_ceilings(fingerprint, device, quiet=quiet).ceilings
            except KeyboardInterrupt:
                reasons.append(f"ceilings of {device}: interrupted")
            except Exception as error:
                reasons.append(f"ceilings of {device}: measuring them failed ({one_line(error)})")
    return {"ceilings": rows, "ceilings_reason": "; ".join(reasons) or None}


def kept_ceilings(fingerprint: str, device: str) -> Kept:
    """Ceilings of a device with PyTorch's present number of threads, from the cache.

    Raises:
        NotKept: there are none that can be used.
    """
    return read_ceilings(ceilings_file(fingerprint, torch.__version__, torch.get_num_threads(), device))


def new_ceilings(fingerprint: str, device: str, *, quiet: bool) -> Kept:
    """Measure the ceilings of a device, and keep them where that can be done and nothing else was running."""
    if not quiet:
        warn(f"Measuring what {device} can reach, once on this machine: some seconds")
    ceilings = measure_ceilings(torch.device(device))
    if is_disturbed(ceilings):
        warn(f"warning: other processes were running: {device} may reach more than was measured, which is not kept; "
             "charact doctor --ceilings tries again")
        return now_measured(ceilings)
    try:
        return keep_ceilings(
            ceilings_file(fingerprint, torch.__version__, torch.get_num_threads(), device), ceilings)
    except (NotKept, UserError) as error:
        warn(f"warning: the ceilings of {device} are not kept: {error}")
        return now_measured(ceilings)
