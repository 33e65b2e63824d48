"""PyTorch computes with more threads than there are cores for them."""

import math
from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import share

_CONTENDED_FRAC = (0.3, 0.93)
"""Minimum and maximum share of the computing time that fewer threads save next to other programs.

*Source*: two endless loops on 2 cores, PyTorch 2.13: 52 % for a transformer's inference, 91 % for small convolutions.
"""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if PyTorch has more threads than usable cores, or than cores that other programs leave free."""
    threads = case.settings.get("threads") or {}
    num_threads, num_cores = threads.get("intra_op"), threads.get("num_usable_cores")
    if not num_threads or not num_cores or not case.on_cpu:
        return
    parallel_s = sum(case.phase_s[phase] for phase in ("forward", "loss", "backward", "update"))
    others = case.disturbance
    num_free = num_cores
    if others is not None and others.is_unreliable:
        num_free = max(1, math.floor(num_cores - others.others_cores))
    if num_threads > num_cores:
        low_frac, high_frac = 0.1, 1 - num_cores / num_threads
    elif num_threads > num_free:
        low_frac, high_frac = _CONTENDED_FRAC
    else:
        return
    saving = case.saving(low_frac * parallel_s, high_frac * parallel_s, "modelled")
    if saving is None:
        return
    cores = "1 core" if num_cores == 1 else f"{num_cores} cores"
    evidence = [f"torch.get_num_threads() is {num_threads}; the process may use {cores}"]
    cause = f"PyTorch computes with {num_threads} threads on {cores}: threads wait for each other"
    if others is not None and num_free < num_cores:
        cause = (f"PyTorch computes with {num_threads} threads on {cores}, of which other programs hold "
                 f"{others.others_cores:.1f}: each operator waits for its slowest thread")
        evidence.append(f"other programs took {share(others.lost_frac)} of the processor time that this one wanted")
    yield Finding(
        cause, f"call torch.set_num_threads({num_free}), or set OMP_NUM_THREADS={num_free}"
        + (", while other programs run" if num_free < num_cores else ""), saving, tuple(evidence),
        "high" if num_threads > num_cores else "medium", phase="forward", setting=f"num_threads={num_threads}")
