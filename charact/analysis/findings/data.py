"""Findings about batches that the loop waits for."""

import math
from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._line_text import advice_for
from charact.analysis.findings._watched_case import SampledLine, WatchedCase
from charact.core.units import quantity, share
from charact.record.manifest_program import LoaderSettings


def data_loading(case: WatchedCase) -> Iterator[Finding]:
    """Yield the finding that the loop waits for batches; what saves too little is left out later, see `findings`."""
    data_s = case.phase_s["data"]
    loaders = case.settings.loaders
    loader = max(loaders, key=lambda loader: loader.wait_s or 0.0, default=LoaderSettings())
    workers = loader.num_workers or 0
    line = next(iter(case.lines("data")), None) if not workers else None
    low_s, high_s, remedy = _loading_remedy(case, loader, line)
    evidence = [f"data takes {case.takes(data_s)}, with {workers} loader worker{'' if workers == 1 else 's'}"]
    if line is not None:
        evidence.append(f"{share(line.share_frac)} of it at {line.place} in {line.function}, which "
                        f"{advice_for(line).does}")
    yield Finding("the loop waits for batches" + (f": {line.function} {advice_for(line).does}" if line else ""),
                  remedy, case.saving(low_s, high_s, "modelled"), tuple(evidence),
                  "high" if line or workers else "medium", place=line.place if line else Place.of(loader),
                  phase="data", setting=f"num_workers={workers}" if loaders else None)


def _loading_remedy(case: WatchedCase, loader: LoaderSettings, line: SampledLine | None) -> tuple[float, float, str]:
    """Return the minimum and maximum time (s) that a remedy saves in an iteration, and the remedy."""
    data_s = case.phase_s["data"]
    rest_s = case.iteration_s - data_s
    cores = case.num_cores or 1
    workers, waits = loader.num_workers or 0, line is not None and line.waits
    cheaper = ("make samples cheaper to load" if line is None else f"shorten the wait at {line.place}" if waits else
               f"make samples cheaper to load at {line.place}: {advice_for(line).remedy}")
    if loader.in_memory and not workers:
        return 0.4 * data_s, 0.95 * data_s, ("index whole batches of the tensors (images[indices]) instead of "
                                             "collating single samples")
    if workers:
        more = workers + max(math.ceil(workers * data_s / max(rest_s, 1e-9)), 1)
        if workers < cores:
            return 0.2 * data_s, data_s, f"pass num_workers={min(more, cores)} to the DataLoader; or {cheaper}"
        return 0.2 * data_s, data_s, (f"{cheaper}, such as by decoding them once, in advance: {workers} workers use "
                                      f"all {cores} cores")
    needed = max(min(math.ceil(data_s / max(rest_s, 1e-9)), 16 if waits else cores), 1)
    parallel = f"load in parallel: pass num_workers={needed}, persistent_workers=True to the DataLoader"
    if waits:
        return 0.5 * min(data_s, rest_s), 0.98 * data_s, f"{parallel}; or {cheaper}"
    hidden_s = min(data_s, max(data_s + rest_s - (data_s + rest_s) / cores, 0.0))
    return 0.2 * min(hidden_s, data_s), 0.95 * data_s, f"{cheaper}; or {parallel}"


_IN_PROCESS_FRAC = 0.6
"""Minimum ratio of the time to make a batch in the program's process to the time in a worker."""
_IN_MEMORY_FRAC = 0.5
"""Maximum share of an iteration, apart from its phase data, that is saved without workers, for data in memory.

*Source*: a `TensorDataset` on 2 cores, PyTorch 2.13: the iteration apart from its phase data took 3.9 ms with 2
workers, and 2.1 ms without.
"""


def loader_workers(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for a loader whose batches take longer to arrive than to make."""
    for loader in case.settings.loaders:
        num_batches, fetch_s = loader.num_batches or 0, loader.worker_fetch_s
        if not loader.num_workers or fetch_s is None or not num_batches:
            continue
        wait_s, make_s = case.phase_s["data"], fetch_s / num_batches
        cores = case.num_cores or 1
        # Workers on all cores slow the program's own operators by their processor time.
        slowed_s = make_s if case.on_cpu and loader.num_workers >= cores else 0.0
        low_s, high_s = 0.7 * (wait_s - make_s), wait_s - _IN_PROCESS_FRAC * make_s + slowed_s
        if loader.in_memory:
            low_s, high_s = max(low_s, 0.3 * wait_s), high_s + _IN_MEMORY_FRAC * (case.iteration_s - wait_s)
        saving = case.saving(low_s, high_s, "modelled")
        if saving is None or (make_s >= wait_s and not loader.in_memory):
            continue
        whole = (", or index whole batches of the tensors (images[indices])" if loader.in_memory else "")
        yield Finding(
            f"the DataLoader's {loader.num_workers} workers cost more time than they save: the data is "
            f"{'already in memory' if loader.in_memory else 'cheap to make'}",
            f"pass num_workers=0 to the DataLoader{whole}", saving,
            (f"the loop waits {quantity(wait_s, 's')} for each batch, which a worker makes in "
             f"{quantity(make_s, 's')}; passing it between processes takes the rest",),
            place=Place.of(loader), phase="data",
            setting=f"num_workers={loader.num_workers}", covers=frozenset({"data_loading"}))
        return
