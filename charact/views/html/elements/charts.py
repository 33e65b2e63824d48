"""Charts of boxes that the report's script draws: their data as attributes of an element."""

from collections.abc import Iterable
from dataclasses import dataclass

from charact.views.html.elements.drawing import ink_on, shortened

LEAST_FRAC = 1 / 2000
"""Smallest share of the whole for a box."""
_STEPS = 1_000_000
"""Resolution of positions, which are integers: the width of the whole."""
_LONGEST_NAME = 200


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
    """One of a chart's graphs, as attributes."""

    name: str
    unit: str
    total: str
    share_of: str
    tracks: list[str]
    """First row and name of each group of rows, as `row name`."""
    boxes: list[str]
    """Row, start, length, and positions of color, name and detail in the chart's lists; separated by spaces."""


@dataclass(frozen=True)
class Chart:
    """A chart: its graphs, of which one is shown at a time, and the texts and colors of their boxes."""

    title: str
    instead: str
    """Where the numbers are if the chart cannot be drawn."""
    graphs: list[Graph]
    texts: list[str]
    colors: list[str]
    """Color of a box and of its text, separated by a space; the first is empty, for boxes that contain others."""


class ChartMaker:
    """Collects the graphs of a chart, and each of their texts and colors once."""

    def __init__(self, title: str, instead: str) -> None:
        self._title, self._instead = title, instead
        self._graphs: list[Graph] = []
        self._texts: dict[str, int] = {"": 0}
        self._colors: dict[str, int] = {"": 0}

    def add(self, name: str, unit: str, total: float, share_of: str, boxes: Iterable[Box],
            tracks: Iterable[tuple[int, str]] = ()) -> None:
        """Add a graph.

        Args:
            name: name of its measure.
            unit: base unit of the boxes' lengths.
            total: length of the whole.
            share_of: the whole, for the text of a box's share.
            boxes: its boxes; one that contains another is before it.
            tracks: first row and name of each group of rows.
        """
        scale = _STEPS / total
        found = [f"{box.row} {round(box.start * scale)} {round(box.length * scale)} "
                 f"{self._colors.setdefault(box.color, len(self._colors))} {self._text(box.name)} "
                 f"{self._text(box.detail)}" for box in boxes]
        self._graphs.append(Graph(name, unit, f"{total:.6g}", share_of, [f"{row} {text}" for row, text in tracks],
                                  found))

    def _text(self, text: str) -> int:
        return self._texts.setdefault(shortened(text, _LONGEST_NAME), len(self._texts))

    def made(self) -> Chart:
        """Return the chart."""
        return Chart(self._title, self._instead, self._graphs, list(self._texts),
                     [f"{color} {ink_on(color)}" if color else "" for color in self._colors])
