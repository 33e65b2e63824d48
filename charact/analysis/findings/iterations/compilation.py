"""torch.compile compiles again and again, or breaks the graph."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if compilation takes much of the program."""
    facts = case.settings.get("compile") or {}
    spent_s = float(case.iterations["compile_s"].fillna(0.0).sum())
    recompiled = facts.get("num_recompilations") or 0
    breaks = facts.get("num_graph_breaks") or 0
    low = recompiled / max(recompiled + (facts.get("num_graphs") or 1), 1)
    saving = case.saving_in_all(0.5 * low * spent_s, spent_s)
    if saving is None:
        return
    evidence = [f"compilation takes {quantity(spent_s, 's')}; {facts.get('num_graphs') or 0} graphs, {breaks} graph "
                f"breaks, {recompiled} recompilations", *(facts.get("reasons") or [])[:2]]
    remedy = "torch.compile(dynamic=True), or inputs of few fixed shapes" if recompiled else (
        "remove what breaks the graph, or compile only the inner model" if breaks else
        "compile only where the program runs long enough, and keep Inductor's cache (TORCHINDUCTOR_CACHE_DIR)")
    again = ", since it compiles again" if recompiled else ""
    yield Finding(f"torch.compile takes much of the program's time{again}", remedy, saving, tuple(evidence),
                  "high" if recompiled else "medium", setting="torch.compile", covers=frozenset({"new_input_shapes"}))
