"""The roofline figure: achieved rate against arithmetic intensity, below the measured ceilings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from charact.views.html.elements.drawing import FAINT, INK, draw_svg, plain_axes, show_points_on_hover
from charact.views.tables import format as fmt

_ROOM = 3.0  # margin between the outermost points and the edges, as a factor
_LEAST_RANGE = 300.0  # minimum range of each axis, to contain a few ticks
_HEIGHT_PX = 330


@dataclass(frozen=True)
class Roof:
    """The roofline of a case: best rate of its precision (FLOP/s), bandwidths of memory and caches (B/s)."""

    precision: str
    peak_flop_per_s: float
    bandwidths: Sequence[tuple[str, float]]
    """Bandwidths by level; the last is memory, which is the bound, and caches are drawn faintly."""


def extent(points: pd.DataFrame, roof: Roof) -> tuple[float, float, float, float]:
    """Return the edges of a figure that contains the points and the ridge: min and max of intensity and rate."""
    ridge = roof.peak_flop_per_s / roof.bandwidths[-1][1]
    return (*_edges([*points["flop_per_byte"], ridge]), *_edges([*points["flop_per_s"], roof.peak_flop_per_s]))


def _edges(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values) / _ROOM, max(values) * _ROOM
    return min(low, high / _LEAST_RANGE), high


def roofline_figure(title: str, points: pd.DataFrame, name: str, colors: Callable[[str], str], roof: Roof,
                    edges: tuple[float, float, float, float]) -> Markup:
    """Draw points of a case below its roofline.

    Args:
        title: title of the figure.
        points: rows of `roofline` that have both FLOP and bytes.
        name: column that names a point.
        colors: function from a name to a color.
        roof: roofline of the case.
        edges: result of `extent`.
    """
    left, right, bottom, top = edges

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
        _roofs(ax, roof, (left, right))
        for named, rows in points.groupby(name, sort=False):
            ax.plot(rows["flop_per_byte"], rows["flop_per_s"], "o", color=colors(str(named)), markersize=8,
                    markeredgecolor="white", markeredgewidth=0.8)  # fmt: skip
            show_points_on_hover(ax, [
                (row.flop_per_byte, row.flop_per_s,
                 f"{getattr(row, 'problem', named)}: {fmt.flop_rate(row.flop_per_s)} at "
                 f"{fmt.number(row.flop_per_byte)} FLOP/byte, "
                 f"{fmt.share(row.flop_per_s / _bound(roof, row.flop_per_byte))} of the roofline")
                for row in fmt.rows(rows)])  # fmt: skip
        _unit_ticks(ax.xaxis, "FLOP/byte")
        _unit_ticks(ax.yaxis, "FLOP/s")
        ax.set_xlabel("arithmetic intensity (FLOP/byte)")
        ax.set_ylabel("achieved (FLOP/s)")
        plain_axes(ax)

    return draw_svg(title, _HEIGHT_PX, draw)


def _bound(roof: Roof, flop_per_byte: float) -> float:
    """Return the roofline's rate (FLOP/s) at an arithmetic intensity."""
    return min(roof.peak_flop_per_s, roof.bandwidths[-1][1] * flop_per_byte)


def _roofs(ax: Axes, roof: Roof, edges: tuple[float, float]) -> None:
    intensities = np.geomspace(*edges, 200)
    for number, (level, bandwidth) in enumerate(roof.bandwidths):
        bounds = number == len(roof.bandwidths) - 1
        rates = np.minimum(roof.peak_flop_per_s, bandwidth * intensities)
        ax.plot(intensities, rates, color=INK if bounds else FAINT, linewidth=1.6 if bounds else 0.8,
                linestyle="-" if bounds else ":")  # fmt: skip
        if bounds:
            _label_slope(ax, f"{level} {fmt.byte_rate(bandwidth)}", bandwidth, edges[0])
    ax.annotate(f"{roof.precision} {fmt.flop_rate(roof.peak_flop_per_s)}", (edges[1], roof.peak_flop_per_s), (-4, 4),
                textcoords="offset points", ha="right", va="bottom", fontsize=11, color=FAINT)  # fmt: skip


def _label_slope(ax: Axes, text: str, bandwidth: float, left: float) -> None:
    start = max(left, ax.get_ylim()[0] / bandwidth) * 1.5
    ax.annotate(text, (start, bandwidth * start), (8, -2), textcoords="offset points", ha="left", va="top", fontsize=11,
                color=FAINT)  # fmt: skip


def _unit_ticks(axis: "mpl.axis.Axis", unit: str) -> None:
    axis.set_major_locator(mpl.ticker.LogLocator(numticks=6))
    axis.set_minor_locator(mpl.ticker.NullLocator())
    words = fmt.flop_rate if unit == "FLOP/s" else fmt.number
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: words(value).removesuffix("FLOP/s").strip()))
