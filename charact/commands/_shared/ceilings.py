"""Ceilings of devices and collectives: from the user's cache, otherwise measured and saved there."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.case_outcome import one_line
from charact.execution.interrupt import Interrupt
from charact.machine.ceilings_cache import (
    UNDISTURBED_FRAC,
    CachedCeilings,
    CachedCollectives,
    NotCached,
    cache_ceilings,
    cached_ceilings,
    ceilings_file,
    collectives_file,
    distinct_devices,
    is_disturbed,
    raise_ceilings,
    read_cached,
)
from charact.machine.core_use import CoreMeter
from charact.machine.facts import usable_cores
from charact.measure.microbench.ceilings import check_speed, measure_ceilings
from charact.measure.microbench.collectives import measure_collectives
from charact.measure.ranks.processes import backend_of
from charact.measure.script.ranks.launcher import warn_of_few_cores
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
    return read_cached(_file(fingerprint, device), CachedCeilings)


def new_ceilings(fingerprint: str, device: str, *, quiet: bool) -> CachedCeilings:
    """Measure the ceilings of a device, and save them if no other process disturbed the measurement."""
    if not quiet:
        warn(f"Measuring the ceilings of {device}, once on this machine: a few seconds")
    measured = CachedCeilings(measure_ceilings(torch.device(device)), check_speed(torch.device(device)).flop_per_s)
    _save(_file(fingerprint, device), measured, f"ceilings of {device}", is_disturbed(measured.ceilings))
    return measured


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
        cached = kept_ceilings(fingerprint, device)
    except NotCached:
        return new_ceilings(fingerprint, device, quiet=quiet)
    if cached.check_flop_per_s is None:
        return cached
    now = check_speed(torch.device(device))
    ratio = now.flop_per_s / cached.check_flop_per_s
    if ratio <= _FASTER and (ratio >= _SLOWER or now.cores_frac < UNDISTURBED_FRAC):
        return cached
    if not quiet:
        warn(f"Products on {device} run at {ratio:.2f} times the rate of {cached.when}: measuring its ceilings again")
    return new_ceilings(fingerprint, device, quiet=quiet)


def _save(file: Path, measured: CachedCeilings | CachedCollectives, name: str, disturbed: bool,
          again: str = "") -> None:
    """Save ceilings in the user's cache, unless other processes disturbed the measurement."""
    if disturbed:
        warn(f"warning: other processes were running: the {name} may be too low, and are not saved; try again with "
             f"charact doctor --ceilings{again}")
        return
    try:
        cache_ceilings(file, measured)
    except (NotCached, UserError) as error:
        warn(f"warning: the {name} are not saved: {error}")


def _file(fingerprint: str, device: str) -> Path:
    return ceilings_file(fingerprint, torch.__version__, torch.get_num_threads(), device)


def measured_collectives(fingerprint: str, num_ranks: int, *, refresh: bool) -> list[CachedCollectives]:
    """Return the collectives of gloo, and of NCCL if there is a GPU for each rank; from the cache unless `refresh`."""
    has_nccl = dist.is_nccl_available() and torch.cuda.device_count() >= num_ranks
    return [_collectives(fingerprint, num_ranks, device_type, refresh=refresh)
            for device_type in ("cpu", *(["cuda"] if has_nccl else []))]


def _collectives(fingerprint: str, num_ranks: int, device_type: str, *, refresh: bool) -> CachedCollectives:
    backend = backend_of(device_type)
    file = collectives_file(fingerprint, torch.__version__, num_ranks, backend)
    if not refresh:
        with contextlib.suppress(NotCached):
            return read_cached(file, CachedCollectives)
    warn(f"Measuring collectives between {num_ranks} ranks ({backend}), once on this machine: some ten seconds")
    if device_type == "cpu":
        warn_of_few_cores(num_ranks, usable_cores())
    core_use = CoreMeter()
    try:
        measured = CachedCollectives(backend, num_ranks, *measure_collectives(num_ranks, device_type))
    except RuntimeError as error:
        raise UserError(f"collectives between {num_ranks} ranks ({backend}) cannot be measured: {error}: give fewer "
                        "ranks with --nproc, or free memory") from error
    use = core_use.facts()
    others_used = use is not None and (
        use.others_s > (1 - UNDISTURBED_FRAC) * use.num_usable_cores * use.length_s)
    _save(file, measured, f"bandwidths of {backend}", others_used, f" --nproc {num_ranks}")
    return measured
