"""Charts of the studies: what a training gains from a faster GPU against its host-bound share."""

from collections.abc import Mapping

import pandas as pd

from charact.views.charts import FAINT, NOT_CONNECTED, Axis, Chart, Curve, Mark, percent
from charact.views.tables import format as fmt

_MARKERS = ("o", "s", "D")


def gains(title: str, rows: pd.DataFrame, colors: Mapping[str, str]) -> Chart:
    """Return the published speedup of each training against its host-bound share here.

    Rows have workload, which has a color; data, which has a marker; host_frac; gain.
    """
    marks: list[Mark] = []
    markers = dict(zip(rows["data"].unique(), _MARKERS, strict=False))
    for row in fmt.rows(rows):
        text = f"{row.workload}, {row.data}: {fmt.ratio(row.gain)}, host-bound share {fmt.share(row.host_frac)}"
        marks.append(Curve([row.host_frac], [row.gain], colors[row.workload], NOT_CONNECTED, marker=markers[row.data],
                           size=8, edge="white", texts=[text]))
    low, high = float(rows["gain"].min()), float(rows["gain"].max())
    widest = float(rows["host_frac"].max())
    margin = 0.1 * (high - low) or 0.1
    return Chart(title, Axis("host-bound share of an iteration here", low=0, high=1.25 * widest or 1, text=percent),
                 Axis("published time, K80 / P100", low=low - margin, high=high + margin, text=fmt.number), marks,
                 key=[Curve([], [], FAINT, NOT_CONNECTED, marker=marker, label=data)
                      for data, marker in markers.items()])
