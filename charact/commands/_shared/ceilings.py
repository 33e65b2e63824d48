"""Ceilings for a record and for `charact doctor`: from the user's cache, otherwise measured and saved there."""

from collections.abc import Sequence
from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.case_outcome import one_line
from charact.execution.interrupt import Interrupt
from charact.machine.ceilings_cache import (
    CachedCeilings,
    NotCached,
    cache_ceilings,
    ceilings_file,
    is_disturbed,
    now_measured,
    read_ceilings,
)
from charact.measure.microbench.ceilings import measure_ceilings

REMEDY = "charact doctor --ceilings measures them"


def recorded_ceilings(fingerprint: str, devices: Sequence[str], interrupt: Interrupt | None = None, *,
                      quiet: bool = True) -> dict[str, Any]:
    """Return the manifest's entries `ceilings` of devices and, for missing ones, `ceilings_reason`.

    Args:
        fingerprint: fingerprint of this machine.
        devices: names; `cuda` is the first GPU. Empty if the estimates are for a device of another machine.
        interrupt: allows a signal to end measuring; if None, only the cache is used.
        quiet: whether messages while measuring are suppressed.
    """
    rows, reasons = [], [] if devices else ["the device is not present"]
    for device in dict.fromkeys("cuda:0" if device == "cuda" else device for device in devices):
        try:
            rows += kept_ceilings(fingerprint, device).ceilings
        except NotCached as missing:
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


def kept_ceilings(fingerprint: str, device: str) -> CachedCeilings:
    """Return ceilings of a device at PyTorch's current number of threads, from the cache.

    Raises:
        NotCached: the cache has no usable ceilings.
    """
    return read_ceilings(ceilings_file(fingerprint, torch.__version__, torch.get_num_threads(), device))


def new_ceilings(fingerprint: str, device: str, *, quiet: bool) -> CachedCeilings:
    """Measure the ceilings of a device, and save them if no other process disturbed the measurement."""
    if not quiet:
        warn(f"Measuring the ceilings of {device}, once on this machine: a few seconds")
    ceilings = measure_ceilings(torch.device(device))
    if is_disturbed(ceilings):
        warn(f"warning: other processes were running: the ceilings of {device} may be too low, and are not saved; "
             "try again with charact doctor --ceilings")
        return now_measured(ceilings)
    try:
        return cache_ceilings(
            ceilings_file(fingerprint, torch.__version__, torch.get_num_threads(), device), ceilings)
    except (NotCached, UserError) as error:
        warn(f"warning: the ceilings of {device} are not saved: {error}")
        return now_measured(ceilings)
