"""The table `summary`: known numbers, the same in every table and export, and what no number says."""

import json
from pathlib import Path

import pandas as pd
import pytest
from support import memory_records, records
from support.known_times import CASE, FAST_MEDIAN_S, HELD, NUM_ITERATIONS, SLOW_MEDIAN_S, write_known

import charact
from charact.analysis.history.index import read_index
from charact.analysis.history.series import history
from charact.analysis.profile.case_summary import case_summary
from charact.analysis.summary import COLUMNS, summary
from charact.record.reader import Run, load_run
from charact.views.export.tables import FORMATS, export


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    out = tmp_path_factory.mktemp("known")
    return [load_run(write_known(out, name=name, is_slow=name == "slow")) for name in ("slow", "fast")]


def test_a_case_has_its_known_numbers(runs: list[Run]) -> None:
    (slow,) = runs[0].summary().to_dict("records")
    assert list(slow) == [column.name for column in COLUMNS]
    assert slow["time_s"] == pytest.approx(SLOW_MEDIAN_S)
    assert 2.164 < slow["low_s"] < slow["time_s"] < slow["high_s"] < 2.164 * 1.022
    assert slow["interval_method"] == "block bootstrap, at least order statistics"
    assert (slow["num_iterations"], slow["time_of"], slow["num_threads"], slow["seed"]) == (
        NUM_ITERATIONS, "iteration", 2, 0)
    assert (slow["p5_s"], slow["p95_s"]) == pytest.approx((2.164 * 1.0011, 2.164 * 1.0209))
    assert slow["samples_per_s"] == pytest.approx(8 / SLOW_MEDIAN_S)
    assert slow["unreliable"] == f"unreliable: {HELD}"
    assert slow["warmup_ended_by"] == "max_seconds"
    assert slow["torch_version"] == "2.13.0+cpu"
    assert slow["memory_form"] == "none"  # one size


def test_every_place_has_the_same_number_and_interval(runs: list[Run], tmp_path: Path) -> None:
    ours = runs[0].summary()[["time_s", "low_s", "high_s"]].to_numpy()[0].tolist()
    assert case_summary(runs[0])[["median_s", "low_s", "high_s"]].to_numpy()[0].tolist() == ours
    index = read_index([runs[0].path])
    assert history(index, CASE, "time")[["value", "low", "high"]].to_numpy()[0].tolist() == ours
    by_hand = runs[0].iterations.groupby(["case", "iteration"])["host_s"].sum().groupby("case").median()
    assert by_hand.tolist() == [pytest.approx(ours[0], rel=1e-12)]
    export(runs[0], "json", tmp_path / "out")
    (written,) = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert [written[name] for name in ("time_s", "low_s", "high_s")] == ours


def test_queries_have_the_numbers_of_the_summary(runs: list[Run]) -> None:
    pytest.importorskip("duckdb", reason="needs duckdb: pip install 'charact[query]'")
    from charact.analysis.query import query

    paths = [run.path for run in runs]
    found = query(paths, "select * from summary order by time_s desc")
    assert list(found) == ["run", *(column.name for column in COLUMNS)]
    assert found["time_s"].tolist() == pytest.approx([SLOW_MEDIAN_S, FAST_MEDIAN_S])
    (times,) = [rows for metric, rows in query(paths, "from results").groupby("metric") if metric == "time"]
    times = times.set_index("run").loc[found["run"]]
    ours = found[["time_s", "low_s", "high_s"]].to_numpy()
    assert times[["value", "low", "high"]].to_numpy().tolist() == ours.tolist()
    for table in ("summary", "cases", "results"):
        reasons = query(paths, f"select distinct run, unreliable from {table} where unreliable is not null")
        assert reasons.to_numpy().tolist() == [[runs[0].path.name, f"unreliable: {HELD}"]]


def test_many_runs_are_one_table(runs: list[Run]) -> None:
    for found in (charact.load_runs(runs[0].path.parent), charact.load_runs([run.path for run in runs])):
        assert isinstance(found, list)
        table = found.summary()
        assert table["run"].tolist() == [run.run_id for run in found]
        assert sorted(table["time_s"]) == pytest.approx([FAST_MEDIAN_S, SLOW_MEDIAN_S])


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_has_the_summary(runs: list[Run], tmp_path: Path, form: str) -> None:
    export(runs[0], form, tmp_path / "out")
    path = tmp_path / "out" / f"summary.{form}"
    readers = {"csv": pd.read_csv, "json": pd.read_json, "parquet": pd.read_parquet}
    (row,) = readers[form](path).to_dict("records")
    assert row["time_s"] == pytest.approx(SLOW_MEDIAN_S)
    columns = json.loads((tmp_path / "out" / "columns.json").read_text(encoding="utf-8"))
    assert [column["name"] for column in columns["summary"]] == [column.name for column in COLUMNS]
    assert "collectives" not in columns


def test_trainings_and_memory_runs_have_their_rows(tmp_path: Path) -> None:
    trained = summary(load_run(records.write_training(tmp_path)))
    assert trained["time_s"].tolist()[:2] == pytest.approx([12.5, 25.0])
    assert trained["time_of"].tolist()[0] == "epoch"
    assert trained["interval_reason"].tolist()[0] == "fewer than 6 epochs"
    assert trained["reason"].tolist()[2] == "the loss was nan in iteration 17 of epoch 3"
    grown = summary(load_run(memory_records.write_memory(tmp_path)))
    assert grown["time_s"].isna().all()
    assert set(grown["memory_form"]) == {"line"}
    assert grown["memory_slope_bytes"].gt(0).all()
