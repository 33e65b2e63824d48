"""The loop waits for batches."""

import math
from collections.abc import Iterator
from typing import Any

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._line_text import advice_for
from charact.analysis.findings._watched_case import SampledLine, WatchedCase
from charact.core.units import quantity, share


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a typical iteration waits for its batch."""
    data_s, iteration_s = case.phase_s["data"], case.iteration_s
    loaders = case.settings.get("loaders") or []
    loader: dict[str, Any] = max(loaders, key=lambda each: each.get("wait_s") or 0.0, default={})
    workers = loader.get("num_workers") or 0
    line = next(iter(case.lines("data")), None) if not workers else None
    waits = line is not None and (line.waiting_frac or 0.0) > 0.5
    low_s, high_s, remedy = _remedy(case, loader, line, waits=waits)
    saving = case.saving(low_s, high_s, "modelled")
    if saving is None:
        return
    evidence = [f"data takes {quantity(data_s, 's')}, {share(data_s / iteration_s)} of a typical iteration, with "
                f"{workers} loader worker{'' if workers == 1 else 's'}"]
    if line is not None:
        evidence.append(f"{share(line.share_frac)} of it at {line.place} in {line.function}, which "
                        f"{advice_for(line).does}")
    place = line.place if line else Place.of(loader)
    yield Finding("the loop waits for batches" + (f": {line.function} {advice_for(line).does}" if line else ""),
                  remedy, saving, tuple(evidence), "high" if line or workers else "medium", place=place, phase="data",
                  setting=f"num_workers={workers}" if loader else None)


def _remedy(case: WatchedCase, loader: dict[str, Any], line: SampledLine | None, *, waits: bool
            ) -> tuple[float, float, str]:
    """Return the minimum and maximum time (s) that a remedy saves in an iteration, and the remedy."""
    data_s = case.phase_s["data"]
    rest_s = case.iteration_s - data_s
    cores = (case.settings.get("threads") or {}).get("num_usable_cores") or 1
    workers = loader.get("num_workers") or 0
    cheaper = ("make samples cheaper to load" if line is None else f"shorten the wait at {line.place}" if waits else
               f"make samples cheaper to load at {line.place}: {advice_for(line).remedy}")
    if loader.get("in_memory") and not workers:
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
