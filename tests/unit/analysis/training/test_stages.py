"""Training and inference: totals, curves, time to target and latencies of records with known numbers."""

from pathlib import Path

import pandas as pd
import pytest
from support import records

from charact.analysis.training.stages import (
    INFERENCE_PARTS,
    inference_breakdown,
    inference_summary,
    learning_curves,
    prediction_metrics,
    stage_breakdown,
    stage_times,
    training_summary,
)
from charact.record.reader import Run, load_run

FIRST, SECOND, DIVERGED = (f"resnet18-32-b{batch_size}-train-fp32-cpu" for batch_size in (10, 20, 40))
@pytest.fixture
def training(tmp_path: Path) -> Run:
    return load_run(records.write_training(tmp_path))


@pytest.fixture
def inference(tmp_path: Path) -> Run:
    return load_run(records.write_inference(tmp_path))


def of(frame: pd.DataFrame, case: str) -> pd.Series:
    (row,) = (row for _, row in frame.iterrows() if row["case"] == case)
    return row


def test_stages_sum_to_the_total(training: Run) -> None:
    times = stage_times(training).query("case == @FIRST")
    assert times["stage"].unique().tolist() == ["training", "validation", "checkpointing"]
    assert times["number"].tolist() == [1, 2, 3, 4, 5] * 3
    assert times.groupby("stage")["wall_s"].unique().map(list).to_dict() == {
        "training": [10.0], "validation": [2.0], "checkpointing": [0.5]}
    first = times.iloc[0]
    assert (first["num_iterations"], first["num_samples"], first["samples_per_s"]) == (800, 8000, 800.0)
    assert times.query("stage == 'checkpointing'")["samples_per_s"].isna().all()
    parts = stage_breakdown(training)
    assert parts.groupby("case", sort=False)["time_s"].sum().to_dict() == {FIRST: 62.5, SECOND: 125.0, DIVERGED: 25.0}
    assert parts.groupby("case")["share_frac"].sum().tolist() == pytest.approx([1, 1, 1])
    backward = parts.query("case == @FIRST and stage == 'training' and phase == 'backward'").iloc[0]
    assert (backward["time_s"], backward["share_frac"]) == (20.0, pytest.approx(0.32))
    phases = parts.query("case == @FIRST and stage == 'validation'")["phase"].tolist()
    assert phases == ["data", "forward", "loss", "other"]


def test_device_times_share_out_the_wall_time_of_a_stage(tmp_path: Path) -> None:
    entry = records.training_entry("r", 10, num_epochs=1)
    stage = {"stage": "training", "number": 1, "num_iterations": 1, "num_samples": 10}
    rows = [stage | {"phase": "forward", "host_s": 0.5, "device_s": 6.0},
            stage | {"phase": "backward", "host_s": 9.5, "device_s": 2.0}]
    parts = stage_breakdown(records.run_of(tmp_path, (entry, {"stages": rows})))
    assert parts[["phase", "time_s"]].to_numpy().tolist() == [["forward", 7.5], ["backward", 2.5]]


def test_the_summary_of_a_training(training: Run, tmp_path: Path) -> None:
    first, second = (of(training_summary(training), case) for case in (FIRST, SECOND))
    assert [first[name] for name in ("total_s", "training_s", "validation_s", "checkpointing_s")] == [62.5, 50, 10, 2.5]
    assert (first["samples_per_s"], second["samples_per_s"]) == (800, 400)
    assert (first["best_metric"], first["best_value"], first["best_epoch"]) == ("accuracy", 0.96, 4)
    assert (first["training_loss"], first["validation_loss"]) == (pytest.approx(0.4), pytest.approx(0.48))
    assert (first["num_epochs_asked"], first["num_epochs"], first["status"]) == (5, 5, "ok")
    summary = training_summary(training)
    assert of(summary, FIRST)["time_to_target_s"] == 3 * 12.5 + 12
    assert of(summary, SECOND)["time_to_target_s"] == 2 * (3 * 12.5 + 12)
    assert (of(summary, FIRST)["target_metric"], of(summary, FIRST)["target_value"]) == ("accuracy", 0.95)
    assert of(summary, FIRST)["reached_epoch"] == 4
    assert pd.isna(of(summary, FIRST)["target_reason"])
    lost = of(training_summary(training), DIVERGED)
    assert pd.isna(lost["time_to_target_s"])
    assert lost["target_reason"] == "not reached in 2 epochs"
    assert (lost["status"], lost["num_epochs"], lost["total_s"]) == ("diverged", 2, 25.0)
    free = load_run(records.write_training(tmp_path / "free", until=None))
    assert set(training_summary(free)["target_reason"]) == {"no target was given"}


def test_a_training_that_failed_at_once_keeps_its_row(tmp_path: Path) -> None:
    entry = records.case_entry("r", 32, "train", status="oom", reason="out of memory")
    entry["passes"] = {"training": {"status": "failed", "reason": "out of memory"}}
    (row,) = training_summary(records.run_of(tmp_path, (entry, {}))).to_dict("records")
    assert (row["status"], row["reason"], row["target_reason"]) == ("oom", "out of memory", "no target was given")
    assert pd.isna(row["total_s"])
    assert pd.isna(row["samples_per_s"])


def test_curves_and_missing_values(training: Run, tmp_path: Path) -> None:
    curves = learning_curves(training).query("case == @SECOND and metric == 'accuracy'")
    assert curves["stage"].tolist() == ["training", "validation"] * 5
    assert curves["epoch"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert curves.query("stage == 'validation'")["value"].tolist() == records.ACCURACIES
    assert curves["elapsed_s"].tolist()[:4] == [20, 24, 45, 49]
    tables = records.training_tables(10, num_epochs=1)
    tables["metrics"].append({"stage": "validation", "number": 1, "metric": "bleu", "reason": "no words"})
    curves = learning_curves(records.run_of(tmp_path, (records.training_entry("r", 10, num_epochs=1), tables)))
    row = curves[curves["metric"] == "bleu"].iloc[0]
    assert pd.isna(row["value"])
    assert row["reason"] == "no words"


def test_the_last_loss_is_of_the_last_epoch_even_where_it_is_missing(tmp_path: Path) -> None:
    tables = records.training_tables(10, num_epochs=2)
    for row in tables["metrics"]:
        if (row["metric"], row["stage"], row["number"]) == ("loss", "validation", 2):
            row |= {"value": None, "reason": "not a number"}
    run = records.run_of(tmp_path, (records.training_entry("r", 10, num_epochs=2), tables))
    (summary,) = training_summary(run).to_dict("records")
    assert summary["training_loss"] == 1.0
    assert pd.isna(summary["validation_loss"])


def test_the_summary_of_an_inference(inference: Run) -> None:
    one, eight = (row for _, row in inference_summary(inference).iterrows())
    assert (one["load_cold_s"], one["load_warm_s"], one["num_warm_loads"]) == (
        pytest.approx(0.6), pytest.approx(0.21), 3)
    assert one["prediction_s"] == pytest.approx(5.05)
    assert (one["total_cold_s"], one["total_warm_s"]) == (pytest.approx(5.65), pytest.approx(5.26))
    assert (one["samples_per_s"], eight["samples_per_s"]) == (pytest.approx(100 / 5.05), pytest.approx(800 / 5.05))
    percentiles = [one[name] for name in ("p50_s", "p90_s", "p95_s", "p99_s")]
    assert percentiles == pytest.approx([0.0505, 0.0901, 0.09505, 0.09901])
    assert one["num_batches"] == 100
    parts = inference_breakdown(inference).query("case.str.contains('-b8-')")
    assert parts.groupby("load")["time_s"].sum().to_dict() == {"cold": pytest.approx(5.65), "warm": pytest.approx(5.26)}
    assert parts["part"].tolist() == [*INFERENCE_PARTS] * 2
    warm = parts.query("load == 'warm'").set_index("part")["time_s"]
    assert warm["read"] == pytest.approx(0.21 * 0.18 / 0.63)
    assert parts.groupby("load")["share_frac"].sum().tolist() == pytest.approx([1, 1])
    rows = prediction_metrics(inference)
    assert rows[["metric", "value"]].to_numpy().tolist() == [["loss", 0.25], ["accuracy", 0.93]] * 2


def test_a_load_that_could_not_be_cold_has_no_cold_total(tmp_path: Path) -> None:
    entry, tables = records.inference_entry("r", 8), records.inference_tables(8)
    entry["passes"]["inference"]["cold_reason"] = "the page cache cannot be dropped"
    tables["stages"] = [row for row in tables["stages"] if row["stage"] != "load_cold"]
    run = records.run_of(tmp_path, (entry, tables))
    (row,) = inference_summary(run).to_dict("records")
    assert pd.isna(row["total_cold_s"])
    assert row["cold_reason"] == "the page cache cannot be dropped"
    assert row["total_warm_s"] == pytest.approx(5.26)
    assert set(inference_breakdown(run)["load"]) == {"warm"}
