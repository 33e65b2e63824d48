"""PyTorch computes with more threads than cores that other programs leave free."""

import math
from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import share

_SAVED_FRAC = (0.3, 0.93)
"""Minimum and maximum share of the computing time that fewer threads save.

*Source*: two endless loops on 2 cores, PyTorch 2.13: 52 % for a transformer's inference, 91 % for small convolutions.
"""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if other programs hold so many of the cores that threads wait for each other."""
    threads, others = case.settings.get("threads") or {}, case.disturbance
    num_threads, num_cores = threads.get("intra_op"), threads.get("num_usable_cores")
    if not num_threads or not num_cores or others is None or not others.is_unreliable or not case.on_cpu:
        return
    num_free = max(1, math.floor(num_cores - others.others_cores))
    if not num_free < num_threads <= num_cores:
        return
    parallel_s = sum(case.phase_s[phase] for phase in ("forward", "loss", "backward", "update"))
    low_frac, high_frac = _SAVED_FRAC
    saving = case.saving(low_frac * parallel_s, high_frac * parallel_s, "modelled")
    if saving is None:
        return
    yield Finding(
        f"PyTorch computes with {num_threads} threads, and other programs hold {others.others_cores:.1f} of "
        f"{num_cores} cores: each operator waits for its slowest thread",
        f"call torch.set_num_threads({num_free}), or set OMP_NUM_THREADS={num_free}, while other programs run", saving,
        (f"other programs took {share(others.lost_frac)} of the processor time that this one wanted",), "medium",
        phase="forward", setting=f"num_threads={num_threads}")
