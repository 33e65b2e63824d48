"""Gradients are computed and then deleted without an update."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for each model whose gradients another optimizer's backward computes in vain."""
    for facts in case.inspection.get("unused_gradients") or []:
        if not facts.get("time_s"):
            continue
        scale = min(case.phase_s["backward"] / facts["backward_s"], 1.0) if facts.get("backward_s") else 1.0
        spent_s = facts["time_s"] * scale
        saving = case.saving(0.5 * spent_s, 1.5 * spent_s)
        if saving is None:
            continue
        yield Finding(
            f"backward for {facts['optimizer']}'s update also goes through {facts['model']}, whose gradients are "
            "deleted unused",
            f"detach what {facts['model']} gives to the other model in that step (output.detach(), or compute it under "
            "torch.no_grad())", saving,
            (f"it takes {quantity(spent_s, 's')}, {share(spent_s / case.iteration_s)} of a typical "
             f"iteration; zero_grad deletes these gradients before {facts['model']}'s own optimizer steps",),
            phase="backward", layer=facts["model"])
