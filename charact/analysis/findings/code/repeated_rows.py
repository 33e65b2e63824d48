"""A layer computes the same rows several times."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import share

_MUCH_FRAC = 0.3
"""Minimum share of a layer's input rows that repeat earlier ones."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the layer that loses the most time with repeated rows of its inputs."""
    rows = case.operators
    found = []
    for facts in case.inspection.get("repeated_rows") or []:
        repeated_frac = facts["num_repeated"] / facts["num_rows"]
        layer = rows["layer"].fillna("")
        is_inside = (layer == facts["layer"]) | layer.str.startswith(f"{facts['layer']}.")
        if repeated_frac > _MUCH_FRAC:
            layer_s = float(rows.loc[is_inside, "time_s"].sum()) if is_inside.any() else case.phase_s["forward"]
            found.append((repeated_frac * layer_s, repeated_frac, facts))
    if not found:
        return
    spent_s, repeated_frac, facts = max(found, key=lambda one: one[0])
    saving = case.saving(0.5 * spent_s, spent_s)
    if saving is None:
        return
    yield Finding(
        f"the layer {facts['layer']} computes the same rows several times",
        f"call {facts['layer']} once for the different rows, and repeat its output: "
        "output.repeat_interleave(n, 0) or output.expand(...)", saving,
        (f"{share(repeated_frac)} of the {facts['num_rows']:,} rows of its inputs in one iteration repeat an earlier "
         "row, and it has no dropout now",), "medium", phase="forward", layer=facts["layer"])
