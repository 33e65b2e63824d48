"""Figures of basic operations: rates below the ceilings, time by problem, sparse against dense."""

from collections.abc import Iterable

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from charact.views.html.elements.drawing import (
    FAINT,
    INK,
    bar_figure,
    draw_svg,
    label_above,
    plain_axes,
    remove_frame,
    rows_of,
    show_points_on_hover,
    unit_axis,
)
from charact.views.html.elements.roofline import Roof, extent, roofline_figure
from charact.views.tables import format as fmt
from charact.views.tables import palette

_HEIGHT_PX = 330


def rates(title: str, times: pd.DataFrame, roof: Roof | None) -> list[Markup]:
    """Draw achieved rates of problems with FLOP: by arithmetic intensity if there is a roofline, and by FLOP."""
    points = times.dropna(subset=["flop_per_byte", "flop_per_s"])
    if points.empty:
        return []
    by_intensity = [] if roof is None else [
        roofline_figure(f"{title} below the roofline", points, "operation", palette.operation, roof,
                        extent(points, roof))]  # fmt: skip

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        peaks = [] if roof is None else [roof.peak_flop_per_s]
        ax.set(xscale="log", yscale="log", xlabel="FLOP of a call", ylabel="achieved (FLOP/s)",
               xlim=_edges(points["flop"]), ylim=_edges([*points["flop_per_s"], *peaks]))  # fmt: skip
        for name, rows in points.groupby("operation", sort=False):
            ax.plot(rows["flop"], rows["flop_per_s"], "o", color=palette.operation(str(name)), markersize=8,
                    markeredgecolor="white", markeredgewidth=0.8)  # fmt: skip
            show_points_on_hover(ax, [
                (row.flop, row.flop_per_s, f"{row.problem}: {fmt.flop_rate(row.flop_per_s)}, {fmt.num_flop(row.flop)}")
                for row in fmt.rows(rows)])  # fmt: skip
        for peak in peaks:
            ax.axhline(peak, color=INK, linewidth=1.6)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(mpl.ticker.LogLocator(numticks=6))
            axis.set_minor_locator(mpl.ticker.NullLocator())
            axis.set_major_formatter(
                mpl.ticker.FuncFormatter(lambda value, _: fmt.num_flop(value).removesuffix("FLOP").strip()))
        plain_axes(ax)

    return [*by_intensity, draw_svg(f"{title} by size", _HEIGHT_PX, draw)]


def _edges(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis around values: at least two decades, to contain a few ticks."""
    known = list(values)
    high = 2 * max(known)
    return min(min(known) / 2, high / 100), high


def by_problem(title: str, times: pd.DataFrame) -> list[Markup]:
    """Draw the time of each problem by direction, and the rate of each direction."""
    rows = rows_of(times, "label", "direction", "median_s")
    flop = times["flop_per_s"].notna().any()
    column, unit = ("flop_per_s", "FLOP/s") if flop else ("bytes_per_s", "B/s")

    def draw_rates(figure: Figure) -> None:
        ax = figure.subplots()
        for position, (label, _) in enumerate(rows):
            of_problem = times[times["label"] == label]
            ax.plot([0, of_problem[column].max()], [position, position], color="#E8ECF0", linewidth=2, zorder=1)
            for row in fmt.rows(of_problem):
                ax.plot([getattr(row, column)], [position], "o", color=palette.DIRECTIONS[row.direction], markersize=8,
                        markeredgecolor="white", markeredgewidth=0.8)  # fmt: skip
                rate = getattr(row, column)
                if rate == rate:
                    text = f"{label}, {fmt.DIRECTIONS[row.direction]}: {fmt.quantity(unit)(rate)}"
                    show_points_on_hover(ax, [(rate, position, text)])
        ax.set(xlim=(0, float(times[column].max()) * 1.06 or 1), ylim=(len(rows) - 0.5, -0.65))
        ax.grid(visible=False, axis="y")
        label_above(ax, rows)
        unit_axis(ax, ax.get_xlim()[1], unit, "achieved")
        remove_frame(ax)

    return [bar_figure(f"{title}: time by problem", rows, palette.DIRECTIONS.__getitem__, "time", row_px=44),
            draw_svg(f"{title}: rate by problem", 60 + 44 * len(rows), draw_rates)]


def sparse_against_dense(title: str, speeds: pd.DataFrame, crossovers: pd.DataFrame) -> Markup:
    """Draw time of sparse products of one size over the dense one's by density, a line per layout.

    Thin lines show the range of a ratio; crossovers are drawn with their ranges.
    """

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.set(xscale="log", yscale="log", xlabel="density (share of numbers that are not zero)",
               ylabel="time, sparse / dense", xlim=_edges(speeds["density_frac"]),
               ylim=_edges([1.0, *speeds["ratio"]]))  # fmt: skip
        for layout, rows in speeds.groupby("layout", sort=False):
            ax.plot(rows["density_frac"], rows["ratio"], "o-", color=palette.LAYOUTS[str(layout)], linewidth=1.3,
                    markersize=4)  # fmt: skip
            ax.vlines(rows["density_frac"], rows["low"], rows["high"], color=palette.LAYOUTS[str(layout)],
                      linewidth=1)  # fmt: skip
            show_points_on_hover(ax, [
                (row.density_frac, row.ratio,
                 f"{layout} at {fmt.share(row.density_frac)}: {fmt.ratio(row.ratio)} the dense product’s time")
                for row in fmt.rows(rows)])  # fmt: skip
        ax.axhline(1, color=INK, linewidth=1.4)
        ax.set_title(speeds["size"].iloc[0], fontsize=11, loc="left", color=FAINT)
        for row in fmt.rows(crossovers):
            ax.plot([row.from_density_frac, row.to_density_frac], [1, 1], color=INK, linewidth=6, alpha=0.25)
            ax.plot([row.crossover_density_frac], [1], "D", color=INK, markersize=6, markeredgecolor="white")
        ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        ax.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"× {value:g}"))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_locator(mpl.ticker.NullLocator())
        plain_axes(ax)

    return draw_svg(title, _HEIGHT_PX, draw)
