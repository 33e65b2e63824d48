"""Figures that are saved as their texts alone, or left out: laying out and drawing each takes a quarter of a second."""

from typing import Any, TextIO

import pytest
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.text import Text

from charact.views.charts import Chart
from charact.views.html import drawing


class PlainFigure(Figure):
    """A figure whose SVG holds the texts that a drawn one would show, and nothing else."""

    def savefig(self, fname: TextIO, **_: Any) -> None:  # type: ignore[override]
        """Write the texts; labels of ticks are found as for drawing."""
        for axis in (axis for axes in self.axes for axis in (axes.xaxis, axes.yaxis)):
            axis.get_ticklabels(which="both")
        texts = [one.get_text() for one in self.findobj(Text) if isinstance(one, Text) and one.get_visible()]
        fname.write(f"<svg>{''.join(f'<text>{escape(text)}</text>' for text in texts if text)}</svg>\n")


def _only_title(chart: Chart) -> Markup:
    return Markup(f"<svg><title>{escape(chart.title)}</title></svg>")


def draw_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drawing, "Figure", Figure)
    patch.setattr(drawing, "svg", _DRAW)


def leave_texts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drawing, "Figure", PlainFigure)
    patch.setattr(drawing, "svg", _DRAW)


def leave_titles(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drawing, "svg", _only_title)


_DRAW = drawing.svg
