"""Figures of constructed models: against measured latencies, normalized, and by layer type."""

from collections.abc import Callable

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from charact.bricks.analysis.tables import BAND_FRAC
from charact.views.html.elements.bars import by_name, short_names
from charact.views.html.elements.drawing import (
    FAINT,
    INK,
    draw_svg,
    part_text,
    plain_axes,
    rows_of,
    show_on_hover,
    show_points_on_hover,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette

_LONGEST = 26
"""Maximum number of characters of a name next to a point."""
_NUM_NAMED = 6
_APART = 1.15
"""Minimum distance of two names, as a factor, so that they do not overlap."""
_BAND = "#E8ECF0"


def against_measured(rows: pd.DataFrame, colors: dict[str, str]) -> Markup:
    """Draw constructed against measured latency, both logarithmic, with the diagonal and the error band.

    Models outside of the band are named, largest deviations first.
    """
    ends = pd.concat([rows[name].dropna() for name in ("latency_s", "low_s", "high_s", "measured_s")])
    low, high = min(ends) / 1.6, max(ends) * 1.6

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="measured",
               ylabel="constructed")  # fmt: skip
        # Clip explicitly at the edges: figures are drawn without clip paths.
        corners = [(low, low), (low, (1 + BAND_FRAC) * low), (high / (1 + BAND_FRAC), high), (high, high),
                   (high, (1 - BAND_FRAC) * high), (low / (1 - BAND_FRAC), low)]  # fmt: skip
        ax.fill(*zip(*corners, strict=True), color=_BAND, linewidth=0)
        ax.plot([low, high], [low, high], color=FAINT, linewidth=1)
        for row in fmt.rows(rows):
            if pd.notna(row.low_s):
                ax.plot([row.measured_s] * 2, [row.low_s, row.high_s], color=colors[row.strategy], linewidth=1.2)
            ax.plot([row.measured_s], [row.latency_s], "o", color=colors[row.strategy], markersize=6,
                    markeredgecolor="white", markeredgewidth=0.7)  # fmt: skip
            show_points_on_hover(ax, [(row.measured_s, row.latency_s, f"{row.case}\nmeasured "
                                       f"{fmt.seconds(row.measured_s)}, constructed {fmt.seconds(row.latency_s)}")])
        _name_outliers(ax, rows, edge=high * (low / high) ** 0.3)
        for axis in (ax.xaxis, ax.yaxis):
            log_ticks(axis, high / low, fmt.seconds)
        plain_axes(ax)

    return draw_svg("Constructed against measured latency", 400, draw)


def log_ticks(axis: Axis, spread: float, words: Callable[[float], str]) -> None:
    """Set a few ticks on a logarithmic axis whose largest value is `spread` times its smallest."""
    axis.set_major_locator(mpl.ticker.LogLocator(10, (1,) if spread > 50 else (1, 2, 5), numticks=7))
    axis.set_minor_locator(mpl.ticker.NullLocator())
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: words(value)))


def _name_outliers(ax: Axes, rows: pd.DataFrame, edge: float) -> None:
    """Add names of models outside of the band, without overlap, on the side away from the band.

    Right of `edge` there is no space for a name.
    """
    outside = rows[rows["error_frac"].abs() > BAND_FRAC]
    farthest = outside["error_frac"].abs().sort_values(ascending=False).index
    names = dict(zip(rows["case"], short_names(rows["case"]), strict=True))
    named_s: list[float] = []
    for row in fmt.rows(outside.loc[farthest].drop_duplicates("case").head(_NUM_NAMED)):
        if any(1 / _APART < row.latency_s / other_s < _APART for other_s in named_s):
            continue
        named_s.append(row.latency_s)
        right, height = row.error_frac < 0 and row.measured_s < edge, 10 if row.error_frac > 0 else -10
        name = names[row.case] if len(names[row.case]) <= _LONGEST else f"…{names[row.case][1 - _LONGEST :]}"
        text = ax.annotate(name, (row.measured_s, row.latency_s), xytext=(8 if right else -8, height), va="center",
                           textcoords="offset points", ha="left" if right else "right", fontsize=9.5, color=INK)
        text.set_in_layout(False)


def normalized(rows: pd.DataFrame, kinds: str, colors: dict[str, str], means: dict[str, float]) -> Markup:
    """Draw each model's constructed over its measured latency, a point per kind, with geometric means.

    Args:
        rows: rows of `normalized_latency`, in drawing order.
        kinds: column that distinguishes points of a model.
        colors: colors of the kinds.
        means: geometric means of the kinds.
    """
    names = list(dict.fromkeys(rows["case"]))
    ends = [1 - BAND_FRAC, 1 + BAND_FRAC, *rows["normalized"]]
    margin = (max(ends) / min(ends)) ** 0.06

    def draw(ax: Axes) -> None:
        ax.axvspan(1 - BAND_FRAC, 1 + BAND_FRAC, color=_BAND, linewidth=0)
        ax.axvline(1, color=FAINT, linewidth=1)
        for kind, mean in means.items():
            ax.axvline(mean, color=colors[kind], linewidth=1.4, linestyle=(0, (4, 3)))
        for row in fmt.rows(rows):
            ax.plot([row.normalized], [names.index(row.case)], "o", color=colors[getattr(row, kinds)], markersize=6,
                    markeredgecolor="white", markeredgewidth=0.7)  # fmt: skip
            show_points_on_hover(ax, [(row.normalized, names.index(row.case),
                                       f"{row.case}\n{getattr(row, kinds)}: {row.normalized:.3g}")])
        ax.set(xscale="log", xlim=(min(ends) / margin, max(ends) * margin),
               xlabel="constructed / measured (dashed: geometric mean)")  # fmt: skip
        ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6))
        ax.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:.3g}"))

    return by_name("Constructed over measured latency of each model", names, draw)


def by_layers(rows: pd.DataFrame) -> Markup:
    """Draw the share of each layer type in the constructed latencies, a bar per model."""
    models = rows_of(rows, "case", "operator_type", "share_frac")

    def draw(ax: Axes) -> None:
        for position, (_, parts) in enumerate(models):
            start = 0.0
            for name, share_frac in parts:
                drawn = ax.barh(position, share_frac, left=start, height=0.72, color=palette.operator_type(name),
                                linewidth=0)
                show_on_hover(drawn, part_text(name, share_frac, 1, None))
                start += share_frac
        ax.set(xlim=(0, 1), xlabel="share of the plain sum")
        ax.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, symbol=" %"))

    return by_name("Share of each layer type in constructed latencies", [name for name, _ in models], draw)


def counts_by_name(title: str, rows: pd.DataFrame, counts: dict[str, str]) -> Markup:
    """Draw overlaid bars per row; `counts` are columns with their colors, largest numbers first."""

    def draw(ax: Axes) -> None:
        for column, color in counts.items():
            drawn = ax.barh(range(len(rows)), rows[column], height=0.66, color=color, linewidth=0)
            for bar, name, count in zip(drawn, rows["name"], rows[column], strict=True):
                show_on_hover([bar], f"{name}: {count:,.0f} {column.removeprefix('num_').replace('_', ' ')}")
        ax.set_xlabel("how many")
        ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))

    return by_name(title, rows["name"].tolist(), draw)


NUM_POINTS = 1500
"""Maximum number of points, slowest bricks first; more make a page slow."""

_ROOM = 1.7
"""Margin between the outermost points and the edges, as a factor."""


def work(bricks: pd.DataFrame) -> Markup:
    """Draw the FLOP of each brick against its time."""
    bricks = bricks[bricks["flop"] > 0].head(NUM_POINTS)

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.set(xscale="log", yscale="log", xlabel="FLOP of a call (FLOP)", ylabel="time")
        for kind, rows in bricks.groupby("operator_type", sort=False):
            ax.plot(rows["flop"], rows["time_s"], "o", color=palette.operator_type(str(kind)), markersize=5,
                    markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
            show_points_on_hover(ax, [
                (row.flop, row.time_s, f"{kind}: {fmt.seconds(row.time_s)}, {fmt.num_flop(row.flop)}")
                for row in fmt.rows(rows)])  # fmt: skip
        for axis, column, text in ((ax.xaxis, "flop", lambda value: fmt.num_flop(value).removesuffix("FLOP").strip()),
                                   (ax.yaxis, "time_s", fmt.seconds)):
            low, high = float(bricks[column].min()) / _ROOM, float(bricks[column].max()) * _ROOM
            axis.set_view_interval(low, high, ignore=True)
            log_ticks(axis, high / low, text)
        plain_axes(ax)

    return draw_svg("Time of each brick by FLOP of a call", 320, draw)
