"""Figures of a comparison: ratios with their intervals, and the phases of each group."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from charact.views.html.elements.drawing import (
    FAINT,
    INK,
    bar_figure,
    draw_svg,
    remove_frame,
    rows_of,
    shortened,
    show_on_hover,
    show_points_on_hover,
    unit_axis,
)
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
        remove_frame(ax)

    return draw_svg("Ratios of times to the baseline", 94 + step * len(cases), draw)


def _across(ax: Axes) -> Any:
    """Return a transform: horizontally a share of the axes, vertically data."""
    return mpl.transforms.blended_transform_factory(ax.transAxes, ax.transData)


def _point(ax: Axes, row: Any, height: float, color: str) -> None:
    if not math.isnan(row.low):
        ax.plot([row.low, row.high], [height, height], color=color, linewidth=3, alpha=0.55, solid_capstyle="round")
    ax.plot([row.ratio], [height], marker="o", markersize=7, color=color)
    between = "" if math.isnan(row.low) else f", between {row.low:.3g} and {row.high:.3g}"
    show_points_on_hover(ax, [(row.ratio, height, f"{row.side}: {row.ratio:.3g} times the baseline’s time{between}")])
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
    return bar_figure("Time of an iteration by phase of each group", rows_of(times, "side", "phase", "time_s"),
                      palette.PHASES.__getitem__, "time of an iteration")


_LONGEST_NAME = 48
_STEP_PX = 40
_BEHIND_TEXT: Any = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
"""Background box that keeps text readable over lines."""


def waterfall(title: str, steps: pd.DataFrame, labels: tuple[str, str]) -> Markup:
    """Draw steps from the baseline's time to the candidate's, named by `labels`; slower steps point to the right.

    The axis does not begin at 0: compare lengths of steps, not the two end lines.
    """
    ends_s = [steps["start_s"].iloc[0], steps["end_s"].iloc[-1]]
    places = [*steps["start_s"], *steps["end_s"]]
    room_s = 0.12 * (max(places) - min(places)) or 0.1 * max(places) or 1.0
    middle_s = (max(places) + min(places)) / 2
    count = len(steps)

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        for label, end_s, height in zip(labels, ends_s, (-1.25, count - 0.3), strict=True):
            ax.axvline(end_s, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
            name = shortened(label, _LONGEST_NAME)
            ax.text(end_s, height, f" {name}: {fmt.seconds(end_s)} ", va="center", fontsize=11, color=FAINT,
                    ha="left" if end_s < middle_s else "right")
        for position, row in enumerate(fmt.rows(steps)):
            color = palette.SLOWER if row.delta_s > 0 else palette.FASTER
            drawn = ax.barh(position, row.delta_s, left=row.start_s, height=0.36, color=color, linewidth=0)
            show_on_hover(drawn, f"{row.name}: {fmt.change(row.delta_s)}")
            ax.plot([row.end_s, row.end_s], [position, min(position + 1, count - 0.7)], color=color, linewidth=1)
            name = shortened(row.name, _LONGEST_NAME)
            ax.text(0, position - 0.28, f"{name}  {fmt.change(row.delta_s)}", ha="left", va="bottom", fontsize=11,
                    color=INK, transform=_across(ax), bbox=_BEHIND_TEXT)
        ax.set_yticks([])
        ax.set_ylim(count + 0.1, -1.6)
        ax.set_xlim(min(places) - room_s, max(places) + room_s)
        ax.grid(visible=False, axis="y")
        unit_axis(ax, max(places), "s", "median iteration")
        remove_frame(ax)

    return draw_svg(title, 60 + _STEP_PX * (count + 1), draw)
