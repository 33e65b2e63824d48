"""The optimizer updates its tensors, or its parameter groups, one by one."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_SAVED_FRAC = {"Adam": (0.4, 0.93), "AdamW": (0.4, 0.93), "Adagrad": (0.3, 0.9)}
"""Minimum and maximum share of the phase update that a fused step saves.

*Source*: on 2 cores, PyTorch 2.13: 77 % for 600 tensors of 272 values, 87 % for 6 tensors of 1 million values.
"""
_SAVED_S = (2e-6, 12e-6)
"""Minimum and maximum time (s) for each tensor that a fused step of SGD saves: it saves calls, but no memory access."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for an optimizer that updates its tensors one by one, if its update takes much time."""
    yield from _groups(case)
    loops = [each for each in case.settings.get("optimizers", [])
             if each.get("implementation") == "for-loop" and each.get("class") in ("SGD", *_SAVED_FRAC)]
    if not loops or not case.trains:
        return
    optimizer = max(loops, key=lambda each: each.get("num_tensors") or 0)
    update_s = case.phase_s["update"]
    num_tensors = optimizer.get("num_tensors") or 0
    low_s, high_s = ((min(each * num_tensors, 0.8 * update_s) for each in _SAVED_S) if optimizer["class"] == "SGD" else
                     (frac * update_s for frac in _SAVED_FRAC[optimizer["class"]]))
    saving = case.saving(low_s, high_s, "modelled")
    if saving is None:
        return
    yield Finding(
        f"{optimizer['class']} updates its {num_tensors:,} tensors one by one (for-loop implementation)",
        f"pass fused=True to {optimizer['class']} (foreach=True where a parameter group cannot be fused)", saving,
        (f"update takes {quantity(update_s, 's')}, {share(update_s / case.iteration_s)} of a typical iteration, for "
         f"{optimizer['num_parameters']:,} parameters in {num_tensors:,} tensors",),
        place=Place.of(optimizer), phase="update",
        setting=f"{optimizer['class']}(fused=False)")


def _groups(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for an optimizer with nearly as many parameter groups as tensors."""
    for optimizer in case.settings.get("optimizers", []):
        num_groups, num_tensors = optimizer.get("num_groups") or 0, optimizer.get("num_tensors") or 0
        if num_groups < 16 or num_groups < num_tensors / 4 or optimizer.get("implementation") == "for-loop":
            continue
        update_s = case.phase_s["update"]
        saving = case.saving(0.25 * update_s, 0.9 * update_s, "modelled")
        if saving is not None:
            yield Finding(
                f"{optimizer['class']} has {num_groups:,} parameter groups for {num_tensors:,} tensors, and updates "
                "them group by group",
                "put parameters with equal settings into one group: a step updates all tensors of a group at once",
                saving, (f"update takes {quantity(update_s, 's')}, {share(update_s / case.iteration_s)} of a typical "
                         "iteration",),
                place=Place.of(optimizer), phase="update",
                setting="parameter groups")
