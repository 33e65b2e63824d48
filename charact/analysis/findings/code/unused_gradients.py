"""Gradients are computed and then deleted without an update."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for each model whose gradients a backward for another optimizer computes, and nothing uses."""
    for facts in case.inspection.get("unused_gradients") or []:
        if not facts.get("time_s"):
            continue
        scale = min(case.phase_s["backward"] / facts["backward_s"], 1.0) if facts.get("backward_s") else 1.0
        spent_s = facts["time_s"] * scale
        saving = case.saving(0.5 * spent_s, 1.5 * spent_s)
        if saving is None:
            continue
        yield Finding(
            f"the backward for {facts['optimizer']} also computes gradients of {facts['model']}, which are never used",
            f"detach the output of {facts['model']} in that step: pass output.detach(), or compute it under "
            "torch.no_grad()", saving,
            (f"these gradients take {quantity(spent_s, 's')}, {share(spent_s / case.iteration_s)} of a typical "
             "iteration, and are deleted before an optimizer uses them",),
            phase="backward", layer=facts["model"])
