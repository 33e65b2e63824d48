"""Time and FLOP of each layer by phase, and the layers of a model as nested intervals."""

from collections import defaultdict
from dataclasses import dataclass, field

import pandas as pd

from charact.analysis.common.row_order import in_order
from charact.analysis.profile.breakdown import operator_times, operator_types
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.record.reader import Run

_MAX_DEPTH = 20
"""Maximum number of nested layers; deeper names count as one layer."""


def layer_work(run: Run) -> pd.DataFrame:
    """Return time and FLOP of each layer's own operators by phase, layers in the order in which they ran.

    Columns: case; phase; layer, null for operators outside any; operator_type, the one with most of the time; time_s
    per iteration as measured under the profiler, null if not measured; flop per iteration, null if not counted.
    """
    keys = ["case", "phase", "layer"]
    times, counted = operator_times(run), run.flop
    rows = pd.concat([times[keys], counted[keys]]).drop_duplicates()
    for table, value in ((times, "time_s"), (counted, "flop")):
        sums = table.groupby(keys, sort=False, dropna=False, as_index=False)[[value]].sum(min_count=1)
        largest = table.sort_values(value, ascending=False, kind="stable").drop_duplicates(keys)
        largest = largest[[*keys, "operator_type"]].rename(columns={"operator_type": f"type_by_{value}"})
        rows = rows.merge(sums, on=keys, how="left").merge(largest, on=keys, how="left")
    rows["operator_type"] = rows["type_by_time_s"].fillna(rows["type_by_flop"])
    return in_order(rows, run, "case", "phase")[[*keys, "operator_type", "time_s", "flop"]]


def iteration_work(run: Run) -> pd.DataFrame:
    """Return `layer_work` and each phase's time outside operators: the phases then sum to the iteration.

    A case timed on a device has no such rows: its times are those of kernels.
    """
    work, types = layer_work(run), operator_types(run)
    outside = types[(types["operator_type"] == OUTSIDE_OPERATORS) & types["case"].isin(work["case"])]
    outside = outside[["case", "phase", "operator_type", "time_s"]].assign(layer=None, flop=float("nan"))
    return in_order(pd.concat([work, outside[list(work)]], ignore_index=True), run, "case", "phase")


@dataclass
class _Node:
    """A layer or group with the value of itself and all below it."""

    value: float = 0.0
    below: "dict[str, _Node]" = field(default_factory=lambda: defaultdict(_Node))


def nested(rows: pd.DataFrame, group: str, value: str, least_frac: float) -> tuple[pd.DataFrame, int]:
    """Return the intervals of an icicle graph, and how many were too narrow for it.

    A layer's interval contains those of its nested layers, from its start; the rest is of its own operators. All layers
    of a group are within the group's interval, and all groups within the first interval, which is the whole.

    The rows have values of one case, each of one group (such as the phase) and layer, null outside any; rows without a
    value are left out. An interval has at least `least_frac` of the whole.

    Columns: depth, 0 for the whole; group, null for the whole; layer, null for the whole and groups; start and length
    in the unit of the values. An interval is before those within it.
    """
    root = _Node()
    for key, layer, amount in zip(rows[group], rows["layer"], rows[value], strict=True):
        if not amount > 0:
            continue
        root.value += amount
        node = root.below[key]
        node.value += amount
        for part in layer.split(".", _MAX_DEPTH - 1) if isinstance(layer, str) else ():
            node = node.below[part]
            node.value += amount
    intervals: list[tuple[int, str | None, str | None, float, float]] = []
    num_narrow = 0

    def add(node: _Node, depth: int, key: str | None, layer: str | None, start: float) -> None:
        nonlocal num_narrow
        if node.value < least_frac * root.value:
            num_narrow += 1
            return
        intervals.append((depth, key, layer, start, node.value))
        for name, inner in node.below.items():
            path = None if key is None else name if layer is None else f"{layer}.{name}"
            add(inner, depth + 1, name if key is None else key, path, start)
            start += inner.value

    if root.value > 0:
        add(root, 0, None, None, 0.0)
    return pd.DataFrame(intervals, columns=["depth", "group", "layer", "start", "length"]), num_narrow
