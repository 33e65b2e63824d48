"""Figures as they are drawn: shares of bars, ticks in the unit of the axis, names that are too long, and no ids."""

import re

import pytest
from matplotlib.figure import Figure

from charact.views.html.elements.drawing import bars, draw_svg, label_above, unit_axis

pytestmark = pytest.mark.drawn
ROWS = [("first", [("forward", 0.003), ("backward", 0.001)]), ("x" * 150, [("forward", 0.004)])]


def drawn(figure: Figure) -> None:
    ax = figure.subplots()
    bars(ax, ROWS, lambda name: "#112233" if name == "forward" else "#eeeeee", None)
    label_above(ax, ROWS)


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_wide_parts_show_their_share_and_long_names_are_cut() -> None:
    svg = draw_svg("a <title>", 200, drawn)
    assert {"75 %", "25 %", "100 %", "first", "x" * 99 + "…"} <= set(texts(svg))
    assert "<title>a &lt;title&gt;</title>" in svg
    assert svg.count("fill: #112233") == 2
    assert not re.search(r"<g id=|clip-path|<style|<metadata", svg)
    assert svg == draw_svg("a <title>", 200, drawn)


def test_ticks_are_in_the_unit_of_the_axis() -> None:
    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.set_xlim(0, 0.004)
        ax.set_yticks([])
        unit_axis(ax, 0.004, "s", "time")

    *ticks, label = texts(draw_svg("times", 200, draw))
    assert label == "time (ms)"
    assert (ticks[0], ticks[-1]) == ("0", "4")
