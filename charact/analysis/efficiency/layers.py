"""Time, work and parameters of each layer."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.analysis.efficiency.roofline import roofline
from charact.analysis.profile.breakdown import operator_times
from charact.record.reader import Run

_COLUMNS = [
    "case", "layer", "layer_type", "num_parameters", "forward_s", "backward_s", "time_s", "share_frac", "flop",
    "flop_per_s",
]  # fmt: skip


@memoize
def layer_times(run: Run) -> pd.DataFrame:
    """Return the time of layers that ran operators, longest first in a case: columns of `top_layers` up to share_frac.

    Columns: case; layer; forward_s, backward_s and time_s; share_frac.
    """
    rows = operator_times(run)
    case_s = rows.groupby("case")["time_s"].sum()
    for phase in ("forward", "backward"):
        rows[f"{phase}_s"] = rows["time_s"].where(rows["phase"] == phase)
    groups = rows.dropna(subset=["layer"]).groupby(["case", "layer"], sort=False, as_index=False)
    times = groups[["forward_s", "backward_s", "time_s"]].sum(min_count=1)
    times["share_frac"] = times["time_s"] / times["case"].map(case_s).astype(float)
    return in_order(times.sort_values("time_s", ascending=False, kind="stable"), run, "case")


def top_layers(run: Run) -> pd.DataFrame:
    """Return layers that ran operators or have counted FLOP, by time; longest first in a case.

    Columns: case; layer; layer_type; num_parameters of its own; forward_s and backward_s per iteration as measured
    under the profiler (backward operators belong to the layer of their forward operator); time_s over all phases;
    share_frac of the operator time of the case's iteration, including operators outside layers; flop per iteration over
    all phases; flop_per_s = flop / time_s.
    """
    keys = ["case", "layer"]
    work = roofline(run, "layer")[[*keys, "flop"]]
    parts = [layer_times(run).set_index(keys), work.set_index(keys)]
    layers = pd.concat(parts, axis="columns").join(run.layers.set_index(keys)).reset_index()
    layers["flop_per_s"] = layers["flop"] / layers["time_s"].where(layers["time_s"] > 0)
    layers = layers.sort_values(["time_s", "flop"], ascending=False, kind="stable")
    return in_order(layers, run, "case")[_COLUMNS]
