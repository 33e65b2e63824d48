"""Loader workers cost more time than they save: passing batches between processes takes longer than making them."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity

_IN_PROCESS_FRAC = 0.6
"""Minimum ratio of the time to make a batch in the program's process to the time in a worker."""
_IN_MEMORY_FRAC = 0.5
"""Maximum share of an iteration, apart from its phase data, that is saved without workers, for data in memory.

*Source*: a `TensorDataset` on 2 cores, PyTorch 2.13: the iteration apart from its phase data took 3.9 ms with 2
workers, and 2.1 ms without.
"""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for a loader whose batches take longer to arrive than to make."""
    for loader in case.settings.get("loaders", []):
        num_batches, fetch_s = loader.get("num_batches") or 0, loader.get("worker_fetch_s")
        if not loader.get("num_workers") or fetch_s is None or not num_batches:
            continue
        wait_s, make_s = case.phase_s["data"], fetch_s / num_batches
        cores = (case.settings.get("threads") or {}).get("num_usable_cores") or 1
        # Workers on all cores slow the program's own operators by their processor time.
        slowed_s = make_s if case.on_cpu and loader["num_workers"] >= cores else 0.0
        low_s, high_s = 0.7 * (wait_s - make_s), wait_s - _IN_PROCESS_FRAC * make_s + slowed_s
        if loader.get("in_memory"):
            low_s, high_s = max(low_s, 0.3 * wait_s), high_s + _IN_MEMORY_FRAC * (case.iteration_s - wait_s)
        saving = case.saving(low_s, high_s, "modelled")
        if saving is None or (make_s >= wait_s and not loader.get("in_memory")):
            continue
        whole = (", or index whole batches of the tensors (images[indices])" if loader.get("in_memory") else "")
        yield Finding(
            f"the DataLoader's {loader['num_workers']} workers cost more time than they save: the data is "
            f"{'already in memory' if loader.get('in_memory') else 'cheap to make'}",
            f"pass num_workers=0 to the DataLoader{whole}", saving,
            (f"the loop waits {quantity(wait_s, 's')} for each batch, which a worker makes in "
             f"{quantity(make_s, 's')}; passing it between processes takes the rest",),
            place=Place.of(loader), phase="data",
            setting=f"num_workers={loader['num_workers']}", covers=frozenset({"data_loading"}))
        return
