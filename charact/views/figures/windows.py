"""Charts of a long program's windows: the time of an iteration by phase, and memory, over the program's time."""

from typing import Any

import pandas as pd

from charact.record.schema import PHASES
from charact.views.charts import DASHED, INK, SOLID, Area, Axis, Chart, Curve, Mark, Span
from charact.views.tables import format as fmt
from charact.views.tables import palette

NUM_COLUMNS = 160
"""Maximum number of columns: a column of many windows has their mean."""
_HEIGHT_PX, _WIDTH_PX = 250, 560
_OVER = 1.15
"""End of the axis of times over the longest 90 % quantile."""
_MOST_OVER = 2.5
"""End of that axis over the median of the means, at most: longer times end at the edge."""
_MEMORY = {"rss_bytes": "resident set", "allocated_bytes": "CUDA allocator"}


def times(title: str, rows: pd.DataFrame) -> Chart:
    """Return the mean time of an iteration by phase, stacked, with curves of its median and its 90 % quantile.

    Args:
        title: title of the chart.
        rows: rows of `thinned_windows` of one case.
    """
    phases = [name for name in PHASES if (rows[name] > 0).any()]
    edges = [*rows["start_s"], rows["end_s"].iloc[-1]]
    high = min(_OVER * float(max(rows["p90_s"].max(), rows["mean_s"].max())), _MOST_OVER * rows["mean_s"].median())
    tops = rows[phases].cumsum(axis="columns").clip(upper=high)
    marks: list[Mark] = [Area(edges, 0, [*tops[name], tops[name].iloc[-1]], palette.PHASES[name], steps="post")
                         for name in reversed(phases)]  # each covers the lower part of the one behind it
    middles = (rows["start_s"] + rows["end_s"]) / 2
    curves = [Curve(middles, rows["median_s"].clip(upper=high), INK, SOLID, label="median"),
              Curve(middles, rows["p90_s"].clip(upper=high), INK, DASHED, label="90 % quantile")]
    marks += curves
    marks += [Span(start, end, text=_text(row, phases))
              for start, end, row in zip(edges[:-1], edges[1:], fmt.rows(rows), strict=True)]
    return Chart(title, Axis("time since the start", "s"), Axis("time of an iteration", "s", 0, high), marks,
                 _HEIGHT_PX, _WIDTH_PX, key=curves)


def _text(row: Any, phases: list[str]) -> str:
    lines = [f"{row.num_iterations:,} iterations from {fmt.duration(row.start_s)} on",
             f"median: {fmt.seconds(row.median_s)}", f"90 % quantile: {fmt.seconds(row.p90_s)}",
             f"longest: {fmt.seconds(row.max_s)}"]
    return "\n".join([*lines, *(f"{name}, mean: {fmt.seconds(getattr(row, name))}" for name in phases)])


def memory(title: str, rows: pd.DataFrame) -> Chart:
    """Return the memory at the end of each window, from the rows of `thinned_windows` of one case."""
    curves = [Curve(rows["end_s"], rows[column], color, label=text, texts=[
        f"{text} after {fmt.duration(at)}: {fmt.num_bytes(size)}" if pd.notna(size) else ""
        for at, size in zip(rows["end_s"], rows[column], strict=True)])
        for (column, text), color in zip(_MEMORY.items(), palette.CASES, strict=False) if rows[column].notna().any()]
    return Chart(title, Axis("time since the start", "s"), Axis("memory", "B", low=0), curves, _HEIGHT_PX, _WIDTH_PX,
                 key=curves)
