"""A layer computes outputs that the loss does not use."""

from collections.abc import Iterator
from typing import Any

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import share

_MUCH_FRAC = 0.3
"""Minimum share of a layer's outputs that is not used."""
_LEAST_FRAC = 0.1
"""Minimum share of an iteration that they take: to select what is used has a cost, too."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a large share of layers' outputs has no gradient; it names the slowest one."""
    times: dict[Any, float] = case.operators.groupby("layer")["time_s"].sum().to_dict()
    layers = []
    for facts in case.inspection.get("unused_outputs") or []:
        unused_frac = 1 - facts["num_used_rows"] / facts["num_rows"]
        if unused_frac > _MUCH_FRAC and facts["layer"] in times:
            layers.append((unused_frac * times[facts["layer"]], unused_frac, facts))
    if not layers:
        return
    layers.sort(key=lambda one: -one[0])
    _, unused_frac, slowest = layers[0]
    layers_s = sum(unused_s for unused_s, _, _ in layers)
    loss_s = case.phase_s["loss"] + _backward_of_loss_s(case, slowest["num_rows"])
    most_s = layers_s + unused_frac * loss_s
    saving = case.saving(0.7 * layers_s, most_s)
    if saving is None or most_s < _LEAST_FRAC * case.iteration_s:
        return
    yield Finding(
        f"the layer {slowest['layer']} computes outputs that the loss does not use",
        f"select what the loss uses before the layer, such as hidden[labels != ignore_index] or hidden[:, -1]; compute "
        f"{slowest['layer']} and the loss for these only", saving,
        (f"{share(unused_frac)} of the {slowest['num_rows']:,} outputs of {slowest['layer']} in one iteration have no "
         "gradient",), "medium", phase="forward", layer=slowest["layer"])


def _backward_of_loss_s(case: WatchedCase, num_rows: int) -> float:
    """Return the time (s) of a backward's operators outside of layers that take a tensor with so many rows."""
    rows = case.operators
    rows = rows[(rows["phase"] == "backward") & rows["layer"].isna()]
    return float(rows.loc[rows["input_shapes"].fillna("").str.contains(f"[{num_rows},", regex=False), "time_s"].sum())
