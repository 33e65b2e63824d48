"""Charts hold the numbers that they are about: lengths, heights and ends, and where nothing is drawn."""

import math

import numpy as np
import pandas as pd
import pytest

from charact.views.charts import Area, Axis, Bar, Chart, Curve, Note, Rule, Span
from charact.views.figures import comparison, counters, curves, memory, roofline
from charact.views.html.drawing import svg

MIB = 2.0**20


def marks(chart: Chart, kind: type) -> list:
    return [mark for mark in chart.marks if isinstance(mark, kind)]


def peaks(method: str, scale: float = 1.0) -> pd.DataFrame:
    rows = [(round(positions**0.5), positions, "pixel", method, category, scale * size * MIB,
             0.9 * scale * positions * MIB, 1.1 * scale * positions * MIB)
            for positions in (100, 144, 400) for category, size in (("activations", positions - 40), ("weights", 40))]
    return pd.DataFrame(rows, columns=["input_size", "num_positions", "position", "method", "category", "bytes",
                                       "low_bytes", "high_bytes"])  # fmt: skip


@pytest.mark.parametrize(("limit_bytes", "is_drawn"), [(430 * MIB, True), (470 * MIB, False), (None, False)])
def test_areas_end_at_the_sums_and_dots_are_measured(limit_bytes: float | None, is_drawn: bool) -> None:
    rows = pd.concat([peaks("predicted"), peaks("measured", 1.05)])
    chart = memory.against_input("a title", "training", rows[rows["num_positions"] > 0], limit_bytes)
    weights, activations, uncertainty = marks(chart, Area)
    assert list(weights.low) == [0, 0, 0]
    assert list(weights.high) == list(activations.low) == [40 * MIB, 40 * MIB, 40 * MIB]
    assert list(activations.high) == [100 * MIB, 144 * MIB, 400 * MIB]
    assert list(uncertainty.low) == pytest.approx([90 * MIB, 129.6 * MIB, 360 * MIB])
    *_, total = marks(chart, Curve)
    assert list(total.y) == pytest.approx([105 * MIB, 151.2 * MIB, 420 * MIB])
    assert total.texts[2].split("\n") == ["measured, image area (pixels) 400: 420 MiB", "activations: 378 MiB",
                                          "weights: 42.0 MiB"]
    assert [sample.label for sample in chart.key] == ["predicted", "its uncertainty", "measured"]
    assert bool(marks(chart, Rule)) == is_drawn
    assert (list(chart.x.ticks or ()), list(chart.x.names)) == ([400, 144], ["20²", "12²"])  # 10² is too close to 12²


def test_peaks_of_inference_are_dashed_and_missing_ones_left_out() -> None:
    rows = pd.DataFrame({"label": ["a", "a", "b"], "method": "measured", "position": "token",
                         "input_size": [10, 40, 40], "num_positions": [10, 40, 40],
                         "train_bytes": [4 * MIB, 9 * MIB, 5 * MIB], "infer_bytes": [2 * MIB, 3 * MIB, math.nan]})
    chart = memory.peaks("a title", rows, {"a": "#112233", "b": "#445566"})
    drawn = [(curve.color, curve.style, list(curve.x), list(curve.y)) for curve in marks(chart, Curve)]
    assert drawn == [("#112233", "-", [10, 40], [4 * MIB, 9 * MIB]), ("#112233", "--", [10, 40], [2 * MIB, 3 * MIB]),
                     ("#445566", "-", [40], [5 * MIB]), ("#445566", "--", [], [])]
    assert marks(chart, Curve)[0].texts[1] == "a, training, measured: 9.00 MiB at 40"
    assert [sample.label for sample in chart.key] == ["training", "inference"]


def test_two_sizes_are_bars_of_categories() -> None:
    rows = peaks("measured").query("num_positions != 144")
    chart = memory.against_input("a title", "training", rows, None)
    assert not marks(chart, Curve)
    assert [(bar.y, bar.start, bar.length) for bar in marks(chart, Bar)] == [
        (0, 0, 60 * MIB), (0, 60 * MIB, 40 * MIB), (1, 0, 360 * MIB), (1, 360 * MIB, 40 * MIB)]
    assert [note.text for note in marks(chart, Note)] == ["10²", "20²"]


def test_a_timeline_has_its_peak_phases_and_last_snapshot() -> None:
    rows = pd.DataFrame({"time_s": [0.0, 1.0, 2.0, 3.0], "moment": range(4), "category": "weights", "phase": [
        "forward", "forward", "backward", "backward"], "bytes": [MIB, 2 * MIB, 8 * MIB, 4 * MIB]})  # fmt: skip
    chart = memory.timeline("a title", rows)
    (area,) = marks(chart, Area)
    assert list(area.x) == [0, 1, 2, 3, 4]
    assert list(area.high) == [MIB, 2 * MIB, 8 * MIB, 4 * MIB, 4 * MIB]
    (peak,) = marks(chart, Curve)
    assert (list(peak.x), list(peak.y)) == ([2], [8 * MIB])
    assert [(span.name, span.low, span.high) for span in marks(chart, Span) if span.strip] == [
        ("forward", 0, 2), ("backward", 2, 4)]
    assert [span.text.split("\n")[0] for span in marks(chart, Span) if span.text][2] == "at 2.00 s: 8.00 MiB"
    assert (chart.x.low, chart.x.high) == (0, 4)


def test_steps_of_a_difference_join_and_point_in_its_direction() -> None:
    steps = pd.DataFrame({"name": ["forward", "backward"], "start_s": [0.1, 0.13], "end_s": [0.13, 0.12],
                          "delta_s": [0.03, -0.01]})  # fmt: skip
    chart = comparison.waterfall("a title", steps, ("a", "b"))
    assert [(bar.y, bar.start, bar.length) for bar in marks(chart, Bar)] == [(0, 0.1, 0.03), (1, 0.13, -0.01)]
    assert [bar.text for bar in marks(chart, Bar)] == ["forward: +30.0 ms", "backward: −10.0 ms"]
    assert len({bar.color for bar in marks(chart, Bar)}) == 2
    assert [rule.value for rule in marks(chart, Rule)] == [0.1, 0.12]
    assert [note.text for note in marks(chart, Note)][:2] == ["a: 100 ms", "b: 120 ms"]
    assert chart.x.low < 0.1
    assert chart.x.high > 0.13


def test_ratios_are_within_the_axis_with_their_intervals() -> None:
    rows = pd.DataFrame({"case": ["x", "x", "y"], "side": ["b", "c", "b"], "ratio": [0.5, 2.0, 1.0],
                         "low": [0.4, None, 0.9], "high": [0.6, None, 1.1]})  # fmt: skip
    chart = comparison.ratio_intervals(rows, comparison.side_colors(["b", "c"]))
    points = [line for line in marks(chart, Curve) if line.marker]
    assert [list(point.x) for point in points] == [[0.5], [2.0], [1.0]]
    heights = [point.y[0] for point in points]
    assert heights == sorted(heights)
    assert [list(line.x) for line in marks(chart, Curve) if line.opacity < 1] == [[0.4, 0.6], [0.9, 1.1]]
    assert chart.x.low < 0.4
    assert chart.x.high > 2.0
    assert "between 0.4 and 0.6" in points[0].texts[0]
    assert "between" not in points[1].texts[0]


def test_the_roof_bends_where_bandwidth_and_peak_meet() -> None:
    roof = roofline.Roof("fp32", 1e12, (("L2", 1e12), ("memory", 1e11)))
    points = pd.DataFrame({"name": "GEMM", "text": ["a", "b"], "flop_per_byte": [5.0, 50.0], "mode": ["train", "infer"],
                           "flop_per_s": [2.5e11, 5e11], "share_frac": [0.04, 0.16]})  # fmt: skip
    chart = roofline.roofline_figure("a title", points, lambda _: "#112233", roof)
    _, bound, larger, smaller = marks(chart, Curve)
    assert list(bound.x)[1:2] == [10]
    assert list(bound.y) == pytest.approx([min(1e12, 1e11 * at) for at in bound.x])
    assert smaller.texts == ["a: 250 GFLOP/s at 5 FLOP/byte, 50.0 % of the roofline"]
    assert larger.texts == ["b: 500 GFLOP/s at 50 FLOP/byte, 50.0 % of the roofline"]
    assert larger.size == pytest.approx(2 * smaller.size, rel=0.05)  # areas are as 4 to 1
    assert (smaller.marker, larger.marker) == (chart.key[0].marker, chart.key[1].marker)
    assert smaller.marker != larger.marker
    assert chart.x.low <= 5 <= 50 <= chart.x.high
    assert math.log10(chart.y.high / chart.y.low) >= math.log10(300) - 1e-9


@pytest.mark.parametrize(("values", "is_log"), [([1.0, 49.0], False), ([1.0, 51.0], True), ([0.0, 51.0], False)])
def test_a_loss_that_falls_far_is_drawn_logarithmically(values: list[float], is_log: bool) -> None:
    rows = pd.DataFrame({"case": "a", "stage": "training", "epoch": [1, 2], "value": values})
    chart = curves.learning_curve("loss", rows, {"a": "#112233"})
    assert chart.y.log == is_log
    assert chart.y.label == ("loss, logarithmic" if is_log else "loss")
    assert not curves.learning_curve("accuracy", rows, {"a": "#112233"}).y.log


@pytest.mark.parametrize(("value", "ideal", "text"), [
    (0.62, 0.62, "62.0 %"), (1.3, 1.3, "130.0 %"), (0.4, float("nan"), "40.0 %, its ideal n/a"),
    (float("nan"), float("nan"), "n/a"),
])  # fmt: skip
def test_a_metric_is_as_long_as_its_share_of_the_ideal(value: float, ideal: float, text: str) -> None:
    rows = pd.DataFrame([{"case": "a", "metric": "occupancy_frac", "value": value, "value_frac": ideal,
                          "source": "pm", "method": "sampled"}])  # fmt: skip
    chart = counters.five(rows, {"a": "#112233"})
    track, bar = marks(chart, Bar)
    assert track.length == 1
    assert bar.length == (0 if np.isnan(ideal) else min(ideal, 1.15))
    assert chart.x.high == (1.15 if ideal > 1 else 1.002)
    assert [note.text for note in marks(chart, Note)] == ["Occupancy", "pm, sampled", text]


def test_samples_hang_above_the_line_of_their_panel() -> None:
    samples = pd.DataFrame({"counter": "power_w", "time_s": [0.1, 0.2], "value": [100.0, 200.0]})
    spans = pd.DataFrame({"phase": ["forward"], "start_s": [0.05], "end_s": [0.15]})
    chart = counters.timeline("nvml", "cuda:0", samples, spans, 0.25)
    steps, points = marks(chart, Curve)
    assert list(steps.x) == [0, 0.1, 0.2]
    assert [1 - y for y in steps.y] == pytest.approx([0.3, 0.3, 0.6])
    assert points.texts == ["power at 100 ms: 100 W", "power at 200 ms: 200 W"]
    (phase,) = marks(chart, Area)
    assert (list(phase.x), list(phase.high)) == ([0.05, 0.05, 0.15, 0.15], [0, 1, 1, 0])
    assert marks(chart, Note)[-1].text == "100 W to 200 W"


@pytest.mark.drawn
def test_a_chart_without_points_can_be_drawn() -> None:
    assert svg(Chart("a title", Axis("x", "s", 0, 1), Axis("y", low=0), [Curve([], [])]))
