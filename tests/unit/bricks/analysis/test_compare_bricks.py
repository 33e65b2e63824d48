"""Suites of bricks, and constructed models, on two machines: ratios that are known, and what one of them lacks."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from support import brick_records as made
from support.brick_records import Models
from support.compared import side

from charact.analysis.compare import Group, geometric_means, matched_cases, metric_ratios, ratios
from charact.bricks.analysis.compare.speedups import ALL, brick_means, unmatched_bricks
from charact.record.reader import Run
from charact.views.html.report import comparison_sections
from charact.views.tables.comparison_tables import ratio_table, tables

SUITE = "bricks-zoo-g2-infer-fp32-cpu"


def suites(out: Path, factor: float, bricks: Mapping[str, tuple[list[str], float]] = made.BRICKS,
           **changes: object) -> list[Group]:
    return [side("a", made.suite_run(out)), side("b", made.suite_run(out, bricks, slowness=factor, **changes))]


def captions(found: list[Group]) -> list[str]:
    return [table.caption for table in tables(found, ["brick", "layer_type"])]


def test_every_brick_is_compared_with_itself(tmp_path: Path) -> None:
    found = suites(tmp_path, 1.5)
    rows = ratios(found, "brick")
    assert rows["brick"].tolist() == [
        "00aa conv2d + batch_norm", "33dd conv2d + batch_norm", "11bb linear", "22cc relu"]
    assert rows["ratio"].tolist() == pytest.approx([1.5] * 4)
    assert rows["significant"].all()
    types = ratios(found, "layer_type").set_index("layer_type")
    assert types.loc["conv2d + batch_norm", ["base_s", "time_s"]].tolist() == pytest.approx([0.007, 0.0105])
    assert ratios(found, "case")["ratio"].tolist() == pytest.approx([1.5])
    means = brick_means(found)
    assert means["layers"].tolist() == [ALL, "conv2d + batch_norm", "linear", "relu"]
    assert means["num_bricks"].tolist() == [4, 2, 1, 1]
    assert means["speedup"].tolist() == pytest.approx([1 / 1.5] * 4)
    assert unmatched_bricks(found).empty
    assert "Bricks without a counterpart" not in captions(found)


def test_the_geometric_mean_is_of_bricks_not_of_seconds(tmp_path: Path) -> None:
    bricks = dict(made.BRICKS) | {"00aa": (made.BRICKS["00aa"][0], 0.016), "11bb": (made.BRICKS["11bb"][0], 0.001)}
    means = brick_means(suites(tmp_path, 1.0, bricks)).set_index("layers")["speedup"]
    assert means[ALL] == pytest.approx((0.25 * 2 * 1 * 1) ** 0.25)
    assert means["conv2d + batch_norm"] == pytest.approx(0.5)


def test_bricks_that_a_side_lacks_are_listed_with_why(tmp_path: Path) -> None:
    fewer = {brick: told for brick, told in made.BRICKS.items() if brick not in ("00aa", "22cc")}
    entry = made.suite_entry()
    entry["passes"]["bricks"]["suite_digest"] = "fedcba98"
    failed = made.brick_row("22cc", ["relu"], status="oom", reason="too large")
    found = suites(tmp_path, 1.0, fewer | {"77ee": (["gelu"], 0.001)}, failed=[failed], passes=entry["passes"])
    rows = unmatched_bricks(found)[["brick", "side", "missing_in", "why"]].to_numpy().tolist()
    assert rows == [["00aa conv2d + batch_norm", "a", "b", "not in the suite there"],
                    ["22cc relu", "a", "b", "too large"], ["77ee gelu", "b", "a", "not in the suite there"]]
    whole = ratios(found, "case").iloc[0]
    assert whole["reason"] == "not comparable: suite fedcba98 here, suite 01234567 in the baseline"
    assert brick_means(found)["num_bricks"].tolist() == [2, 1, 1]
    assert "Bricks without a counterpart" in captions(found)


def test_suites_of_other_names_match_where_they_are_copies(tmp_path: Path) -> None:
    entry = made.suite_entry("other")
    copied = made.suite_run(tmp_path, slowness=1.5, suite="other")
    entry["passes"]["bricks"]["suite_digest"] = "fedcba98"
    other = made.suite_run(tmp_path, suite="other", passes=entry["passes"])
    mine = side("a", made.suite_run(tmp_path))
    found = [mine, side("b", other)]
    assert matched_cases(found).empty
    assert brick_means(found).empty
    assert ratios([mine, side("b", copied)], "case")["ratio"].tolist() == pytest.approx([1.5])
    assert brick_means([mine, side("b", copied)])["num_bricks"].tolist()[0] == 4


def machines(out: Path, factor: float, **second: object) -> list[Group]:
    def record(slowness: float, **options: object) -> Run:
        models = Models(out).add("resnet18", ["00aa", "11bb"], slowness=slowness, **options)
        return models.add("vgg11", ["33dd"], slowness=slowness, **options).run()

    return [side("a", record(1.0, corrected=1.1, measured=1.0)),
            side("b", record(factor, **{"corrected": 1.1, "measured": 1.05, **second}))]


def test_models_are_compared_by_constructed_and_measured_latency(tmp_path: Path) -> None:
    found = machines(tmp_path, 2.0)
    rows = ratios(found, "case")
    assert rows["case"].tolist() == ["resnet18-224-b1-infer-fp32-cpu", "vgg11-224-b1-infer-fp32-cpu"]
    assert rows["base_s"].tolist() == pytest.approx([0.0066, 0.0033])
    assert rows["ratio"].tolist() == pytest.approx([2.0, 2.0])
    # Each side is known to 1 %: the ratio to 1.4 %.
    assert rows["high"].tolist() == pytest.approx([2.0 * 1.0141] * 2, rel=1e-3)
    assert rows["significant"].all()
    metrics = metric_ratios(found).set_index(["metric", "case"]).xs("vgg11-224-b1-infer-fp32-cpu", level="case")
    assert metrics.loc["measured_time", "ratio"] == pytest.approx(2.1)
    assert metrics.loc["throughput", "ratio"] == pytest.approx(0.5)
    assert geometric_means(found)["speedup"].tolist() == pytest.approx([0.5])
    types = ratios(found, "layer_type").set_index(["case", "layer_type"])["ratio"]
    assert types["resnet18-224-b1-infer-fp32-cpu", "linear"] == pytest.approx(2.0)


def test_corrected_latencies_do_not_compare_with_plain_sums(tmp_path: Path) -> None:
    rows = ratios(machines(tmp_path, 2.0, corrected=None), "case")
    assert rows["ratio"].isna().all()
    assert set(rows["reason"]) == {"not comparable: sequential here, corrected in the baseline"}


def test_models_that_were_not_measured_have_no_measured_time(tmp_path: Path) -> None:
    rows = metric_ratios(machines(tmp_path, 2.0, measured=None)).query("metric == 'measured_time'")
    assert rows["ratio"].isna().all()
    assert set(rows["reason"]) == {"not here"}


@pytest.mark.slow
def test_both_are_shown(tmp_path: Path) -> None:
    html = "".join(part.html for part in comparison_sections(suites(tmp_path, 1.5)))
    assert "Geometric means of the bricks’ speedups" in html
    assert "00aa conv2d + batch_norm" in html
    html = "".join(part.html for part in comparison_sections(machines(tmp_path, 2.0)))
    assert "measured iteration" in html
    shown = ratio_table(machines(tmp_path, 2.0), "case")
    assert shown is not None
    assert [cell.text for cell in shown.rows[0].cells][1:4] == ["6.60 ms", "13.2 ms", "2.000"]
