"""Figures that are saved as their texts alone, or left out: laying out and drawing each takes a quarter of a second."""

from types import CodeType
from typing import Any, TextIO

import pytest
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.text import Text

from charact.views.html.elements import drawing


class PlainFigure(Figure):
    """A figure whose SVG holds the texts that a drawn one would show, and nothing else."""

    def savefig(self, fname: TextIO, **_: Any) -> None:  # type: ignore[override]
        """Write the texts; labels of ticks are found as for drawing."""
        for axis in (axis for axes in self.axes for axis in (axes.xaxis, axes.yaxis)):
            axis.get_ticklabels(which="both")
        texts = [one.get_text() for one in self.findobj(Text) if isinstance(one, Text) and one.get_visible()]
        fname.write(f"<svg>{''.join(f'<text>{escape(text)}</text>' for text in texts if text)}</svg>")


def _only_title(title: str, *_: Any, **__: Any) -> Markup:
    return Markup(f"<svg><title>{escape(title)}</title></svg>")


def draw_all(patch: pytest.MonkeyPatch) -> None:
    """Draw the figures of all reports that this process writes."""
    _replace(patch, Figure, _DRAWS)


def leave_texts(patch: pytest.MonkeyPatch) -> None:
    """Replace the figures of all reports that this process writes by their texts."""
    _replace(patch, PlainFigure, _DRAWS)


def leave_titles(patch: pytest.MonkeyPatch) -> None:
    """Replace the figures of all reports that this process writes by their titles."""
    _replace(patch, Figure, _only_title.__code__)


def _replace(patch: pytest.MonkeyPatch, figure: type[Figure], code: CodeType) -> None:
    """Replace the class of figures, and the code of `draw_svg`: other modules have imported that function."""
    patch.setattr(drawing, "Figure", figure)
    patch.setattr(drawing.draw_svg, "__code__", code)


_DRAWS = drawing.draw_svg.__code__
