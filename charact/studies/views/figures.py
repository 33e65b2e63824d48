"""Charts of the studies: published times and those here, and gains from a faster GPU against the host-bound share."""

from collections.abc import Mapping
from itertools import cycle

import pandas as pd

from charact.views.charts import FAINT, NOT_CONNECTED, Axis, Bar, Chart, Curve, Mark, percent
from charact.views.document import Legend
from charact.views.figures.bars import by_name
from charact.views.tables import format as fmt
from charact.views.tables import palette

_SECONDS = {"s": 1.0, "h": 3600.0}


def times(title: str, rows: pd.DataFrame, published: Mapping[str, str], label: str, unit: str
          ) -> tuple[list[Chart], Legend]:
    """Return a chart of published times, a chart of the times here if there are any, and the machines' colors.

    The first bar of each row of the frame has its name.

    Args:
        title: title of the charts.
        rows: rows with a name, the columns of published times, and modelled_s, the time here.
        published: names of the machines by the columns of their times.
        label: what takes the time.
        unit: s or h.
    """
    colors = dict(zip([*published.values(), _HERE], cycle(palette.CASES), strict=False))
    charts, legend = [], []
    for what, columns in (("published", published), (_HERE, {"modelled_s": _HERE})):
        long = pd.DataFrame([
            [row["name"], machine, row[column] / _SECONDS[unit],
             f"{row['name']}, {machine}: {fmt.duration(row[column])}"]
            for row in rows.to_dict("records") for column, machine in columns.items() if pd.notna(row[column])],
            columns=["group", "name", "value", "text"])
        if len(long):
            charts.append(grouped_bars(f"{title}, {what}", long, Axis(f"{label}, {what}", unit, low=0), colors))
            legend += [(name, colors[name]) for name in columns.values()]
    return charts, legend


def grouped_bars(title: str, rows: pd.DataFrame, axis: Axis, colors: Mapping[str, str]) -> Chart:
    """Return a chart of bars in groups, of which the first has the name of the group.

    Rows have group; name, which has a color; value; and text, shown while the pointer is on the bar. Rows of a group
    follow each other.
    """
    is_first = ~rows["group"].duplicated()
    bars = [Bar(y, 0, row.value, 0.66, colors[row.name], text=row.text) for y, row in enumerate(fmt.rows(rows))]
    return by_name(title, rows["group"].where(is_first, ""), axis, bars)


_HERE = "modelled here"
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
