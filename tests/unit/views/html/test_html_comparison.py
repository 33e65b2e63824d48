import re
from pathlib import Path

import pandas as pd
import pytest
from support import pairs, records

from charact.analysis.compare import Group
from charact.analysis.compare.ratios import phases_by_side
from charact.record.published import reference
from charact.record.reader import Run, load_run
from charact.views.figures.comparison import ratio_intervals, side_colors
from charact.views.html.drawing import svg
from charact.views.html.report import comparison_report, comparison_sections

TRAIN = "resnet50-224-b8-train-fp32-cpu"


def sides(*runs: Run) -> list[Group]:
    return [Group(label, (run,)) for label, run in zip("abc", runs, strict=False)]


def html_of(found: list[Group]) -> dict[str, str]:
    return {part.id: part.html for part in comparison_sections(found)}


def test_phases_of_a_side_sum_to_its_median_iteration(tmp_path: Path) -> None:
    times = phases_by_side(sides(*pairs.pair(tmp_path, 1.2)))
    sums = times.groupby(["case", "side"])["time_s"].sum()
    wall_s = sum(records.TRAIN_PHASES.values()) * 1.0045
    assert sums[TRAIN, "a"] == pytest.approx(wall_s)
    assert sums[TRAIN, "b"] == pytest.approx(1.2 * wall_s)
    assert times["phase"].head(6).tolist() == list(records.TRAIN_PHASES)


def test_the_report_holds_the_comparison_and_each_side(tmp_path: Path) -> None:
    html = comparison_report(sides(*pairs.pair(tmp_path, 1.2)))
    assert "<title>b against a – charact</title>" in html
    found = re.findall(r'<section class="ch-section" id="([a-z-]+)">', html)
    assert {"comparison", "parts", "left-out"} <= set(found)
    assert html.count('<article class="ch-run" id="run-') == 2
    assert "1.200" in html
    assert not re.findall(r'(?:src|href)="(?!#|data:)', html)


def test_published_tables_are_compared_and_have_no_sections_of_their_own(tmp_path: Path) -> None:
    found = [Group(name, (reference(name),)) for name in ("northeastern-k80", "northeastern-p100")]
    html = comparison_report(found)
    assert 'id="run-1"' not in html
    for text in ("2.63", "2.87", "NVIDIA Tesla K80", "Not stated there: optimizer"):
        assert text in html


@pytest.mark.slow
def test_parts_are_shown_as_far_as_they_were_measured(tmp_path: Path) -> None:
    found = html_of(sides(*pairs.pair(tmp_path, 1.2)))
    for caption in ("Times by phase", "Times by operator type", "Times by operator", "Times by layer"):
        assert caption in found["parts"]
    assert "Times by kernel" not in found["parts"]
    assert "Every case has a counterpart" in found["left-out"]


def test_the_longest_parts_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    runs = pairs.pair(tmp_path, 1.2, sizes=(32,), modes=("train",))
    for run in runs:
        rows = run.operators.head(1)
        run._tables["operators"] = pd.concat([rows.assign(operator=f"aten::op{number}") for number in range(30)])
    parts = html_of(sides(*runs))["parts"]
    assert "The 25 slowest of each case, of up to 30" in parts
    assert len(set(re.findall(r">(aten::op\d+)<", parts))) == 25


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    runs = [load_run(records.write_record(tmp_path, layer=evil, oom=True)) for _ in range(2)]
    runs[1].manifest["options"]["data"] = runs[1].manifest["machine"]["hostname"] = evil
    runs[1].manifest["cases"][-1]["reason"] = evil
    found = "".join(html_of([Group(evil, (run,)) if run is runs[1] else Group("a", (run,)) for run in runs]).values())
    assert "&lt;script&gt;" in found
    assert "<script" not in found


@pytest.mark.parametrize("spread", [1.0005, 1.02, 1.3, 2.5, 7, 30, 1e5])
def test_the_axis_of_ratios_has_a_few_plain_ticks(spread: float) -> None:
    found = pd.DataFrame({"case": ["x", "y"], "side": "b", "ratio": [1 / spread, spread],
                          "low": [None, 0.99 * spread], "high": [None, 1.01 * spread]}).astype(
        {"low": "float64", "high": "float64"})  # fmt: skip
    ticks = re.findall(r">([\d.e+-]+)</text>", svg(ratio_intervals(found, side_colors(["b"]))))
    assert 4 <= len(ticks) <= 22


def test_runs_whose_cases_all_failed_are_compared_without_times(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path, sizes=(), oom=True))
    found = html_of(sides(run, run))
    assert "no case in common" not in found["comparison"]
    assert "out of memory: asked for 64.0 GB" in found["left-out"]
