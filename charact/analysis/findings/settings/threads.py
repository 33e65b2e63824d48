"""PyTorch computes with more threads than cores."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if PyTorch has more threads than the process has usable cores."""
    threads = case.settings.get("threads") or {}
    num_threads, num_cores = threads.get("intra_op"), threads.get("num_usable_cores")
    if not num_threads or not num_cores or num_threads <= num_cores or not case.on_cpu:
        return
    parallel_s = sum(case.phase_s[phase] for phase in ("forward", "loss", "backward", "update"))
    saving = case.saving(0.1 * parallel_s, (1 - num_cores / num_threads) * parallel_s, "modelled")
    if saving is None:
        return
    cores = "1 core" if num_cores == 1 else f"{num_cores} cores"
    yield Finding(
        f"PyTorch computes with {num_threads} threads on {cores}: threads wait for each other",
        f"call torch.set_num_threads({num_cores}), or set OMP_NUM_THREADS={num_cores}", saving,
        (f"torch.get_num_threads() is {num_threads}; the process may use {cores}",), phase="forward",
        setting=f"num_threads={num_threads}")
