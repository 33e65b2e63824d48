"""Charts as data: axes and marks with their numbers, and boxes below each other; renderers draw them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from charact.core.units import quantity, share

INK, FAINT, TRACK = "#1F2933", "#566373", "#E8ECF0"
"""Colors of text, of minor text and lines, and of what is behind marks."""
Style = Literal["", "-", "--", ":"]
NOT_CONNECTED: Style = ""
SOLID: Style = "-"
DASHED: Style = "--"
DOTTED: Style = ":"
_LABEL_FROM_FRAC = 0.07
"""Minimum share of a bar at which the share is written on a part."""
_THIN_PX = 40
"""Height of a row below which its name is on the left, and shares are not written on it."""

DEFAULT_WIDTH_PX = 440
"""Width of most charts."""

Numbers = Iterable[float]


@dataclass(frozen=True)
class Axis:
    """An axis. Ends and ticks that are not given follow from the marks; `low` may be above `high`."""

    label: str = ""
    unit: str | None = None
    """Base unit of the values: ticks are in the multiple that fits the largest, which is added to the label."""
    low: float | None = None
    high: float | None = None
    log: bool = False
    whole: bool = False
    """Whether ticks are whole numbers."""
    text: Callable[[float], str] | None = None
    """Returns the text of a tick."""
    ticks: Sequence[float] | None = None
    names: Sequence[str] = ()
    """Texts of the given ticks."""
    always: float | None = None
    """A value with a tick in any case, such as the 1 of an axis of ratios."""


@dataclass(frozen=True)
class Curve:
    """A line through points, or points that no line connects; `low` and `high` are the ends of intervals of `y`."""

    x: Numbers
    y: Numbers
    color: str = INK
    style: Style = SOLID
    width: float = 1.5
    marker: str = ""
    size: float = 5
    edge: str = ""
    """Color of the line around a marker."""
    opacity: float = 1
    steps: Literal["pre", "post"] | None = None
    low: Numbers | None = None
    high: Numbers | None = None
    texts: Sequence[str] = ()
    """Text of each point that the page shows while the pointer is on it; it may have several lines."""
    label: str = ""


@dataclass(frozen=True)
class Area:
    """The area between two lines; `post` steps end at the next point."""

    x: Numbers
    low: Numbers | float
    high: Numbers
    color: str
    opacity: float = 1
    edge: str | None = None
    steps: Literal["post"] | None = None
    label: str = ""


@dataclass(frozen=True)
class Bar:
    """A horizontal bar around a height."""

    y: float
    start: float
    length: float
    height: float
    color: str
    edge: str | None = None
    text: str = ""
    """Shown while the pointer is on it."""


@dataclass(frozen=True)
class Rule:
    """A line across the whole chart at a value of the axis `y`, or of `x`."""

    value: float
    color: str = INK
    style: Style = SOLID
    width: float = 1.2
    axis: Literal["x", "y"] = "y"


@dataclass(frozen=True)
class Span:
    """A range of x over the full height, with a name above it if it is given."""

    low: float
    high: float
    color: str = FAINT
    opacity: float = 0.0
    strip: str = ""
    """Color of a strip above it."""
    name: str = ""
    text: str = ""
    """Shown while the pointer is on it."""


@dataclass(frozen=True)
class Note:
    """A text at a point."""

    x: float
    y: float
    text: str
    across: Literal["left", "center", "right"] = "left"
    along: Literal["bottom", "center", "center_baseline", "top", "baseline"] = "bottom"
    size: float = 11
    color: str = INK
    offset: tuple[float, float] = (0, 0)
    """Distance from the point (px)."""
    of_width: bool = False
    """Whether `x` is a share of the chart's width."""
    boxed: bool = False
    """Whether a box keeps it readable over lines."""
    floating: bool = False
    """Whether it may reach out of the chart."""


Mark = Curve | Area | Bar | Rule | Span | Note


@dataclass(frozen=True)
class Chart:
    """A figure: its title, axes, and marks, of which later ones cover earlier ones."""

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    height_px: float = 240
    width_px: int = DEFAULT_WIDTH_PX
    """With the default, text is readable on a phone, and two figures fit next to each other on a screen."""
    key: Sequence[Curve | Area] = ()
    """Samples of styles with their labels."""


def percent(value: float) -> str:
    """Return a tick of an axis of shares."""
    return f"{100 * value:g} %"


def ends_around(values: Numbers, factor: float, least_range: float = 1) -> tuple[float, float]:
    """Return ends of a logarithmic axis: `factor` outside of the values, and at least `least_range` apart."""
    numbers = list(values)
    high = factor * max(numbers)
    return min(min(numbers) / factor, high / least_range), high


def ink_on(color: str) -> str:
    """Return a text color that is readable on `color`; it differs from colors that a dark page replaces."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#fefefe" if 0.299 * red + 0.587 * green + 0.114 * blue < 145 else "#1e2832"


def stacked_bars(title: str, frame: pd.DataFrame, columns: tuple[str, str, str], color: Callable[[str], str],
                 label: str, *, unit: str | None = "s", row_px: int = 52,
                 shorten: Callable[[Sequence[str]], Sequence[str]] = list) -> Chart:
    """Return a chart of stacked bars, one for each value of a column, in order, the first at the top.

    Args:
        title: title of the chart.
        frame: a row for each part of a bar.
        columns: names of the columns of bars, of parts, and of their values.
        color: returns the color of a part.
        label: label of the axis.
        unit: base unit of the values; None draws shares of each bar.
        row_px: height of a bar with its name above it, or next to it if it is thin.
        shorten: shortens the names of the bars.
    """
    bar, part, number = columns
    names: list[str] = []
    marks: list[Mark] = []
    widest = 0.0
    thick = row_px >= _THIN_PX
    for y, (name, rows) in enumerate(frame.groupby(bar, sort=False)):
        names.append(str(name))
        start, total = 0.0, float(rows[number].sum())
        widest = max(widest, total)
        for named, value in zip(rows[part].astype(str), rows[number].astype(float), strict=True):
            length = value / total if unit is None and total else value
            marks.append(Bar(y, start, length, 0.5 if thick else 0.7, color(named), "white" if thick else None,
                             part_text(named, value, total, unit)))
            if thick and unit is None and length >= _LABEL_FROM_FRAC:
                marks.append(Note(start + length / 2, y, f"{100 * length:.0f} %", "center", "center",
                                  color=ink_on(color(named))))
            start += length
    axis = Axis(label, unit, 0, 1 if unit is None else 1.02 * widest or 1, text=percent if unit is None else None)
    return of_rows(title, shorten(names), axis, marks, row_px)


def part_text(name: str, value: float, total: float, unit: str | None) -> str:
    """Return the text of a part of a bar: its name, its value in a unit if it has one, its share of the bar."""
    words = [] if unit is None else [quantity(value, unit)]
    return f"{name}: {', '.join([*words, *([share(value / total)] if total and value != total else [])] or ['0'])}"


def of_rows(title: str, names: Sequence[str], axis: Axis, marks: Sequence[Mark], row_px: int) -> Chart:
    """Return a chart of rows, the first at the top: names are above thick rows, and on the left of thin ones."""
    if row_px < _THIN_PX:
        y = Axis(low=len(names) - 0.5, high=-0.6, ticks=range(len(names)), names=names)
        return Chart(title, axis, y, marks, 66 + row_px * len(names))
    above = [Note(0, y - 0.32, name, of_width=True) for y, name in enumerate(names)]
    return Chart(title, axis, Axis(low=len(names) - 0.5, high=-0.65, ticks=()), [*marks, *above],
                 60 + row_px * len(names))


MIN_SIZES = 3
"""Minimum number of sizes for a curve: two points show none."""
LEAST_FRAC = 1 / 2000
"""Smallest share of the whole for a box."""


@dataclass(frozen=True)
class Box:
    """A rectangle in a row of a chart; `start` and `length` are in the unit of its graph."""

    row: int
    start: float
    length: float
    name: str
    detail: str = ""
    """More about it, shown below its name."""
    color: str = ""
    """Color as #RRGGBB; empty for the color of boxes that contain others."""


@dataclass(frozen=True)
class Graph:
    """One of a chart's graphs of boxes; a box that contains another is before it."""

    name: str
    unit: str
    total: float
    """Length of the whole."""
    share_of: str
    """The whole, for the text of a box's share."""
    boxes: list[Box]
    tracks: list[tuple[int, str]] = field(default_factory=list)
    """First row and name of each group of rows."""


@dataclass(frozen=True)
class BoxChart:
    """Graphs of boxes, of which one is shown at a time."""

    title: str
    instead: str
    """Where the numbers are if the chart cannot be drawn."""
    graphs: list[Graph]
