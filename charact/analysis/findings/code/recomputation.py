"""Backward computes the forward of layers again."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share
from charact.record.case_facts import pass_facts

_FULL_FRAC = 0.7
"""Share of the machine's memory in use from which recomputation may be needed."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if backward runs the forward of layers; its confidence is low if memory is nearly full."""
    facts = case.inspection.get("recompute") or {}
    if not facts.get("time_s") or not facts.get("backward_s"):
        return
    spent_s = case.phase_s["backward"] * min(facts["time_s"] / facts["backward_s"], 1.0)
    saving = case.saving(0.6 * spent_s, 1.15 * spent_s)
    if saving is None:
        return
    peak_bytes = pass_facts(case.entry, "memory").get("process_peak_bytes")
    memory_bytes = min(filter(None, (case.run.manifest.get("machine", {}).get(name)
                                     for name in ("memory_bytes", "memory_limit_bytes"))), default=None)
    evidence = [f"forwards inside of backward take {quantity(spent_s, 's')}, "
                f"{share(spent_s / case.iteration_s)} of a typical iteration"]
    is_full = False
    if case.on_cpu and peak_bytes is not None and memory_bytes is not None:
        is_full = peak_bytes > _FULL_FRAC * memory_bytes
        evidence.append(f"the process uses at most {quantity(peak_bytes, 'B')} of {quantity(memory_bytes, 'B')} memory")
    layers = facts.get("layers") or []
    named = f" of {', '.join(layers[:3])}" if layers else ""
    yield Finding(
        f"backward computes the forward{named} a second time (activation checkpointing)",
        "remove torch.utils.checkpoint if memory suffices, or checkpoint only the layers with the largest activations",
        saving, tuple(evidence), "low" if is_full else "high", phase="backward",
        layer=layers[0] if layers else None, setting="activation checkpointing")
