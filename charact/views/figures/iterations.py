"""Charts of a case's iterations: the time of each by phase, in order, and the distribution of their times."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from charact.record.schema import PHASES
from charact.views.charts import (
    DOTTED,
    FAINT,
    INK,
    NOT_CONNECTED,
    Area,
    Axis,
    Chart,
    Curve,
    Mark,
    Note,
    Rule,
    Span,
    percent,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette

NUM_COLUMNS = 160
"""Maximum number of columns of a series: a column of many iterations shows their mean."""
_HEIGHT_PX = 250
_NUM_MARKED = 30
"""Maximum number of iterations that have a dot of their own in a distribution."""
_OVER = 1.15
"""End of the axis of times over the longest typical iteration."""
_MOST_OVER = 2.5
"""End of that axis over the median, at most: longer iterations are marked at the edge."""


def series(title: str, rows: pd.DataFrame) -> Chart:
    """Return the time of each iteration by phase, stacked; a mark in a phase's color names the cause of a slow one.

    Args:
        title: title of the chart.
        rows: rows of `thinned` of one case.
    """
    phases = [name for name in PHASES if (rows[name] > 0).any()]
    edges = [*rows["first"], rows["last"].iloc[-1] + 1]
    tops = rows[phases].cumsum(axis="columns")
    high = _end(rows)
    marks: list[Mark] = [Area(edges, 0, _closed(tops[name].clip(upper=high)), palette.PHASES[name], steps="post")
                         for name in reversed(phases)]  # each covers the lower part of the one behind it
    marks += _kinds(rows)
    for row in fmt.rows(rows[rows["slow_phase"].notna()]):
        beyond = row.slowest_s > high
        text = (f"iteration {row.slow_index:.0f}: {fmt.seconds(row.slowest_s)}, of which {row.slow_phase} "
                f"{fmt.seconds(row.extra_s)} longer than its median")
        marks.append(Curve([(row.first + row.last + 1) / 2], [min(row.slowest_s, high)], palette.PHASES[row.slow_phase],
                           NOT_CONNECTED, marker="^" if beyond else "v", size=8, edge=INK, texts=[text]))
    marks += [Span(start, end, text=_text(row, phases))
              for start, end, row in zip(edges[:-1], edges[1:], fmt.rows(rows), strict=True)]
    return Chart(title, Axis("iteration", None, edges[0], edges[-1], whole=True),
                 Axis("time of an iteration", "s", 0, high), marks, _HEIGHT_PX, 560)


def _closed(heights: "pd.Series[float]") -> list[float]:
    return [*heights, heights.iloc[-1]]


def _end(rows: pd.DataFrame) -> float:
    timed = rows[rows["kind"] == "timed"] if (rows["kind"] == "timed").any() else rows
    typical = timed.loc[timed["slow_phase"].isna(), "slowest_s"]
    longest = float(typical.max() if len(typical) else timed["slowest_s"].max())
    return _OVER * min(longest, _MOST_OVER * float(timed["wall_s"].median())) or 1.0


def _kinds(rows: pd.DataFrame) -> list[Mark]:
    """Return bands over the iterations that are not timed, with their kind."""
    changes = rows["kind"].ne(rows["kind"].shift()).cumsum()
    total = rows["last"].iloc[-1] + 1 - rows["first"].iloc[0]
    bands: list[Mark] = []
    for _, group in rows.groupby(changes):
        kind, first, end = group["kind"].iloc[0], group["first"].iloc[0], group["last"].iloc[-1] + 1
        if kind != "timed":
            bands.append(Span(first, end, "#FFFFFF", 0.55, FAINT, kind if end - first >= 0.1 * total else ""))
    return bands


def _text(row: Any, phases: list[str]) -> str:
    several = row.last > row.first
    place = f"iterations {row.first}–{row.last}: mean" if several else f"iteration {row.first}:"
    lines = [f"{place} {fmt.seconds(row.wall_s)}{'' if row.kind == 'timed' else f' ({row.kind})'}"]
    lines += [f"slowest: {fmt.seconds(row.slowest_s)}"] if several else []
    return "\n".join([*lines, *(f"{name}: {fmt.seconds(getattr(row, name))}" for name in phases if getattr(row, name))])


def distribution(title: str, points: pd.DataFrame, quantiles: Mapping[str, float]) -> Chart:
    """Return the share of iterations that took at most a time; a dotted line for each quantile.

    Times of more than 2.5 medians are beyond the axis, whose label has their share.

    Args:
        title: title of the chart.
        points: rows of `distribution`.
        quantiles: names and times (s) of quantiles, the median first.
    """
    times, median = points["time_s"], next(iter(quantiles.values()))
    end = min(float(times.max()), _MOST_OVER * median)
    inside = points[times <= end]
    texts = [f"{fmt.share(row.share_frac)} of iterations took at most {fmt.seconds(row.time_s)}"
             for row in fmt.rows(inside)]
    marks: list[Mark] = [Curve(inside["time_s"], inside["share_frac"], steps="post",
                               marker="o" if len(inside) <= _NUM_MARKED else "", size=3.5, texts=texts)]
    for height, (name, time_s) in zip((0.02, 0.12), quantiles.items(), strict=False):
        if time_s <= end:
            marks += [Rule(time_s, FAINT, DOTTED, axis="x"),
                      Note(time_s, height, f"{name} {fmt.seconds(time_s)}", "left", color=FAINT, offset=(4, 0),
                           boxed=True)]
    beyond_frac = 1 - float(inside["share_frac"].max())
    beyond = f", {fmt.share(beyond_frac)} are longer" if len(inside) < len(points) else ""
    margin = 0.08 * (end - float(times.min())) or 0.02 * end or 1.0
    return Chart(title, Axis(f"time of an iteration{beyond}", "s", max(0.0, float(times.min()) - margin), end + margin),
                 Axis("share of iterations", None, 0, 1.03, text=percent), marks, _HEIGHT_PX, 380)


NUM_SAMPLES = 220
"""Maximum number of samples of memory in a figure."""


def memory_over_run(rows: pd.DataFrame, names: Mapping[str, str]) -> Chart:
    """Return the memory of a program over its run, from the rows of `memory_over_run`; `names` are its columns."""
    curves = [Curve(rows["start_s"], rows[column], color, label=text, texts=[
        f"{text} after {fmt.duration(at)}: {fmt.num_bytes(size)}" if pd.notna(size) else ""
        for at, size in zip(rows["start_s"], rows[column], strict=True)])
        for (column, text), color in zip(names.items(), palette.CASES, strict=False) if rows[column].notna().any()]
    return Chart("Memory of the program over its run", Axis("time since the start", "s"), Axis("memory", "B", low=0),
                 curves, _HEIGHT_PX, 560, key=curves)
