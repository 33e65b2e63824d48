"""Backward computes the forward of layers again."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_FULL_FRAC = 0.7
"""Share of the memory from which recomputation may be needed."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if layers run inside of backward, and whether memory would allow to keep their activations."""
    facts = case.inspection.get("recompute") or {}
    if not facts.get("time_s") or not facts.get("backward_s"):
        return
    spent_s = case.phase_s["backward"] * min(facts["time_s"] / facts["backward_s"], 1.0)
    saving = case.saving(0.6 * spent_s, 1.15 * spent_s)
    if saving is None:
        return
    held = (case.entry.get("passes", {}).get("memory") or {}).get("process_peak_bytes")
    has = min(filter(None, (case.run.manifest.get("machine", {}).get(name)
                            for name in ("memory_bytes", "memory_limit_bytes"))), default=None)
    evidence = [f"forwards inside of backward take {quantity(spent_s, 's')}, "
                f"{share(spent_s / case.iteration_s)} of a typical iteration"]
    is_full = case.on_cpu and held is not None and has is not None and held > _FULL_FRAC * has
    if case.on_cpu and held is not None and has is not None:
        evidence.append(f"the process has {quantity(held, 'B')} at most, of {quantity(has, 'B')}")
    layers = facts.get("layers") or []
    named = f" of {', '.join(layers[:3])}" if layers else ""
    yield Finding(
        f"backward computes the forward{named} a second time (activation checkpointing)",
        "do not checkpoint (torch.utils.checkpoint) while memory suffices, or checkpoint only the layers with the "
        "largest activations", saving, tuple(evidence), "low" if is_full else "high", phase="backward",
        layer=layers[0] if layers else None, setting="activation checkpointing")
