"""Figures that are saved as their texts alone, or left out: laying out and drawing each takes a quarter of a second."""

from typing import Any, TextIO

import pytest
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.text import Text


class PlainFigure(Figure):
    """A figure whose SVG holds the texts that a drawn one would show, and nothing else."""

    def savefig(self, fname: TextIO, **_: Any) -> None:  # type: ignore[override]
        """Write the texts; labels of ticks are found as for drawing."""
        for axis in (axis for axes in self.axes for axis in (axes.xaxis, axes.yaxis)):
            axis.get_ticklabels(which="both")
        texts = [one.get_text() for one in self.findobj(Text) if isinstance(one, Text) and one.get_visible()]
        fname.write(f"<svg>{''.join(f'<text>{escape(text)}</text>' for text in texts if text)}</svg>")


def only_title(title: str, *_: Any, **__: Any) -> Markup:
    """Stand in for `draw_svg`, by whose names it is run."""
    return Markup(f"<svg><title>{escape(title)}</title></svg>")


def leave_texts(patch: pytest.MonkeyPatch) -> None:
    """Replace the figures of all reports that this process writes by their texts."""
    from charact.views.html.elements import drawing

    patch.setattr(drawing, "Figure", PlainFigure)


def leave_figures_out(patch: pytest.MonkeyPatch) -> None:
    """Replace the figures of all reports that this process writes by their titles.

    The code of `draw_svg` is replaced, since other modules have imported the function.
    """
    from charact.views.html.elements import drawing

    patch.setattr(drawing.draw_svg, "__code__", only_title.__code__)
