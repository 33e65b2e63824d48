"""Collectives between ranks for `charact doctor`: from the user's cache, otherwise measured and saved there."""

import torch
import torch.distributed as dist

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.core.errors import UserError
from charact.core.output import warn
from charact.machine.ceilings_cache import UNDISTURBED_FRAC, NotCached, cache_ceilings
from charact.machine.collective_ceilings import (
    CachedCollectives,
    collectives_file,
    collectives_now_measured,
    read_collectives,
)
from charact.machine.core_use import CoreUse
from charact.machine.facts import usable_cores
from charact.measure.microbench.collective_ceilings import measure_collectives
from charact.measure.ranks.processes import backend_of
from charact.measure.script.ranks.launcher import warn_of_few_cores


def measured_collectives(fingerprint: str, num_ranks: int, *, refresh: bool) -> list[CachedCollectives]:
    """Return the collectives of gloo, and of NCCL if there is a GPU for each rank; from the cache unless `refresh`."""
    has_nccl = dist.is_nccl_available() and torch.cuda.device_count() >= num_ranks
    return [_measured(fingerprint, num_ranks, device_type, refresh=refresh)
            for device_type in ("cpu", *(["cuda"] if has_nccl else []))]


def _measured(fingerprint: str, num_ranks: int, device_type: str, *, refresh: bool) -> CachedCollectives:
    backend = backend_of(device_type)
    try:
        if refresh:
            raise NotCached("to be measured again")
        return read_collectives(collectives_file(fingerprint, torch.__version__, num_ranks, backend))
    except NotCached:
        return _now_measured(fingerprint, num_ranks, device_type)


def _now_measured(fingerprint: str, num_ranks: int, device_type: str) -> CachedCollectives:
    """Measure, and save the result if no other process disturbed the measurement."""
    backend = backend_of(device_type)
    warn(f"Measuring collectives between {num_ranks} ranks ({backend}), once on this machine: some ten seconds")
    if device_type == "cpu":
        warn_of_few_cores(num_ranks, usable_cores())
    core_use = CoreUse()
    try:
        found = collectives_now_measured(backend, num_ranks, *measure_collectives(num_ranks, device_type))
    except RuntimeError as error:
        raise UserError(f"collectives between {num_ranks} ranks ({backend}) cannot be measured: {error}: give fewer "
                        "ranks with --nproc, or free memory") from error
    use = core_use.facts()
    if use is not None and use["others_s"] > (1 - UNDISTURBED_FRAC) * use["num_usable_cores"] * use["length_s"]:
        warn(f"warning: other processes were running: the bandwidths of {backend} may be too low, and are not saved; "
             f"try again with charact doctor --ceilings --nproc {num_ranks}")
        return found
    try:
        cache_ceilings(collectives_file(fingerprint, torch.__version__, num_ranks, backend), found)
    except (NotCached, UserError) as error:
        warn(f"warning: the bandwidths of {backend} are not saved: {error}")
    return found
