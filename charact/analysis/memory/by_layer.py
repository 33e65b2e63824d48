"""Memory at the peak by the layer that allocated it."""

from collections import defaultdict

import pandas as pd

from charact.analysis.common.row_order import in_order
from charact.analysis.memory.composition import memory_timeline
from charact.record.reader import Run


def memory_by_layer(run: Run) -> pd.DataFrame:
    """Return the bytes of each category at the measured peak by the layer in which they appeared.

    Growth of a category between two snapshots belongs to the layer that runs at the second one. What a category loses
    is taken from its latest growth, as a backward pass frees activations in reverse order. Columns: case; category;
    layer, null for what was held before the iteration or allocated outside any layer; bytes. The rows of a case sum to
    its peak. Cases without measured snapshots have no rows.

    *Error*: long timelines are thinned out when recorded, so that some growth counts for the next recorded layer.
    """
    rows = memory_timeline(run)
    rows = rows[rows["method"] == "measured"]
    parts: list[tuple[str, str, str | None, float]] = []
    for case, of_case in rows.groupby("case", sort=False):
        totals = of_case.groupby("moment")["bytes"].sum()
        until = of_case[of_case["moment"] <= totals.idxmax()]
        for category, held in until.groupby("category", sort=False):
            layers = [layer if isinstance(layer, str) else None for layer in held["layer"]]
            by_layer = _remaining(layers, held["bytes"].tolist())
            parts += [(str(case), str(category), layer, amount) for layer, amount in by_layer.items()]
    frame = pd.DataFrame(parts, columns=["case", "category", "layer", "bytes"])
    return in_order(frame.astype({"case": "str", "bytes": "float64"}), run, "case", "category")


def _remaining(layers: list[str | None], held: list[float]) -> dict[str | None, float]:
    stack: list[tuple[str | None, float]] = []
    before = 0.0
    for layer, amount in zip(layers, held, strict=True):
        growth = amount - before
        before = amount
        while growth < 0 and stack:
            latest, size = stack.pop()
            growth += size
            layer = latest
        if growth > 0:
            stack.append((layer, growth))
    remaining: dict[str | None, float] = defaultdict(float)
    for layer, size in stack:
        remaining[layer] += size
    return dict(remaining)
