"""Draws charts as inline SVG: thread-safe, reproducible, without scripts or style elements."""

import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from charact.core.units import scale
from charact.views import charts
from charact.views.charts import (
    FAINT,
    INK,
    Area,
    Axis,
    Bar,
    Chart,
    Curve,
    Mark,
    Note,
    Numbers,
    Rule,
    Span,
)

_RC: Any = {
    "axes.grid": True, "axes.axisbelow": True, "xtick.bottom": False, "ytick.left": False,
    "patch.force_edgecolor": True, "lines.solid_capstyle": "round",
    "svg.fonttype": "none",  # text stays text: searchable, selectable, accessible
    "text.parse_math": False,  # a name may hold a $
    "font.family": "DejaVu Sans", "font.size": 12, "axes.labelsize": 12, "xtick.labelsize": 11, "ytick.labelsize": 11,
    "axes.edgecolor": "#D5DBE1", "grid.color": charts.TRACK, "text.color": INK, "axes.labelcolor": FAINT,
    "xtick.color": FAINT, "ytick.color": FAINT,
}  # fmt: skip
_VARIABLES = {
    INK.lower(): "var(--ink, #1f2933)", FAINT.lower(): "var(--muted, #566373)", "#e8ecf0": "var(--line, #e8ecf0)",
    "#d5dbe1": "var(--line, #d5dbe1)", "#ffffff": "var(--surface, #ffffff)",
}  # fmt: skip
"""Colors that a page with a dark mode replaces."""
_PHONE_PX = 340
"""Width of a chart on a phone: its texts are as large as on a wide screen."""
_MAX_NESTED = 4
"""Number of nested groups of one element that Matplotlib writes."""
_RC_LOCK = threading.Lock()  # matplotlib's settings belong to the process
_POINTER_PX = 11
"""Size of the invisible square around a point: the pointer need not hit the point itself."""
_LONGEST_NAME = 100
"""Maximum number of characters of a label; tables have the full names."""
_NUM_TICKS, _NUM_LOG_TICKS = 5, 6
_TICK_STEPS = [1, 2, 2.5, 5, 10]
_FEW_TIMES, _DECADES = 8, 100
"""Spread below which a logarithmic axis has ticks at equal steps, and from which it has them at powers of ten only."""

Tip = tuple[float, float, float, float, str]
"""Ends of a rectangle (left, right, bottom, top; equal for a point), and what the page shows with the pointer on it."""


def svg(chart: Chart) -> Markup:
    """Return the SVG of a chart, one unit per pixel.

    Texts for the pointer are <title> elements of invisible rectangles. Ids are removed, since they would repeat in a
    page of several figures. Clip paths are removed too: nothing is drawn outside of the axes, and a clip path that a
    hidden figure defines is lost.
    """
    text = StringIO()
    salt = f"{chart.title} {chart.width_px}"  # of which the ids are made that remain
    with _RC_LOCK, mpl.rc_context({**_RC, "svg.hashsalt": salt}), warnings.catch_warnings():
        # The browser has fonts for all scripts; the font here only measures text.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # names of 100 characters
        figure = Figure((chart.width_px / 72, chart.height_px / 72), dpi=72, layout="constrained")
        ax = figure.subplots()
        ax.set(xscale="log" if chart.x.log else "linear", yscale="log" if chart.y.log else "linear")
        for axis, limit in ((chart.x, ax.set_xlim), (chart.y, ax.set_ylim)):
            if axis.low is not None and axis.high is not None:
                limit(axis.low, axis.high)  # now, since matplotlib warns of the limits of a single point
        tips = [tip for number, mark in enumerate(chart.marks)
                for tip in _draw(ax, mark, 1 + number / len(chart.marks))]
        ax.spines[:].set_visible(False)
        ax.grid(visible=chart.y.ticks is None, axis="y")
        ax.margins(x=0.02, y=0.06)
        for axis, drawn, (low, high), limit in ((chart.x, ax.xaxis, ax.dataLim.intervalx, ax.set_xlim),
                                                (chart.y, ax.yaxis, ax.dataLim.intervaly, ax.set_ylim)):
            limit(axis.low, axis.high)
            _set_axis(drawn, axis, float(high if axis.high is None else axis.high), float(low))
        if chart.key:
            ax.legend(handles=[_sample(mark) for mark in chart.key], loc="lower right", bbox_to_anchor=(1, 1), ncols=3,
                      frameon=False, fontsize=11, borderaxespad=0, handlelength=2)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        has_texts = chart.width_px != _PHONE_PX  # a script takes those of the other drawing
        hover = "".join(_hover(ax, chart.height_px, tip, has_texts=has_texts) for tip in tips)
    drawn_svg = text.getvalue()
    body = drawn_svg[drawn_svg.index(">", drawn_svg.index("<svg")) + 1 :].removesuffix("</svg>\n")
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r'<clipPath.*?</clipPath>| clip-path="[^"]*"', "", body, flags=re.DOTALL)
    body = re.sub(r"#[0-9a-f]{6}", lambda color: _VARIABLES.get(color[0], color[0]), body)
    head = f'<svg viewBox="0 0 {chart.width_px} {chart.height_px:g}" role="img" xmlns="http://www.w3.org/2000/svg">'
    return Markup(f"{head}<title>{escape(chart.title)}</title>{_compact(body)}{hover}</svg>")


def _compact(svg: str) -> str:
    """Return SVG of a quarter of the size: tenths of a pixel, no defaults, no groups of one element, no white space."""
    svg = re.sub(r' d="([^"]*)"', lambda path: f' d="{_short_path(path[1])}"', svg)
    svg = re.sub(r' (x|y|width|height)="(-?\d+\.\d)\d+"', r' \1="\2"', svg)
    svg = re.sub(r'; font-family: [^;"]*| transform="rotate\(-?0 [^"]*\)"|; stroke-linejoin: miter', "", svg)
    svg = re.sub(r'<path d="[^"]*" style="fill: none"/>|<defs>\s*</defs>|<g/>', "", svg)
    svg = re.sub(r">\s+<", "><", svg.strip())
    for _ in range(_MAX_NESTED):
        svg = re.sub(r"<g></g>|<g>(<(path|text|use)\b[^>]*(?:/>|>[^<]*</\2>))</g>", lambda only: only[1] or "", svg)
    return svg


def _short_path(path: str) -> str:
    """Return a path in tenths of a pixel; of points on one horizontal or vertical line, only the ends."""
    path = re.sub(r"-?\d+\.\d+", lambda at: f"{float(at[0]):.1f}".removesuffix(".0"), path)
    path = re.sub(r"\s*([MLCQzZ])\s*", r"\1", path)
    return re.sub(r"(?:[ML]-?[\d.]+\s-?[\d.]+)+", lambda lines: _without_midpoints(lines[0]), path.replace("\n", " "))


def _without_midpoints(lines: str) -> str:
    kept: list[tuple[str, str, str]] = []
    for command, x, y in re.findall(r"([ML])(\S+)\s([^\sML]+)", lines):
        while command == "L" and len(kept) > 1 and kept[-1][0] == "L" and (
                kept[-2][1] == kept[-1][1] == x or kept[-2][2] == kept[-1][2] == y):
            kept.pop()
        kept.append((command, x, y))
    return "".join(f"{command}{x} {y}" for command, x, y in kept)


def narrow(chart: Chart) -> Chart:
    """Return a chart as wide as a phone's screen."""
    return replace(chart, width_px=_PHONE_PX)


def _draw(ax: Axes, mark: Mark, zorder: float) -> Iterator[Tip]:
    """Draw a mark; yield where the page shows a text."""
    match mark:
        case Curve():
            x, y = _array(mark.x), _array(mark.y)
            if mark.low is not None and mark.high is not None:
                ax.vlines(x, _array(mark.low), _array(mark.high), color=mark.color, linewidth=1, zorder=zorder)
            ax.plot(x, y, linestyle=mark.style or "none", color=mark.color, linewidth=mark.width, marker=mark.marker,
                    markersize=mark.size, markeredgecolor=mark.edge or mark.color, markeredgewidth=0.7,
                    alpha=mark.opacity, zorder=zorder, drawstyle=f"steps-{mark.steps}" if mark.steps else "default")
            yield from ((at, at, height, height, text) for at, height, text in zip(x, y, mark.texts, strict=False)
                        if text and np.isfinite(height))
        case Area():
            ax.fill_between(_array(mark.x), _array(mark.low), _array(mark.high), color=mark.color, alpha=mark.opacity,
                            edgecolor=mark.edge or "none", linewidth=0.8 if mark.edge else 0, step=mark.steps,
                            zorder=zorder)
        case Bar():
            ax.barh(mark.y, mark.length, left=mark.start, height=mark.height, color=mark.color, zorder=zorder,
                    edgecolor=mark.edge or "none", linewidth=0.8 if mark.edge else 0)
            if mark.text:
                yield (mark.start, mark.start + mark.length, mark.y - mark.height / 2, mark.y + mark.height / 2,
                       mark.text)
        case Rule():
            draw = ax.axhline if mark.axis == "y" else ax.axvline
            draw(mark.value, color=mark.color, linestyle=mark.style, linewidth=mark.width, zorder=zorder)
        case Span():
            if mark.opacity:
                ax.axvspan(mark.low, mark.high, color=mark.color, alpha=mark.opacity, linewidth=0, zorder=0)
            above = ax.get_xaxis_transform()
            if mark.strip:
                ax.fill_between([mark.low, mark.high], 1, 1.03, color=mark.strip, linewidth=0, transform=above)
            if mark.name:
                ax.text((mark.low + mark.high) / 2, 1.04, mark.name, ha="center", va="bottom", color=FAINT,
                        fontsize=11, transform=above)
            if mark.text:
                yield mark.low, mark.high, -np.inf, np.inf, mark.text
        case Note():
            text = ax.annotate(
                shortened(mark.text, _LONGEST_NAME), (mark.x, mark.y), mark.offset, textcoords="offset points",
                xycoords=ax.get_yaxis_transform() if mark.of_width else "data", ha=mark.across, va=mark.along,
                fontsize=mark.size, color=mark.color, zorder=3,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1} if mark.boxed else None)
            text.set_in_layout(not mark.floating)


def _array(values: Numbers | float) -> Any:
    return np.array(list(values) if isinstance(values, Iterable) else values, dtype="float64")


def _set_axis(drawn: DrawnAxis, axis: Axis, high: float, low: float) -> None:
    """Set label, ticks and their texts; `low` and `high` are the ends of the values."""
    factor, unit = (1.0, "") if axis.unit is None else scale([high], axis.unit)
    drawn.set_label_text(f"{axis.label} ({unit})" if unit else axis.label)
    drawn.set_minor_locator(mpl.ticker.NullLocator())
    if axis.names:
        drawn.set_tick_params(labelcolor=INK)
    if axis.ticks is not None:
        drawn.set_major_locator(mpl.ticker.FixedLocator(list(axis.ticks)))
    elif axis.log and (spread := high / (axis.low or low)) > _FEW_TIMES:
        steps = (1, 2, 5) if spread < _DECADES else (1,)
        drawn.set_major_locator(mpl.ticker.LogLocator(10, steps, numticks=_NUM_LOG_TICKS))
    else:
        drawn.set_major_locator(_ScaledLocator(factor, axis.whole, axis.always))
    write = axis.text or (lambda value: f"{value * factor:g}")
    drawn.set_major_formatter(
        mpl.ticker.FixedFormatter([shortened(name, _LONGEST_NAME) for name in axis.names]) if axis.names
        else mpl.ticker.FuncFormatter(lambda value, _: write(value)))


class _ScaledLocator(mpl.ticker.MaxNLocator):
    """Ticks at round values of a scaled unit: 256 MiB is not a round number of bytes.

    The value that always has a tick replaces those within half a step of it.
    """

    def __init__(self, factor: float, whole: bool, always: float | None = None) -> None:
        super().__init__(_NUM_TICKS, integer=whole, steps=_TICK_STEPS)
        self._factor = factor
        self._always = always

    def tick_values(self, vmin: float, vmax: float) -> Any:
        ticks = [float(tick) / self._factor
                 for tick in super().tick_values(vmin * self._factor, vmax * self._factor)]
        if self._always is None or len(ticks) < 2:
            return ticks
        always, half = self._always, (ticks[1] - ticks[0]) / 2
        return sorted([*(tick for tick in ticks if abs(tick - always) >= half), always])


def _sample(mark: Curve | Area) -> Line2D | Patch:
    """Return the sample of a style for the key."""
    if isinstance(mark, Area):
        return Patch(color=mark.color, alpha=mark.opacity, linewidth=0, label=mark.label)
    return Line2D([], [], color=mark.color, linestyle=mark.style or "none", linewidth=mark.width, marker=mark.marker,
                  markersize=mark.size, label=mark.label)


def _hover(ax: Axes, height_px: float, tip: Tip, *, has_texts: bool) -> str:
    """Return an invisible rectangle, with the text that the page shows while the pointer is on it."""
    left, right, bottom, top, text = tip
    ends = ax.get_ylim()
    corners = ax.transData.transform([(left, max(bottom, min(ends))), (right, min(top, max(ends)))])
    (x, to_x), (y, to_y) = sorted(corners[:, 0]), sorted(height_px - corners[:, 1])
    grow = _POINTER_PX / 2 if left == right else 0
    title = f"<title>{escape(text)}</title>" if has_texts else ""
    return (f'<g>{title}<rect x="{x - grow:.1f}" y="{y - grow:.1f}" fill-opacity="0" '
            f'width="{to_x - x + 2 * grow:.1f}" height="{to_y - y + 2 * grow:.1f}"/></g>')


def shortened(name: str, longest: int) -> str:
    """Return a name, cut to a number of characters."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


_STEPS = 1_000_000
"""Resolution of the positions of boxes, which are integers: the width of the whole."""


def box_chart(chart: charts.BoxChart) -> dict[str, Any]:
    """Return what the script draws: texts and colors once each, and boxes that name their positions.

    A box is row, start, length, and positions of color, name and detail, separated by spaces. A color is that of a box
    and of its text; the first is empty, for boxes that contain others.
    """
    texts, colors = {"": 0}, {"": 0}

    def position(text: str) -> int:
        return texts.setdefault(shortened(text, 2 * _LONGEST_NAME), len(texts))

    boxes = [[f"{box.row} {round(box.start * _STEPS / graph.total)} {round(box.length * _STEPS / graph.total)} "
              f"{colors.setdefault(box.color, len(colors))} {position(box.name)} {position(box.detail)}"
              for box in graph.boxes] for graph in chart.graphs]
    return {"boxes": boxes, "texts": list(texts),
            "colors": [f"{color} {charts.ink_on(color)}" if color else "" for color in colors]}
