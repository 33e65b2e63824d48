"""Figures of counters: the five metrics against their ideal, samples over time, and energy."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from charact.analysis.efficiency.counters import thinned
from charact.views.html.elements.drawing import (
    FAINT,
    INK,
    bars,
    draw_svg,
    ink_on,
    label_above,
    remove_frame,
    show_on_hover,
    show_points_on_hover,
    unit_axis,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.counter_text import counter_name, counter_value

_TRACK = "#E8ECF0"
_PAST_IDEAL = 1.15
"""End of the axis if a value exceeds its ideal, as a share of the ideal."""
_BAR_PX, _NARROW_BAR_PX, _HEADING_PX, _GAP_PX = 19, 15, 21, 9
_NARROW_FROM = 5
"""Number of bars of a metric from which they are narrow."""
_INSIDE_FROM_FRAC, _ORIGIN_AT, _MARGIN = 0.5, 0.985, 0.012
_BAND_ALPHA = 0.25
_PANEL_PX, _PANEL_FRAC = 52, 0.6
MAX_DRAWN = 300
"""Maximum number of drawn samples of a counter; means of successive samples replace more."""
_MAX_HOVERED = 60
"""Maximum number of points of a counter whose value is shown on hover."""


def five(used: pd.DataFrame, colors: Mapping[str, str]) -> Markup:
    """Draw the five metrics of each case as shares of their ideal: a bar per case below each metric's name.

    Rows are those of `utilization`; a metric without values is one empty line with `n/a`.
    """
    groups = [(str(metric), rows) for metric, rows in used.groupby("metric", sort=False)]
    past = bool((used["value_frac"] > 1).any())
    bar_px = _BAR_PX if max(len(rows) for _, rows in groups) < _NARROW_FROM else _NARROW_BAR_PX

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        at_px = 0.0
        for metric, rows in groups:
            _heading(ax, at_px, metric, rows)
            at_px += _HEADING_PX
            for row in fmt.rows(_shown(rows)):
                _bar(ax, at_px, bar_px, row, colors[row.case])
                at_px += bar_px
            at_px += _GAP_PX
        ax.axvline(1, color=FAINT, linewidth=0.9, linestyle=(0, (3, 2)))
        ax.set(xlim=(0, _PAST_IDEAL if past else 1.002), ylim=(at_px - _GAP_PX, -2), xlabel="share of the ideal")
        ax.set_yticks([])
        ax.xaxis.set_major_locator(mpl.ticker.MultipleLocator(0.25))
        ax.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, symbol=" %"))
        ax.grid(visible=False)
        remove_frame(ax)

    num_bars = sum(len(_shown(rows)) for _, rows in groups)
    height_px = 46 + num_bars * bar_px + len(groups) * (_HEADING_PX + _GAP_PX)
    return draw_svg("Device utilization against the ideal", height_px, draw)


def _shown(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a metric; only one if no case has a value."""
    return rows if rows["value"].notna().any() else rows.head(1)


def _heading(ax: Axes, at_px: float, metric: str, rows: pd.DataFrame) -> None:
    """Write a metric's name, and its source if that is the same for all cases."""
    known = rows.dropna(subset=["source"])[["source", "method"]].drop_duplicates()
    one = known.iloc[0] if len(known) == 1 else None
    origin = "" if one is None else ", ".join(str(part) for part in one if pd.notna(part))
    name = counter_name(metric)
    baseline = at_px + _HEADING_PX - 5
    ax.text(0, baseline, f"{name[0].upper()}{name[1:]}", ha="left", va="baseline", fontsize=11.5)
    ax.text(_ORIGIN_AT, baseline, origin, ha="right", va="baseline", fontsize=10.5, color=FAINT)


def _bar(ax: Axes, at_px: float, bar_px: float, row: Any, color: str) -> None:
    """Draw a case's bar on the track up to its ideal, with its value as text."""
    middle, height = at_px + bar_px / 2, bar_px - 3
    ax.barh(middle, 1, height=height, color=_TRACK, linewidth=0)
    words = counter_value(row.metric, row.value)
    width, inside = 0.0, False
    if pd.isna(row.value_frac):
        words = words if pd.isna(row.value) else f"{words}, its ideal n/a"
    else:
        words = words if row.metric.endswith("_frac") else f"{words}, {fmt.share(row.value_frac)}"
        width = min(row.value_frac, _PAST_IDEAL)
        inside = width >= _INSIDE_FROM_FRAC
        ax.barh(middle, width, height=height, color=color, linewidth=0)
    show_on_hover(ax.patches[-1:], f"{row.case}\n{counter_name(row.metric)}: {words}")
    ax.text(width + (-_MARGIN if inside else _MARGIN), middle, words, ha="right" if inside else "left",
            va="center_baseline", fontsize=10.5 if bar_px == _BAR_PX else 10,
            color=FAINT if pd.isna(row.value) else ink_on(color) if inside else INK)  # fmt: skip


def timeline(source: str, device: str, samples: pd.DataFrame, spans: pd.DataFrame, end_s: float) -> Markup:
    """Draw samples of one source on one device: a panel per counter over a common time axis, phases behind them.

    A panel reaches from 0 to the counter's largest value, for shares to 100 %. A sample covers the time since the
    previous one.
    """
    groups = [(str(counter), rows) for counter, rows in samples.groupby("counter", sort=False)]

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        _bands(ax, spans, len(groups))
        for number, (counter, rows) in enumerate(groups):
            _panel(ax, number + 1, counter, rows)
        ax.set(xlim=(0, end_s), ylim=(len(groups), -0.02))
        ax.set_yticks([])
        ax.grid(visible=False)
        unit_axis(ax, end_s, "s", f"{source} on {device}: time since the pass began")
        remove_frame(ax)

    return draw_svg(f"Samples of {source} on {device}", 44 + _PANEL_PX * len(groups), draw)


def _bands(ax: Axes, spans: pd.DataFrame, depth: int) -> None:
    """Draw a band for each span of a phase, over all panels; one path per phase, since there may be hundreds."""
    for phase, rows in spans.groupby("phase", sort=False):
        corners = np.array([[(start, 0), (start, depth), (end, depth), (end, 0), (start, 0)]
                            for start, end in zip(rows["start_s"], rows["end_s"], strict=True)])  # fmt: skip
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(rows)
        ax.add_patch(PathPatch(Path(corners.reshape(-1, 2), codes), facecolor=palette.PHASES[str(phase)],
                               alpha=_BAND_ALPHA, linewidth=0, zorder=0))  # fmt: skip


def _panel(ax: Axes, base: float, counter: str, rows: pd.DataFrame) -> None:
    """Draw a counter's samples above `base`, with its name and range of values."""
    top = 1.0 if counter.endswith("_frac") and rows["value"].max() <= 1 else rows["value"].max()
    drawn = thinned(rows, MAX_DRAWN)
    times = [0.0, *drawn["time_s"]]
    heights = np.array([drawn["value"].iloc[0], *drawn["value"]]) / (top or 1.0)
    ax.plot(times, base - _PANEL_FRAC * heights, drawstyle="steps-pre", color=INK, linewidth=1.2)
    ax.axhline(base, color=FAINT, linewidth=0.6)
    shown = thinned(rows, _MAX_HOVERED)
    show_points_on_hover(ax, [
        (row.time_s, base - _PANEL_FRAC * row.value / (top or 1.0),
         f"{counter_name(counter)} at {fmt.seconds(row.time_s)}: {counter_value(counter, row.value)}")
        for row in fmt.rows(shown)])  # fmt: skip
    low, high = (counter_value(counter, value) for value in (rows["value"].min(), rows["value"].max()))
    across, heading_at = ax.get_yaxis_transform(), base - _PANEL_FRAC - 0.07
    for at, side, text in ((0.008, "left", counter_name(counter)),
                           (0.992, "right", low if low == high else f"{low} to {high}")):  # fmt: skip
        ax.text(at, heading_at, text, ha=side, va="bottom", fontsize=10.5, transform=across)


def energies(title: str, label: str, rows: Sequence[tuple[str, float]], colors: Mapping[str, str]) -> Markup:
    """Draw the energy of each case, a bar per case."""
    stacked = [(case, [(case, energy_j)]) for case, energy_j in rows]

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, stacked, colors.__getitem__, "J")
        label_above(ax, stacked)
        unit_axis(ax, ax.get_xlim()[1], "J", label)

    return draw_svg(title, 60 + 48 * len(stacked), draw)
