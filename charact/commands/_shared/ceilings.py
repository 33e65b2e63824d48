"""Ceilings for a record and for `charact doctor`: from the user's cache, otherwise measured and saved there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.case_outcome import one_line
from charact.execution.interrupt import Interrupt
from charact.machine.ceilings_cache import (
    UNDISTURBED_FRAC,
    CachedCeilings,
    NotCached,
    cache_ceilings,
    cached_ceilings,
    ceilings_file,
    distinct_devices,
    is_disturbed,
    now_measured,
    raise_ceilings,
    read_ceilings,
)
from charact.measure.microbench.ceilings import check_speed, measure_ceilings
from charact.record.reader import Run

_FASTER, _SLOWER = 1.2, 0.75
"""Ratios of a short check's rate to that at the time of the ceilings, from which these are measured again."""


def recorded_ceilings(fingerprint: str, devices: Sequence[str], interrupt: Interrupt | None = None, *,
                      quiet: bool = True) -> dict[str, Any]:
    """Return the manifest's entries `ceilings` of devices and, for missing ones, `ceilings_reason`.

    Args:
        fingerprint: fingerprint of this machine.
        devices: names; `cuda` is the first GPU. Empty if the estimates are for a device of another machine.
        interrupt: allows a signal to end measuring. Ceilings are measured if they are not in the cache, or if the
            machine's speed has changed. If None, only the cache is used.
        quiet: whether messages while measuring are suppressed.
    """
    if not devices:
        return {"ceilings": [], "ceilings_reason": "the device is not present"}
    if interrupt is None:
        return cached_ceilings(fingerprint, torch.__version__, torch.get_num_threads(), devices)
    rows, reasons = [], []
    for device in distinct_devices(devices):
        try:
            with interrupt.allowed():
                rows += _present_ceilings(fingerprint, device, quiet=quiet).ceilings
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
    return read_ceilings(_file(fingerprint, device))


def new_ceilings(fingerprint: str, device: str, *, quiet: bool) -> CachedCeilings:
    """Measure the ceilings of a device, and save them if no other process disturbed the measurement."""
    if not quiet:
        warn(f"Measuring the ceilings of {device}, once on this machine: a few seconds")
    found = now_measured(measure_ceilings(torch.device(device)), check_speed(torch.device(device)).flop_per_s)
    if is_disturbed(found.ceilings):
        warn(f"warning: other processes were running: the ceilings of {device} may be too low, and are not saved; "
             "try again with charact doctor --ceilings")
        return found
    try:
        cache_ceilings(_file(fingerprint, device), found)
    except (NotCached, UserError) as error:
        warn(f"warning: the ceilings of {device} are not saved: {error}")
    return found


def keep_observed(run: Run) -> None:
    """Put the rates of products that a run reached into the cache, in place of lower ceilings; never fails."""
    from charact.analysis.efficiency.ceilings import observed_ceilings

    observed = observed_ceilings(run)
    for device, rows in observed.groupby("device"):
        try:
            kept = kept_ceilings(run.manifest["machine"]["fingerprint"], str(device))
            reached = {str(precision): (float(rate), str(origin)) for precision, rate, origin
                       in rows[["precision", "value", "origin"]].itertuples(index=False)}
            cache_ceilings(_file(run.manifest["machine"]["fingerprint"], str(device)), raise_ceilings(kept, reached))
        except (NotCached, UserError):
            continue


def _present_ceilings(fingerprint: str, device: str, *, quiet: bool) -> CachedCeilings:
    """Return the ceilings from the cache, or measure them if there are none or the machine's speed has changed."""
    try:
        kept = kept_ceilings(fingerprint, device)
    except NotCached:
        return new_ceilings(fingerprint, device, quiet=quiet)
    return kept if _has_same_speed(kept, device, quiet=quiet) else new_ceilings(fingerprint, device, quiet=quiet)


def _has_same_speed(kept: CachedCeilings, device: str, *, quiet: bool) -> bool:
    """Return whether a short check runs about as fast as when the ceilings were measured."""
    if kept.check_flop_per_s is None:
        return True
    now = check_speed(torch.device(device))
    ratio = now.flop_per_s / kept.check_flop_per_s
    if ratio <= _FASTER and (ratio >= _SLOWER or now.cores_frac < UNDISTURBED_FRAC):
        return True
    if not quiet:
        warn(f"Products on {device} run at {ratio:.2f} times the rate of {kept.when}: measuring its ceilings again")
    return False


def _file(fingerprint: str, device: str) -> Path:
    return ceilings_file(fingerprint, torch.__version__, torch.get_num_threads(), device)
