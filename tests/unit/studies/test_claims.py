"""The rule that decides whether a claim of a publication agrees, and the table of claims."""

from dataclasses import replace
from math import sqrt
from pathlib import Path

import pandas as pd
import pytest
from support.memory_records import write_memory
from support.pairs import write_northeastern

from charact.analysis.memory.by_input_size import line_fits, memory_by_size
from charact.record.reader import Run, load_run
from charact.studies.claims import Claim, Value, claims_block, verdict
from charact.studies.published import ratio_of_trainings
from charact.studies.study import Study, all_studies

STUDIES = all_studies()
CLAIM = Claim("speed", "It is faster.", "published", "ratio", "table 1", "charact study aalto", 2.0)


@pytest.mark.parametrize(("changes", "here", "expected"), [
    ({}, Value(2.19), "agrees"),
    ({}, Value(2.21), "does not agree"),
    ({}, Value(2.5, 1.9, 3.1), "agrees"),
    ({}, Value(2.1, 2.05, 2.15), "does not agree"),
    ({"published": None}, Value(2.0), "n/a (no published number)"),
    ({}, Value(), "n/a (not run: charact study aalto)"),
    ({}, Value(reason="one run stands for both"), "n/a (one run stands for both)"),
    ({"test": "above"}, Value(1.2, 1.1, 1.3), "agrees in direction"),
    ({"test": "above"}, Value(0.9, 0.8, 0.95), "does not agree"),
    ({"test": "above"}, Value(1.1, 0.9, 1.3), "n/a (the interval includes 1.00)"),
    ({"test": "below", "bound": 0.0, "published": None}, Value(-0.1), "agrees"),
    ({"test": "below", "bound": 0.0}, Value(0.1), "does not agree"),
])
def test_a_claim_agrees_by_its_interval_or_its_deviation(changes: dict[str, object], here: Value,
                                                         expected: str) -> None:
    assert verdict(replace(CLAIM, **changes), here) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_a_chapter_without_runs_begins_with_claims_and_how_to_measure_them(study: Study) -> None:
    first = study.chapter([]).blocks[0]
    assert first.title == "Claims"
    assert first.table is not None
    shown = [dict(zip([column.title for column in first.table.columns], [cell.text for cell in row.cells],
                      strict=True)) for row in first.table.rows]
    reasons = dict(part.split(" ", 1) for part in first.table.note.removesuffix(".").split("; "))
    why = [reasons[row["Verdict"].removeprefix("n/a ")] for row in shown]
    assert why[0] == f"not run: charact study {study.name}"
    assert set(why) <= {why[0], "the gain needs two machines, and one is here",
                        "the study's FLOPS has no unit and no definition",
                        "the study's bottleneck share has no definition"}
    assert all(row["Claim"] and row["Published in"] for row in shown)


def claims(name: str, runs: list[Run]) -> list[tuple[str, str, str]]:
    shown = STUDIES[name].chapter(runs).blocks[0].table
    assert shown is not None
    titles = [column.title for column in shown.columns]
    return [(row.cells[titles.index("Published")].text, row.cells[titles.index("Here")].text,
             row.cells[titles.index("Verdict")].text) for row in shown.rows]


def test_networks_are_compared_by_their_times(tmp_path: Path) -> None:
    run = load_run(write_northeastern(tmp_path, "mnist", {"googlenet": 80.0, "resnet18": 40.0}, num_epochs=2))
    # 914.2736 s / 518.9218 s
    assert claims("northeastern", [run])[0] == ("1.76", "2", "agrees in direction")
    one = load_run(write_northeastern(tmp_path, "mnist", {"googlenet": 80.0}, num_epochs=2))
    assert claims("northeastern", [one])[0] == ("1.76", "n/a [1]", "n/a [1]")


def test_the_smaller_task_gains_less_on_cifar10_only() -> None:
    # Times on the K80 / P100 of ResNet-18, over those of GoogLeNet.
    expected = [(1823.6968 / 693.6736) / (2834.6030 / 1019.2370), (1462.0754 / 518.9218) / (2587.4574 / 914.2736),
                (1449.1527 / 505.2194) / (2582.8948 / 914.4191)]
    shown = [float(row[0]) for row in claims("northeastern", [])[1:]]
    assert shown == pytest.approx(expected, abs=0.005)
    assert [value < 0.99 for value in expected] == [True, False, False]


def test_the_table_states_each_long_reason_once() -> None:
    found = claims_block([replace(CLAIM, published=None), CLAIM], {}).table
    assert found is not None
    assert not [cell.text for row in found.rows for cell in row.cells if cell.text.startswith("n/a (")]
    assert found.note.count("not run: charact study aalto") == 1


def test_the_interval_of_a_ratio_adds_squares() -> None:
    rows = pd.DataFrame({"workload": ["a", "b"], "data": ["mnist", "mnist"], "modelled_s": [30.0, 10.0],
                         "interval_frac": [0.03, 0.04], "source": ["mnist", "mnist"]})
    ratio = ratio_of_trainings(rows, ("a", "mnist"), ("b", "mnist"))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((3.0, 2.85, 3.15))


def test_one_synthetic_training_cannot_show_that_two_data_sets_take_the_same_time() -> None:
    rows = pd.DataFrame({"workload": ["a", "a"], "data": ["mnist", "kmnist"], "modelled_s": [10.0, 10.0],
                         "interval_frac": [0.1, 0.1], "source": ["synthetic: one run for mnist and kmnist"] * 2})
    ratio = ratio_of_trainings(rows, ("a", "mnist"), ("a", "kmnist"))
    assert (ratio.value, ratio.reason) == (None, "one training on synthetic data stands for both: add --data-dir")


def test_the_fit_of_a_line_is_the_squared_correlation(tmp_path: Path) -> None:
    run = load_run(write_memory(tmp_path))
    fits = line_fits(run)
    assert len(fits)
    peaks = memory_by_size(run).groupby(["workload", "mode", "method", "num_positions"])["bytes"].sum()
    for row in fits.itertuples():
        of_series = peaks[row.workload, row.mode, row.method]
        x, y = list(of_series.index), list(of_series)
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        cross = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
        r = cross / sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
        assert row.r_squared == pytest.approx(r * r)
