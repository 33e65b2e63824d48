"""Loader workers cost more than they give: passing batches between processes takes longer than making them."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity

_IN_PROCESS_FRAC = 0.6
"""Least time of making a batch in the program's own process, over that in a worker."""
_IN_MEMORY_FRAC = 0.5
"""Largest share of the rest of an iteration that ends with workers that copy items of a data set in memory.

*Source*: a `TensorDataset` with 2 workers on 2 cores, PyTorch 2.13: the rest of the iteration took 3.9 ms, without
workers 2.1 ms.
"""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for a loader whose batches take longer to arrive than to make."""
    for loader in case.settings.get("loaders", []):
        num_batches, fetch_s = loader.get("num_batches") or 0, loader.get("worker_fetch_s")
        if not loader.get("num_workers") or fetch_s is None or not num_batches:
            continue
        wait_s, own_s = case.phase_s["data"], fetch_s / num_batches
        cores = (case.settings.get("threads") or {}).get("num_usable_cores") or 1
        # Workers on all cores slow the program's own operators by their processor time.
        slowed_s = own_s if case.on_cpu and loader["num_workers"] >= cores else 0.0
        low_s, high_s = 0.7 * (wait_s - own_s), wait_s - _IN_PROCESS_FRAC * own_s + slowed_s
        if loader.get("in_memory"):
            low_s, high_s = max(low_s, 0.3 * wait_s), high_s + _IN_MEMORY_FRAC * (case.iteration_s - wait_s)
        saving = case.saving(low_s, high_s, "modelled")
        if saving is None or (own_s >= wait_s and not loader.get("in_memory")):
            continue
        whole = (", or index whole batches of the tensors yourself" if loader.get("in_memory") else "")
        yield Finding(
            f"the DataLoader's {loader['num_workers']} workers cost more than they give: the data is "
            f"{'in memory' if loader.get('in_memory') else 'cheap to make'}",
            f"use num_workers=0{whole}", saving,
            (f"the loop waits {quantity(wait_s, 's')} for each batch, which takes {quantity(own_s, 's')} to make; the "
             "rest is passing it between processes",),
            place=Place(loader["file"], loader["line"]) if loader.get("file") else None, phase="data",
            setting=f"num_workers={loader['num_workers']}", covers=frozenset({"data_loading"}))
        return
