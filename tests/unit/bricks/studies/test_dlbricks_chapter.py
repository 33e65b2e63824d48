"""The chapter DLBricks, from no record to records of several machines."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from support.brick_records import Models, suite_run, three_models

from charact.bricks.studies.chapters.dlbricks import STUDY
from charact.bricks.views.figures import normalized_heatmap
from charact.record.reader import Run
from charact.views.charts import Bar, Chart, Curve, Note, Rule
from charact.views.document import Block
from charact.views.html.report import chapters_report

FIGURES = {
    "Layers in sequence and along the critical path over measured latency", "Layers by operator type",
    "Share of unique layers of each model", "Latency of each model by machine", "Speedup by G and machine",
    "Constructed against measured latency",
}
"""Titles of figures that no number of machines changes."""

HEATMAP = "Normalized latency by model and G"


def blocks(runs: Sequence[Run]) -> dict[str, Block]:
    return {block.title: block for block in STUDY.chapter(runs).blocks}


def charts(runs: Sequence[Run]) -> dict[str, Chart]:
    found = [chart for block in STUDY.chapter(runs).blocks for chart in block.figures]
    assert len({chart.title for chart in found}) == len(found)
    return {chart.title: chart for chart in found}


def single(out: Path, hostname: str = "a", g: int = 1, name: str = "net") -> Run:
    """A record of two measured models whose bricks are layers: the longest path is 0.9 of the plain sum."""
    record = Models(out).add(name, ["11bb", "22cc", "11bb"], g=g, measured=1.0)
    run = record.add("other", ["22cc"], g=g, measured=1.25).run()
    run.manifest["machine"]["hostname"] = hostname
    return run


def test_runs_of_suites_and_no_runs_give_the_published_values(tmp_path: Path) -> None:
    for runs in ([], [suite_run(tmp_path)]):
        assert charts(runs) == {}
        assert list(blocks(runs)) == ["Claims", "Unique bricks, accuracy and speedup against G"]


def test_one_and_several_records_give_each_figure_once(tmp_path: Path) -> None:
    one = charts([single(tmp_path)])
    assert set(one) == FIGURES | {HEATMAP}
    several = [suite_run(tmp_path), single(tmp_path), single(tmp_path, g=2), single(tmp_path, "b")]
    assert set(charts(several)) == FIGURES | {f"{HEATMAP}: AMD EPYC, 2 cores on {name}" for name in "ab"}


def test_a_record_of_failed_models_gives_reasons(tmp_path: Path) -> None:
    failed = Models(tmp_path).fail("hopeless", "the run lacks a brick").run()
    table = blocks([failed])["Layers in sequence and along the critical path, G = 2"].table
    assert table is not None
    assert {cell.text for cell in table.rows[0].cells[1:]} == {"n/a (the run lacks a brick)"}
    assert charts([failed]) == {}
    assert "n/a (no run has G = 1: a brick is not one layer)" in " ".join(
        block.note for block in blocks([three_models(tmp_path)]).values())


def test_bars_are_next_to_the_line_at_the_measured_latency(tmp_path: Path) -> None:
    chart = charts([single(tmp_path)])["Layers in sequence and along the critical path over measured latency"]
    bars = {mark.text: mark for mark in chart.marks if isinstance(mark, Bar)}
    assert {text: bar.length for text, bar in bars.items()} == pytest.approx({
        "net-224-b1-infer-fp32-cpu, in sequence: 1": 1.0, "net-224-b1-infer-fp32-cpu, critical path: 0.9": 0.9,
        "other-224-b1-infer-fp32-cpu, in sequence: 0.8": 0.8,
        "other-224-b1-infer-fp32-cpu, critical path: 0.72": 0.72})
    places = sorted((bar.y - bar.height / 2, bar.y + bar.height / 2) for bar in bars.values())
    assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(places))
    assert [mark.value for mark in chart.marks if isinstance(mark, Rule)] == [1]


def test_the_share_of_all_models_is_next_to_the_published_one(tmp_path: Path) -> None:
    chart = charts([single(tmp_path)])["Share of unique layers of each model"]
    assert chart.y.names == ["net", "other", "all models", "published, ICPE 2020"]
    lengths = [mark.length for mark in chart.marks if isinstance(mark, Bar)]
    assert lengths == pytest.approx([200 / 3, 100, 50, 100 * 1529 / 10815])


def test_points_of_models_that_did_not_run_are_rings(tmp_path: Path) -> None:
    there = Models(tmp_path).add("net", ["11bb", "22cc", "11bb"], g=1).run()
    there.manifest["machine"]["hostname"] = "b"
    chart = charts([single(tmp_path), there])["Latency of each model by machine"]
    points = [(curve.color == "white", list(curve.x), list(curve.y)) for curve in chart.marks
              if isinstance(curve, Curve)]
    assert points == [(False, pytest.approx([0.005, 0.00125]), [0, 1]), (True, pytest.approx([0.005]), [0])]
    assert chart.y.names == ["net", "other"]
    assert blocks([single(tmp_path), there])["Latency of each model by machine"].note.startswith("Rings are")
    assert blocks([three_models(tmp_path)])["Latency of each model by machine"].note == ""  # one has no latency


def test_models_of_one_name_are_distinct_rows(tmp_path: Path) -> None:
    record = Models(tmp_path)
    for variant in ("", "x"):
        case = f"net.{variant}-224-b1-infer-fp32-cpu"
        record.add("net", ["11bb"], g=1, measured=1.0, variant=variant, case=case)
    chart = charts([record.add("other", ["22cc"], g=1, measured=1.0).run()])["Latency of each model by machine"]
    assert chart.y.names == ["net.", "net.x", "other"]


def test_a_heatmap_has_a_cell_for_each_model_and_g(tmp_path: Path) -> None:
    runs = [single(tmp_path), single(tmp_path, g=2)]
    chart = charts(runs)[HEATMAP]
    assert chart.y.names == ["net", "other", "geometric mean"]
    assert chart.x.names == ["1", "2"]
    cells = {(mark.x, mark.y): mark.text for mark in chart.marks if isinstance(mark, Note)}
    assert cells == {(x, y): text for x in (0, 1) for y, text in enumerate(["1.00", "0.80", "0.89"])}


def test_colors_of_a_heatmap_deviate_alike_below_and_above_1() -> None:
    import pandas as pd

    rows = pd.DataFrame({"name": list("abcde"), "g": 1, "normalized": [1.0, 0.8, 1.25, 2.0, 1.05]})
    one, low, high, beyond, near = (mark.color for mark in normalized_heatmap("", rows).marks if isinstance(mark, Bar))
    assert one == "#FFFFFF"
    assert low != high
    assert high == beyond
    assert len({one, near, high}) == 3


def test_speedups_are_grouped_by_g_next_to_the_published_one(tmp_path: Path) -> None:
    runs = [single(tmp_path), single(tmp_path, g=3), single(tmp_path, "b")]
    chart = charts(runs)["Speedup by G and machine"]
    assert chart.y.names == ["G = 1", "G = 3"]
    bars = sorted((round(mark.y, 1), mark.length) for mark in chart.marks if isinstance(mark, Bar))
    assert bars == [(-0.2, pytest.approx(2.0)), (0.2, pytest.approx(2.0)), (0.8, pytest.approx(2.0))]  # 6 / 3 ms
    assert [mark.value for mark in chart.marks if isinstance(mark, Rule)] == [4.4]


def test_names_of_models_are_only_ever_text(tmp_path: Path) -> None:
    page = chapters_report("", "", [("one", "One", STUDY.chapter([single(tmp_path, name="<script>x</script>")]))])
    assert "<script>x" not in page
    assert "&lt;script&gt;x" in page
