"""Charts of counters: the five metrics against their ideal, samples over time, and energy."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd

from charact.analysis.efficiency.counters import thinned
from charact.views.charts import (
    DASHED,
    FAINT,
    INK,
    TRACK,
    Area,
    Axis,
    Bar,
    Chart,
    Curve,
    Mark,
    Note,
    Rule,
    ink_on,
    percent,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.counter_text import counter_name, counter_value

_PAST_IDEAL = 1.15
"""End of the axis if a value exceeds its ideal, as a share of the ideal."""
_BAR_PX, _NARROW_BAR_PX, _HEADING_PX, _GAP_PX = 19, 15, 21, 9
_NARROW_FROM = 5
"""Number of bars of a metric from which they are narrow."""
_INSIDE_FROM_FRAC = 0.5
_PANEL_PX, _PANEL_FRAC = 52, 0.6
MAX_DRAWN = 300
"""Maximum number of drawn samples of a counter; means of successive samples replace more."""
_MAX_HOVERED = 60
"""Maximum number of points of a counter whose value is shown on hover."""


def five(used: pd.DataFrame, colors: Mapping[str, str]) -> Chart:
    """Return the five metrics of each case as shares of their ideal: a bar per case below each metric's name.

    Rows are those of `utilization`; a metric without values is one empty line with `n/a`.
    """
    groups = {str(metric): rows if rows["value"].notna().any() else rows.head(1)
              for metric, rows in used.groupby("metric", sort=False)}
    bar_px = _BAR_PX if max(map(len, groups.values())) < _NARROW_FROM else _NARROW_BAR_PX
    marks: list[Mark] = []
    at_px = 0.0
    for metric, rows in groups.items():
        origins = rows.dropna(subset=["source"])[["source", "method"]].drop_duplicates()
        name, baseline = counter_name(metric), at_px + _HEADING_PX - 5
        marks.append(Note(0, baseline, f"{name[0].upper()}{name[1:]}", along="baseline"))
        if len(origins) == 1:
            origin = ", ".join(str(part) for part in origins.iloc[0] if pd.notna(part))
            marks.append(Note(0.985, baseline, origin, "right", "baseline", 10.5, FAINT, of_width=True))
        at_px += _HEADING_PX
        for row in fmt.rows(rows):
            marks += _bar(at_px + bar_px / 2, bar_px - 3, row, colors[row.case])
            at_px += bar_px
        at_px += _GAP_PX
    high = _PAST_IDEAL if (used["value_frac"] > 1).any() else 1.002
    return Chart("Device utilization against the ideal",
                 Axis("share of the ideal", low=0, high=high, ticks=(0, 0.25, 0.5, 0.75, 1), text=percent),
                 Axis(low=at_px - _GAP_PX, high=-2, ticks=()), [*marks, Rule(1, FAINT, DASHED, 0.9, "x")],
                 46 - _GAP_PX + at_px)


def _bar(y: float, height: float, row: Any, color: str) -> list[Mark]:
    """Return a case's bar on the track up to its ideal, with its value as text."""
    shown, is_known = counter_value(row.metric, row.value), pd.notna(row.value_frac)
    if is_known and not row.metric.endswith("_frac"):
        shown += f", {fmt.share(row.value_frac)}"
    elif not is_known and pd.notna(row.value):
        shown += ", its ideal n/a"
    length = min(row.value_frac, _PAST_IDEAL) if is_known else 0.0
    inside = length >= _INSIDE_FROM_FRAC
    ink = FAINT if pd.isna(row.value) else ink_on(color) if inside else INK
    return [Bar(y, 0, 1, height, TRACK, text=f"{row.case}\n{counter_name(row.metric)}: {shown}"),
            Bar(y, 0, length, height, color),
            Note(length, y, shown, "right" if inside else "left", "center_baseline", 10.5, ink,
                 (-4 if inside else 4, 0))]


def timeline(source: str, device: str, samples: pd.DataFrame, spans: pd.DataFrame, end_s: float) -> Chart:
    """Return samples of one source on one device: a panel per counter over a common time axis, phases behind them.

    A panel reaches from 0 to the counter's largest value, for shares to 100 %. A sample covers the time since the
    previous one.
    """
    groups = list(samples.groupby("counter", sort=False))
    marks: list[Mark] = []
    for phase, rows in spans.groupby("phase", sort=False):
        # One area per phase, since there may be hundreds of spans: its height is 0 between them.
        x = rows[["start_s", "start_s", "end_s", "end_s"]].to_numpy().ravel()
        heights = [height for _, height in zip(x, cycle([0, len(groups), len(groups), 0]), strict=False)]
        marks.append(Area(x, 0, heights, palette.PHASES[str(phase)], 0.25))
    for base, (counter, rows) in enumerate(groups, 1):
        marks += _panel(base, str(counter), rows)
    return Chart(f"Samples of {source} on {device}",
                 Axis(f"{source} on {device}: time since the pass began", "s", 0, end_s),
                 Axis(low=len(groups), high=-0.02, ticks=()), marks, 44 + _PANEL_PX * len(groups))


def _panel(base: int, counter: str, rows: pd.DataFrame) -> list[Mark]:
    """Return a counter's samples above `base`, with its name and range of values."""
    low, high = rows["value"].min(), rows["value"].max()
    top = (1.0 if counter.endswith("_frac") and high <= 1 else high) or 1.0
    drawn, named = thinned(rows, MAX_DRAWN), thinned(rows, _MAX_HOVERED)
    values = np.array([drawn["value"].iloc[0], *drawn["value"]])
    texts = [f"{counter_name(counter)} at {fmt.seconds(row.time_s)}: {counter_value(counter, row.value)}"
             for row in fmt.rows(named)]
    ends = list(dict.fromkeys(counter_value(counter, value) for value in (low, high)))
    heading_at = base - _PANEL_FRAC - 0.07
    return [Rule(base, FAINT, width=0.6),
            Curve([0.0, *drawn["time_s"]], base - _PANEL_FRAC * values / top, width=1.2, steps="pre"),
            Curve(named["time_s"], base - _PANEL_FRAC * named["value"] / top, style="", texts=texts),
            Note(0.008, heading_at, counter_name(counter), size=10.5, of_width=True),
            Note(0.992, heading_at, " to ".join(ends), "right", size=10.5, of_width=True)]
