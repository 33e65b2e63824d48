"""Charts as they are drawn: positions of what the pointer shows, ticks in the unit of the axis, and no ids."""

import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pages import Page

from charact.views.charts import (
    Area,
    Axis,
    Bar,
    Box,
    BoxChart,
    Chart,
    Curve,
    Graph,
    Note,
    Rule,
    Span,
    ends_around,
    part_text,
    percent,
    stacked_bars,
)
from charact.views.html.drawing import _short_path, box_chart, svg

pytestmark = pytest.mark.drawn
TIMES = pd.DataFrame([("first", "forward", 0.003), ("first", "backward", 0.001), ("x" * 150, "forward", 0.004)],
                     columns=["case", "phase", "time_s"])  # fmt: skip
BARS = ("case", "phase", "time_s")


def texts(drawn: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn)


def hovered(drawn: str) -> dict[str, tuple[float, float, float, float]]:
    """Left, top, width and height of each text that the pointer shows."""
    found = re.findall(r'<title>([^<]*)</title><rect x="(.*?)" y="(.*?)".*? width="(.*?)" height="(.*?)"/>', drawn)
    return {text: (float(x), float(y), float(width), float(height)) for text, x, y, width, height in found}


def color(name: str) -> str:
    return "#112233" if name == "forward" else "#eeeeee"


def test_wide_parts_show_their_share_and_long_names_are_cut() -> None:
    chart = stacked_bars("a <title>", TIMES, BARS, color, "share", unit=None)
    drawn = svg(chart)
    assert {"75 %", "25 %", "100 %", "first", "x" * 99 + "…"} <= set(texts(drawn))
    assert "<title>a &lt;title&gt;</title>" in drawn
    assert drawn.count("fill: #112233") == 2
    assert not re.search(r"<g id=|clip-path|<style|<metadata", drawn)
    assert drawn == svg(chart)
    Page(drawn)


def test_bars_are_as_long_as_their_parts() -> None:
    chart = stacked_bars("times", TIMES, BARS, color, "time")
    bars = [mark for mark in chart.marks if isinstance(mark, Bar)]
    assert [(bar.y, bar.start, bar.length) for bar in bars] == [(0, 0, 0.003), (0, 0.003, 0.001), (1, 0, 0.004)]
    parts = hovered(svg(chart))
    left, top, width, height = parts["forward: 3.00 ms, 75.0 %"]
    assert parts["backward: 1.00 ms, 25.0 %"] == pytest.approx((left + width, top, width / 3, height), abs=0.2)
    assert parts["forward: 4.00 ms"][2] == pytest.approx(4 / 3 * width, abs=0.2)
    assert parts["forward: 4.00 ms"][1] > top + height
    assert texts(svg(chart))[-3] == "time (ms)"


@pytest.mark.parametrize(("value", "total", "unit", "text"), [
    (0.5, 2, None, "a: 25.0 %"), (0.5, 2, "s", "a: 500 ms, 25.0 %"), (2, 2, "s", "a: 2.00 s"), (0, 0, None, "a: 0"),
])  # fmt: skip
def test_the_text_of_a_part(value: float, total: float, unit: str | None, text: str) -> None:
    assert part_text("a", value, total, unit) == text


@pytest.mark.parametrize(("axis", "data", "label", "ticks"), [
    (Axis("time", "s", 0, 0.005), [0, 0.005], "time (ms)", ["0", "1", "2", "3", "4", "5"]),
    (Axis("held", "B", 0, 2**20), [0, 2**20], "held (MiB)", ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    (Axis("share", None, 0, 1, text=percent), [0, 1], "share", ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
    (Axis("epoch", None, 1, 3, whole=True), [1, 3], "epoch", ["1", "2", "3"]),
    (Axis("rate", None, 1, 1e5, log=True), [1, 1e5], "rate", ["1", "10", "100", "1000", "10000", "100000"]),
    (Axis("ratio", None, 1, 20, log=True), [1, 20], "ratio", ["1", "2", "5", "10", "20"]),
    (Axis("ratio", None, 1, 3, log=True), [1, 3], "ratio", ["1", "1.5", "2", "2.5", "3"]),
    (Axis("ratio", None, 0.93, 1.12, log=True, always=1), [0.93, 1.12], "ratio", ["0.95", "1", "1.05", "1.1"]),
    (Axis("ratio", None, 0.7, 7.7, always=1), [0.7, 7.7], "ratio", ["1", "2", "4", "6"]),
    (Axis(ticks=(1, 2), names=("one", "two")), [1, 2], None, ["one", "two"]),
])  # fmt: skip
def test_ticks_are_round_numbers_in_the_unit_of_the_axis(axis: Axis, data: list[float], label: str | None,
                                                         ticks: list[str]) -> None:
    drawn = texts(svg(Chart("a title", axis, Axis(ticks=()), [Curve(data, [0, 1])])))
    assert drawn == [*ticks, *([label] if label else [])]


def test_points_and_ranges_show_their_texts_where_they_are() -> None:
    marks = [Curve([0, 5, 10], [1, 3, float("nan")], texts=["low", "middle", "not drawn"]), Span(5, 10, text="late"),
             Area([0, 10], 0, [3, 3], "#112233"), Rule(2), Note(0, 1, "a <note>")]
    drawn = svg(Chart("a title", Axis(low=0, high=10), Axis(low=0, high=4), marks))
    points = hovered(drawn)
    assert set(points) == {"low", "middle", "late"}
    (x, y, width, height), (from_x, from_y, size, _) = points["late"], points["middle"]
    assert from_x + size / 2 == pytest.approx(x, abs=0.2)
    assert from_y + size / 2 == pytest.approx(y + height / 4, abs=0.2)
    assert points["low"][0] + size / 2 == pytest.approx(x - width, abs=0.2)
    assert "a &lt;note&gt;" in drawn


def test_ends_contain_all_values_and_a_minimum_range() -> None:
    assert ends_around([2, 50], 2) == (1, 100)
    assert ends_around([50, 50], 2, 1000) == (0.1, 100)


def test_boxes_name_each_text_and_color_once() -> None:
    boxes = [Box(0, 0, 4, "all"), Box(1, 1, 2, "layer", "Linear", "#112233"), Box(1, 3, 1, "layer", "", "#EEEEEE")]
    drawn = box_chart(BoxChart("a title", "see below", [Graph("Time", "s", 4, "of it", boxes)]))
    assert drawn["texts"] == ["", "all", "layer", "Linear"]
    assert drawn["colors"] == ["", "#112233 #fefefe", "#EEEEEE #1e2832"]
    assert drawn["boxes"] == [["0 0 1000000 0 1 0", "1 250000 500000 1 2 3", "1 750000 250000 2 2 0"]]


@given(steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), min_size=1, max_size=30))
def test_a_shorter_path_encloses_the_same_area(steps: list[tuple[int, int]]) -> None:
    points, at = [(0.0, 0.0)], 0.0
    for width, height in steps:  # an area of steps, as that of a category over an iteration
        points += [(at, float(height)), (at := at + width, float(height))]
    points.append((at, 0.0))
    path = "M " + " \nL ".join(f"{x:.6f} {y:.6f}" for x, y in points) + " \nz\n"
    short = _short_path(path)
    kept = [(float(x), float(y)) for x, y in re.findall(r"[ML](\S+)\s([^\sMLz]+)", short)]
    assert len(kept) <= len(points)
    assert short.endswith("z")
    assert (kept[0], kept[-1]) == (points[0], points[-1])

    def area(corners: list[tuple[float, float]]) -> float:
        return sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in zip(corners, corners[1:] + corners[:1],
                                                                               strict=True)) / 2
    assert area(kept) == pytest.approx(area(points))
