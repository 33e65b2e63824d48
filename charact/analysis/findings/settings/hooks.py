"""Hooks on modules accumulate."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a model has many more hooks at the end than at its first call."""
    for model in case.settings.get("models", []):
        first, last = model.get("num_hooks_first") or 0, model.get("num_hooks_last") or 0
        if last < first + max(20, case.num_iterations // 4):
            continue
        saving = case.saving(0.0, 0.5 * case.phase_s["forward"], "bound")
        if saving is None:
            continue
        yield Finding(f"hooks accumulate on {model['name']}: the loop registers more and removes none",
                      "register each hook once, before the loop, or remove it: handle.remove()", saving,
                      (f"{first} hooks at its first call, {last} at the end",), "medium", phase="forward",
                      layer=model["name"], setting="hooks")
