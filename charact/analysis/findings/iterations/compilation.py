"""torch.compile recompiles, or breaks the graph."""

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
    repeated_frac = recompiled / max(recompiled + (facts.get("num_graphs") or 1), 1)
    saving = case.saving_in_all(0.5 * repeated_frac * spent_s, spent_s)
    if saving is None:
        return
    evidence = [f"compilation takes {quantity(spent_s, 's')}; {facts.get('num_graphs') or 0} graphs, {breaks} graph "
                f"breaks, {recompiled} recompilations", *(facts.get("reasons") or [])[:2]]
    remedy = "call torch.compile(model, dynamic=True), or pad inputs to few fixed shapes" if recompiled else (
        "remove the calls that break the graph (TORCH_LOGS=graph_breaks lists them), or compile only the inner model"
        if breaks else
        "do not compile in short programs, or keep Inductor's cache between them (TORCHINDUCTOR_CACHE_DIR)")
    again = ": it recompiles" if recompiled else ""
    yield Finding(f"torch.compile takes much of the program's time{again}", remedy, saving, tuple(evidence),
                  "high" if recompiled else "medium", setting="torch.compile", covers=frozenset({"new_input_shapes"}))
