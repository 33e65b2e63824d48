"""Inference records an autograd graph: torch.no_grad() is missing."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Saving
from charact.analysis.findings._watched_case import WatchedCase, watched_cases
from charact.core.units import quantity


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a model ran in evaluation mode with gradients enabled and without a backward."""
    models = [model for model in case.settings.get("models", []) if (model.get("inference_with_grad") or 0) >= 2]
    if not models or (case.trains and not all(other.trains for other in watched_cases(case.run))):
        return  # the inference case has the finding
    model = max(models, key=lambda each: each["inference_with_grad"])
    rows = case.iterations
    spent_s = float(rows["forward_s"].fillna(0.0).sum())
    grown = _grown_bytes(case)
    evidence = [f"{model['name']} was called {model['inference_with_grad']:,} times in evaluation mode with gradients "
                "enabled, and no backward followed"]
    if grown:
        evidence.append(f"the process grew by {quantity(grown, 'B')} during these calls: activations stay in memory "
                        "as long as a result of their call is kept")
    saving = None if case.trains else Saving(0.0, 0.3 * spent_s, "modelled")
    line = next(iter(case.lines("forward") or case.lines("other")), None)
    yield Finding(
        f"inference of {model['name']} records an autograd graph, although no backward follows",
        "run inference under torch.no_grad() or torch.inference_mode(), and keep numbers (.item()) instead of tensors",
        saving, tuple(evidence), memory_bytes=grown or None, memory_frac=grown / _largest_bytes(case) if grown else 0.2,
        place=line.place if line else None, phase="forward", setting="grad mode", covers=frozenset({"memory_growth"}))


def _grown_bytes(case: WatchedCase) -> float:
    """Return the largest growth (bytes) of the resident set over consecutive inference iterations."""
    rows = case.run.program_iterations.sort_values("start_s")
    rows = rows[rows["rss_bytes"].notna()]
    is_own = rows["case"] == case.name
    if case.trains or is_own.sum() < 2:
        return 0.0
    intervals = (is_own != is_own.shift()).cumsum()
    growths = [float(part["rss_bytes"].iloc[-1] - part["rss_bytes"].iloc[0])
               for _, part in rows[is_own].groupby(intervals[is_own])]
    return max(max(growths, default=0.0), 0.0)


def _largest_bytes(case: WatchedCase) -> float:
    return float(case.run.program_iterations["rss_bytes"].max())
