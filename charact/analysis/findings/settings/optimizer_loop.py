"""The optimizer goes through its parameters one by one."""

from collections.abc import Iterator
from typing import Any

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of PyTorch with a fused implementation, on a CPU too."""
_CALL_S = (2e-6, 15e-6)
"""Least and most time of a fused or foreach step for each parameter tensor."""
_BYTES_PER_S = (1e9, 40e9)
"""Range of the memory bandwidth of CPUs if no ceiling was measured."""
_PASSES = {"SGD": 3, "Adagrad": 5}
"""Times that a fused step reads or writes each parameter's size; 7 for Adam's two moments."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the for-loop optimizer with most parameters, if its update takes much time."""
    loops = [each for each in case.settings.get("optimizers", [])
             if each.get("implementation") == "for-loop" and each.get("class") in FUSED]
    if not loops or not case.trains:
        return
    optimizer = max(loops, key=lambda each: each.get("num_tensors") or 0)
    update_s = case.phase_s["update"]
    fastest_s, slowest_s = (sum(_fused_s(each, *rates) for each in loops)
                            for rates in ((_CALL_S[0], _BYTES_PER_S[1]), (_CALL_S[1], _BYTES_PER_S[0])))
    saving = case.saving(update_s - min(slowest_s, 0.9 * update_s), update_s - min(fastest_s, update_s), "modelled")
    if saving is None:
        return
    iteration_s = case.iteration_s
    yield Finding(
        f"{optimizer['class']} updates its {optimizer['num_tensors']:,} tensors one by one (for-loop implementation)",
        f"pass fused=True to {optimizer['class']} (foreach=True where a parameter group cannot be fused)", saving,
        (f"update takes {quantity(update_s, 's')}, {share(update_s / iteration_s)} of a typical iteration",
         f"a fused update of {optimizer['num_parameters']:,} parameters reads and writes "
         f"{quantity(_bytes(optimizer), 'B')}"),
        place=Place(optimizer["file"], optimizer["line"]) if optimizer.get("file") else None, phase="update",
        setting=f"{optimizer['class']}(fused=False)")


def _bytes(optimizer: dict[str, Any]) -> float:
    return 4.0 * _PASSES.get(optimizer["class"], 7) * (optimizer.get("num_parameters") or 0)


def _fused_s(optimizer: dict[str, Any], call_s: float, bytes_per_s: float) -> float:
    return (optimizer.get("num_tensors") or 0) * call_s + _bytes(optimizer) / bytes_per_s
