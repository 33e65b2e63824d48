"""Helpers that draw figures as inline SVG: thread-safe, reproducible, without scripts or style elements."""

import re
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import Any
from urllib.parse import quote, unquote

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from charact.core.units import quantity, scale, share

WIDTH_PX = 440
"""Width of a figure: its text is readable on a phone, and two figures fit next to each other on a screen."""
INK, FAINT = "#1F2933", "#566373"
_RC: Any = {
    "axes.grid": True, "axes.axisbelow": True, "xtick.bottom": False, "ytick.left": False,
    "patch.edgecolor": "w", "patch.force_edgecolor": True, "lines.solid_capstyle": "round",
    "svg.fonttype": "none",  # text stays text: searchable, selectable, accessible
    "text.parse_math": False,  # a name may hold a $
    "font.family": "DejaVu Sans", "font.size": 12, "axes.labelsize": 12, "xtick.labelsize": 11, "ytick.labelsize": 12,
    "axes.edgecolor": "#D5DBE1", "grid.color": "#E8ECF0", "text.color": INK, "axes.labelcolor": FAINT,
    "xtick.color": FAINT, "ytick.color": INK,
}  # fmt: skip
_VARIABLES = {
    INK.lower(): "var(--ink, #1f2933)", FAINT.lower(): "var(--muted, #566373)", "#e8ecf0": "var(--line, #e8ecf0)",
    "#d5dbe1": "var(--line, #d5dbe1)", "#ffffff": "var(--surface, #ffffff)",
}  # fmt: skip
"""Colors that a page with a dark mode replaces."""
_RC_LOCK = threading.Lock()  # matplotlib's settings belong to the process
_LABEL_FROM_FRAC = 0.07
_TIP = "hover-"
INVISIBLE = 0.001
"""Opacity of what is drawn for the pointer only; with 0, matplotlib draws nothing that the pointer could hit."""
_POINTER_PX = 11
"""Size of the invisible circle around a point: the pointer need not hit the point itself."""
_LONGEST_NAME = 100
"""Maximum number of characters of a label."""

Row = tuple[str, Sequence[tuple[str, float]]]
"""A stacked bar: its label, and its parts as (name, value)."""


def draw_svg(title: str, height_px: float, draw: Callable[[Figure], None], *, width_px: int = WIDTH_PX) -> Markup:
    """Return the SVG of a figure, one unit per pixel.

    The texts of `show_on_hover` become <title> elements. Other ids are removed, since they would repeat in a page of
    several figures. Clip paths are removed too: nothing is drawn
    outside of the axes, and a clip path that a hidden figure defines is lost.
    """
    text = StringIO()
    with _RC_LOCK, mpl.rc_context({**_RC, "svg.hashsalt": title}), warnings.catch_warnings():
        # The browser has fonts for all scripts; the font here only measures text.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # names of 100 characters
        figure = Figure(figsize=(width_px / 72, height_px / 72), layout="constrained")
        draw(figure)
        _shorten_names(figure)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(rf'<g id="{_TIP}([^"]*)">', lambda found: f"<g><title>{escape(unquote(found[1]))}</title>", body)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r'<clipPath.*?</clipPath>| clip-path="[^"]*"', "", body, flags=re.DOTALL)
    # Hundredths of a pixel are enough, and save a third of the size.
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), body)
    body = re.sub(r"#[0-9a-f]{6}", lambda color: _VARIABLES.get(color[0], color[0]), body)
    head = f'<svg viewBox="0 0 {width_px} {height_px:g}" role="img" xmlns="http://www.w3.org/2000/svg">'
    return Markup(f"{head}<title>{escape(title)}</title>{body}")


def show_on_hover(artists: Iterable[Artist], text: str) -> None:
    """Set the text that the page shows while the pointer is on one of the artists; it may have several lines."""
    for artist in artists:
        artist.set_gid(f"{_TIP}{quote(text)}")  # encoded: matplotlib writes quotes in more than one way


def show_points_on_hover(ax: Axes, points: Iterable[tuple[float, float, str]]) -> None:
    """Add an invisible circle at each point, given as x, y and text, that shows the text on hover."""
    for x, y, text in points:
        show_on_hover(ax.plot([x], [y], "o", color=INK, markersize=_POINTER_PX, alpha=INVISIBLE, zorder=9), text)


def _shorten_names(figure: Figure) -> None:
    """Cut labels that leave no space for the plot; tables have the full names."""
    for text in figure.findobj(mpl.text.Text):
        assert isinstance(text, mpl.text.Text)
        text.set_text(shortened(text.get_text(), _LONGEST_NAME))
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, mpl.ticker.FixedFormatter):
            formatter.seq = [shortened(str(name), _LONGEST_NAME) for name in formatter.seq]


def shortened(name: str, longest: int) -> str:
    """Return a name, cut to a number of characters."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def bar_figure(title: str, rows: Sequence[Row], colors: Callable[[str], str], label: str, *, unit: str | None = "s",
               row_px: int = 52) -> Markup:
    """Draw stacked bars with labels above them, and an axis in a unit.

    Args:
        title: title of the figure.
        rows: the bars.
        colors: function from a part's name to its color.
        label: label of the axis.
        unit: base unit of the values; None draws shares of each bar.
        row_px: height of a bar with its label.
    """
    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, colors, unit)
        label_above(ax, rows)
        if unit is None:
            ax.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, symbol=" %"))
            ax.set_xlabel(label)
        else:
            unit_axis(ax, ax.get_xlim()[1], unit, label)

    return draw_svg(title, 60 + row_px * len(rows), draw)


def remove_frame(ax: Axes) -> None:
    """Remove the lines around a plot."""
    ax.spines[:].set_visible(False)


def plain_axes(ax: Axes) -> None:
    """Remove the frame of a plot, and make the vertical ticks small."""
    ax.tick_params(axis="y", labelsize=11, labelcolor=FAINT)
    remove_frame(ax)


def bars(ax: Axes, rows: Sequence[Row], colors: Callable[[str], str], unit: str | None) -> None:
    """Draw stacked horizontal bars, the first at the top; without a unit, shares of each bar, written on wide parts."""
    as_share = unit is None
    widest = max(sum(value for _, value in parts) for _, parts in rows)
    for position, (_, parts) in enumerate(rows):
        total, start = sum(value for _, value in parts), 0.0
        for name, value in parts:
            width = value / total if as_share and total else value
            bar = ax.barh(position, width, left=start, height=0.5, color=colors(name), edgecolor="white", linewidth=0.8)
            drawn: list[Artist] = [*bar]
            if as_share and width >= _LABEL_FROM_FRAC:
                ink = ink_on(colors(name))
                label = ax.text(start + width / 2, position, f"{100 * width:.0f} %", ha="center", va="center",
                                color=ink, fontsize=11)  # fmt: skip
                drawn.append(label)
            show_on_hover(drawn, part_text(name, value, total, unit))
            start += width
    ax.set_xlim(0, 1 if as_share else widest * 1.02 or 1)
    ax.set_ylim(len(rows) - 0.5, -0.65)
    ax.grid(visible=False, axis="y")
    remove_frame(ax)


def part_text(name: str, value: float, total: float, unit: str | None) -> str:
    """Return the text of a part of a bar: its name, its value in a unit if it has one, its share of the bar."""
    words = [] if unit is None else [quantity(value, unit)]
    return f"{name}: {', '.join([*words, *([share(value / total)] if total and value != total else [])] or ['0'])}"


def ink_on(color: str) -> str:
    """Return a text color that is readable on `color`; it differs from colors that a dark page replaces."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#fefefe" if 0.299 * red + 0.587 * green + 0.114 * blue < 145 else "#1e2832"


def label_above(ax: Axes, rows: Sequence[Row]) -> None:
    """Write labels above their bars rather than next to them: names are long, and pages may be narrow."""
    ax.set_yticks([])
    for position, (label, _) in enumerate(rows):
        ax.text(0, position - 0.32, label, ha="left", va="bottom", fontsize=11, transform=ax.transData)


def unit_axis(ax: Axes, largest: float, unit: str, label: str) -> None:
    """Set ticks and label of the horizontal axis in the unit that fits its largest value."""
    ax.set_xlabel(f"{label} ({scaled_ticks(ax.xaxis, largest, unit)})")


def scaled_ticks(axis: Axis, largest: float, unit: str) -> str:
    """Set round ticks in the unit that fits an axis's largest value; return that unit, such as MiB."""
    factor, scaled_unit = scale([largest], unit)
    axis.set_major_locator(_ScaledLocator(factor))
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value * factor:g}"))
    return scaled_unit


class _ScaledLocator(mpl.ticker.MaxNLocator):
    """Ticks at round values of a scaled unit: 256 MiB is not a round number of bytes."""

    def __init__(self, factor: float) -> None:
        super().__init__(5)
        self._factor = factor

    def tick_values(self, vmin: float, vmax: float) -> Any:
        return [tick / self._factor for tick in super().tick_values(vmin * self._factor, vmax * self._factor)]


def rows_of(frame: pd.DataFrame, label: str, name: str, value: str) -> list[Row]:
    """Return a bar for each value of the column `label`, in order, with parts from the columns `name` and `value`."""
    return [
        (str(key), list(zip(rows[name].astype(str), rows[value].astype(float), strict=True)))
        for key, rows in frame.groupby(label, sort=False)
    ]
