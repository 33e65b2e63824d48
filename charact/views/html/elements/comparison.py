"""Figures of a comparison: ratios with their intervals, and the phases of each group."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from charact.views.html.elements.drawing import FAINT, bars, draw_svg, label_above, rows_of, unit_axis
from charact.views.tables import format as fmt
from charact.views.tables import palette

_ROW_PX = 24


def side_colors(sides: Sequence[str]) -> dict[str, str]:
    """Return a color for each group, by its label."""
    return {side: palette.CASES[number % len(palette.CASES)] for number, side in enumerate(sides)}


def ratio_intervals(ratios: pd.DataFrame, colors: dict[str, str]) -> Markup:
    """Draw each case's ratio of times, a point per group with its interval, against the baseline at 1.

    The axis is logarithmic: twice as long and half as long are equally far from 1. The line at 1 is drawn next to the
    points only, so that it does not cross names.
    """
    rows = ratios[ratios["ratio"].notna()]
    cases = list(rows["case"].unique())
    num_sides = rows["side"].nunique()
    step = _ROW_PX * num_sides + 26

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.text(1, -_ROW_PX, "baseline", ha="center", va="bottom", fontsize=10, color=FAINT)
        for position, case in enumerate(cases):
            ax.text(0, position * step - 2, case, ha="left", va="bottom", fontsize=11, transform=_across(ax))
            ax.plot([1, 1], [position * step + 3, position * step + 18 + num_sides * _ROW_PX - 14], color=FAINT,
                    linewidth=1)  # fmt: skip
            for number, row in enumerate(fmt.rows(rows[rows["case"] == case])):
                _point(ax, row, position * step + 14 + number * _ROW_PX, colors[row.side])
        ax.set_yticks([])
        ax.set_ylim(len(cases) * step, -2 * _ROW_PX)
        _log_axis(ax, rows)
        ax.set_xlabel("time / baseline’s time")
        sns.despine(ax=ax, left=True, bottom=True)

    return draw_svg("Ratios of times to the baseline", 94 + step * len(cases), draw)


def _across(ax: Axes) -> Any:
    """Return a transform: horizontally a share of the axes, vertically data."""
    return mpl.transforms.blended_transform_factory(ax.transAxes, ax.transData)


def _point(ax: Axes, row: Any, height: float, color: str) -> None:
    if not math.isnan(row.low):
        ax.plot([row.low, row.high], [height, height], color=color, linewidth=3, alpha=0.55, solid_capstyle="round")
    ax.plot([row.ratio], [height], marker="o", markersize=7, color=color)
    ax.annotate(f"{row.ratio:.3g}", (row.ratio, height), xytext=(0, -7), textcoords="offset points", ha="center",
                va="top", fontsize=9.5, color=FAINT)  # fmt: skip


def _log_axis(ax: Axes, rows: pd.DataFrame) -> None:
    """Set a logarithmic axis that contains all points and 1, with ticks at plain numbers."""
    ends = [1.0, *rows["ratio"], *rows["low"].dropna(), *rows["high"].dropna()]
    margin = max((max(ends) / min(ends)) ** 0.08, 1.02)
    ax.set_xscale("log")
    ax.set_xlim(min(ends) / margin, max(ends) * margin)
    spread = max(ends) / min(ends)
    subs = (1, 2, 5) if spread < 100 else (1,)
    ax.xaxis.set_major_locator(mpl.ticker.LogLocator(10, subs) if spread > 8 else mpl.ticker.MaxNLocator(6))
    ax.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))


def side_phases(times: pd.DataFrame) -> Markup:
    """Draw the iteration time of one case by phase, a bar per group. Columns: side, phase, time_s."""
    rows = rows_of(times, "side", "phase", "time_s")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.PHASES.__getitem__)
        label_above(ax, rows)
        unit_axis(ax, ax.get_xlim()[1], "s", "time of an iteration")

    return draw_svg("Time of an iteration by phase of each group", 60 + 52 * len(rows), draw)
