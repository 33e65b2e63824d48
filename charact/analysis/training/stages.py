"""Training and inference as a whole: total time by stage, and quality of the result."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.analysis.profile.case_summary import iteration_times
from charact.record.manifest import CaseEntry
from charact.record.reader import Run
from charact.record.schema import LOAD_PHASES

TRAINING_STAGES = ("training", "validation", "checkpointing")
"""Stages of an epoch, in order; their times sum to the total execution time."""

INFERENCE_PARTS = (*LOAD_PHASES, "prediction")
"""Parts of the total inference time: the phases of a load, then the prediction."""

_QUANTILES = {"p50_s": 0.5, "p90_s": 0.9, "p95_s": 0.95, "p99_s": 0.99}


@memoize
def stage_times(run: Run) -> pd.DataFrame:
    """Return the wall time of each stage: those of each epoch, each load of a model, and the inference on a data set.

    Columns: case; stage; number (epoch or repetition, from 1); wall_s on the host's clock; num_iterations;
    num_samples; samples_per_s = num_samples / wall_s (null if a stage has no samples).
    """
    times = run.table("stages").groupby(["case", "stage", "number"], as_index=False).agg(
        wall_s=("host_s", "sum"), num_iterations=("num_iterations", "max"), num_samples=("num_samples", "max"),
    )  # fmt: skip
    times["samples_per_s"] = times["num_samples"].where(times["num_samples"] > 0) / times["wall_s"]
    return in_order(times.sort_values("number", kind="stable"), run, "case", "stage")


def stage_breakdown(run: Run) -> pd.DataFrame:
    """Return the time of each phase of each stage of a training, over all epochs.

    Columns: case; stage (one of `TRAINING_STAGES`); phase; time_s; share_frac of the case's total execution time. A
    case's rows sum to its total execution time: device times of phases are scaled to the stage's wall time.
    """
    rows = stage_phase_times(run)
    rows = rows[rows["stage"].isin(TRAINING_STAGES)]
    parts = rows.groupby(["case", "stage", "phase"], as_index=False)[["time_s"]].sum()
    parts["share_frac"] = parts["time_s"] / parts.groupby("case")["time_s"].transform("sum")
    return in_order(parts, run, "case", "stage", "phase")


@memoize
def stage_phase_times(run: Run) -> pd.DataFrame:
    """Return the table `stages` with `time_s`, the phase's part of its stage's wall time.

    Phases have the ratios of their device times, or host times where there are none.
    """
    rows = run.table("stages")
    rows = rows.assign(time_s=rows["device_s"].fillna(rows["host_s"]))
    groups = rows.groupby(["case", "stage", "number"])
    rows["time_s"] *= groups["host_s"].transform("sum") / groups["time_s"].transform("sum")
    return rows


@memoize
def learning_curves(run: Run) -> pd.DataFrame:
    """Return the loss and metrics of each epoch of each training.

    Columns: case; epoch (from 1); stage (training or validation); metric; value, the mean over the stage's samples
    (null with a reason); elapsed_s, the total execution time at the end of that stage.
    """
    values = run.table("metrics").rename(columns={"number": "epoch"})
    values = values[values["stage"].isin(TRAINING_STAGES)].merge(_elapsed(run), on=["case", "stage", "epoch"],
                                                                 how="left")  # fmt: skip
    columns = ["case", "epoch", "stage", "metric", "value", "reason", "elapsed_s"]
    return in_order(in_order(values, run, "stage").sort_values("epoch", kind="stable"), run, "case")[columns]


def _elapsed(run: Run) -> pd.DataFrame:
    """Return total execution time at the end of each stage: columns case, stage, epoch, elapsed_s."""
    times = stage_times(run).rename(columns={"number": "epoch"})
    times = times[times["stage"].isin(TRAINING_STAGES)].sort_values("epoch", kind="stable")
    times["elapsed_s"] = times.groupby("case")["wall_s"].cumsum()
    return times[["case", "stage", "epoch", "elapsed_s"]]


@memoize
def training_summary(run: Run) -> pd.DataFrame:
    """Return one row for each training case, including failed ones; missing values are null.

    Columns: case, status, reason; data, the data set's name; num_epochs_asked (requested) and num_epochs (finished);
    total_s, the total execution time, and its stages training_s, validation_s and checkpointing_s; samples_per_s,
    training samples / training_s; best_metric, best_value and best_epoch; training_loss and validation_loss of the last
    finished epoch; the requested target_metric and target_value, reached_epoch, time_to_target_s (total execution time
    at the end of the validation that reached it) and target_reason, why there is none; compile_s, the part of the total
    for compiling the model (null without compilation); batch_size; num_ranks and global_batch_size, of all ranks (null
    for a single process).
    """
    rows = [_outcome(entry) for entry in run.entries_with("training")]
    numbers = dict.fromkeys(["compile_s", "num_ranks", "global_batch_size"], "float64")
    summary = pd.DataFrame(rows, columns=list(_outcome(CaseEntry("", "ok")))).astype({"case": "str"} | numbers)
    times = stage_times(run).pivot_table(index="case", columns="stage", values=["wall_s", "num_samples"], aggfunc="sum")
    for stage in TRAINING_STAGES:
        summary[f"{stage}_s"] = _of_case(summary, times, ("wall_s", stage))
    summary["total_s"] = summary[[f"{stage}_s" for stage in TRAINING_STAGES]].sum(axis="columns", min_count=1)
    num_samples = _of_case(summary, times, ("num_samples", "training"))
    summary["samples_per_s"] = num_samples.where(num_samples > 0) / summary["training_s"]
    losses = learning_curves(run).query("metric == 'loss'")
    losses = losses[losses["epoch"] == losses.groupby("case")["epoch"].transform("max")]
    losses = losses.pivot_table(index="case", columns="stage", values="value")
    for stage in ("training", "validation"):
        summary[f"{stage}_loss"] = _of_case(summary, losses, stage)
    elapsed_s = _elapsed(run).query("stage == 'validation'").set_index(["case", "epoch"])["elapsed_s"].to_dict()
    reached = zip(summary["case"], summary["reached_epoch"], strict=True)
    summary["time_to_target_s"] = pd.Series([elapsed_s.get(key) for key in reached], dtype="float64")
    return summary


def _of_case(summary: pd.DataFrame, table: pd.DataFrame, column: Any) -> "pd.Series[float]":
    """Return a column of a table, indexed by case, for each row of the summary; null if column or case is missing."""
    return summary["case"].map(table.get(column, pd.Series(dtype="float64"))).astype("float64")


def _outcome(entry: CaseEntry) -> dict[str, Any]:
    facts = entry.passes.training
    best, until, num_epochs = facts.best, facts.until, facts.num_epochs or 0
    target_reason = None if until else "no target was given"
    if until is not None and until.epoch is None:
        target_reason = f"not reached in {num_epochs} epoch{'' if num_epochs == 1 else 's'}"
    return {
        "case": entry.case, "status": entry.status, "reason": entry.reason, "data": entry.data,
        "num_epochs_asked": facts.num_epochs_asked, "num_epochs": facts.num_epochs,
        "best_metric": best and best.metric, "best_value": best and best.value, "best_epoch": best and best.epoch,
        "target_metric": until and until.metric, "target_value": until and until.value,
        "reached_epoch": until and until.epoch, "target_reason": target_reason, "compile_s": facts.compile_s,
        "batch_size": entry.batch_size, "num_ranks": entry.world_size, "global_batch_size": entry.global_batch_size,
    }  # fmt: skip


@memoize
def inference_summary(run: Run) -> pd.DataFrame:
    """Return one row for each inference case, including failed ones; missing values are null.

    Columns: case, batch_size, status, reason; data, the data set's name; load_cold_s; cold_reason, why there is no
    cold load; load_warm_s, median of num_warm_loads; prediction_s; total_cold_s and total_warm_s, load + prediction;
    samples_per_s, samples / prediction_s; num_batches; p50_s, p90_s, p95_s and p99_s, percentiles of the time per
    batch (null with fewer batches than `needed_batches`); compile_s, additional time to compile the model (null without
    compilation).
    """
    rows = [[entry.case, entry.batch_size, entry.status, entry.reason, entry.data, entry.passes.inference.cold_reason,
             entry.passes.inference.compile_s] for entry in run.entries_with("inference")]
    columns = ["case", "batch_size", "status", "reason", "data", "cold_reason", "compile_s"]
    summary = pd.DataFrame(rows, columns=columns).astype({"case": "str", "compile_s": "float64"})
    times = stage_times(run)
    medians = times.pivot_table(index="case", columns="stage", values="wall_s", aggfunc="median")
    for stage in ("load_cold", "load_warm", "prediction"):
        summary[f"{stage}_s"] = _of_case(summary, medians, stage)
    for load in ("cold", "warm"):
        summary[f"total_{load}_s"] = summary[f"load_{load}_s"] + summary["prediction_s"]
    counts = times.query("stage == 'load_warm'").groupby("case").size()
    summary["num_warm_loads"] = summary["case"].map(counts)
    rates = times.query("stage == 'prediction'").set_index("case")
    summary["samples_per_s"] = _of_case(summary, rates, "samples_per_s")
    batches = iteration_times(run).groupby("case")["wall_s"]
    summary["num_batches"] = summary["case"].map(batches.size())
    for name, quantile in _QUANTILES.items():
        values = summary["case"].map(batches.quantile(quantile)).astype("float64")
        summary[name] = values.where(summary["num_batches"] >= needed_batches(name))
    return summary


def needed_batches(percentile: str) -> int:
    """Return the minimum number of batches for a percentile of `inference_summary`: 1, 10, 20 or 100.

    With fewer, it would be the slowest batch.
    """
    quantile = _QUANTILES[percentile]
    return 1 if quantile <= 0.5 else round(1 / (1 - quantile))


def rate_intervals(run: Run, stage: str) -> dict[str, float]:
    """Return half of the 95 % interval of a stage's time per sample, as a share of it, by case.

    It is what a time has that is extrapolated from the batches that were run. Several epochs are averaged, as if they
    were independent. Cases that recorded no interval, such as those with fewer than 3 batches, are left out.

    *Error*: it covers the scatter of the batches, not how the machine changes later.
    """
    rows = run.table("stages")
    rows = rows[(rows["stage"] == stage) & rows["interval_frac"].notna()]
    stages = rows.groupby(["case", "number"], as_index=False).agg(wall_s=("host_s", "sum"),
                                                                  interval_frac=("interval_frac", "first"))
    halves = (stages["wall_s"] * stages["interval_frac"]) ** 2
    sums = pd.DataFrame({"half": halves, "wall_s": stages["wall_s"]}).groupby(stages["case"]).sum()
    return {str(case): float(row.half**0.5 / row.wall_s) for case, row in sums.iterrows()}


def inference_breakdown(run: Run) -> pd.DataFrame:
    """Return the parts of the total inference time, with a cold and with a warm load.

    Columns: case; load (cold or warm); part (one of `INFERENCE_PARTS`); time_s; share_frac of the total. Parts sum to
    total_cold_s or total_warm_s of `inference_summary`. A phase of the warm load is its share of the time of all warm
    loads, multiplied by the median warm load.
    """
    times = stage_phase_times(run).groupby(["case", "stage", "phase"])["time_s"].sum()
    rows: list[list[Any]] = []
    for case in inference_summary(run).to_dict("records"):
        for load in ("cold", "warm"):
            load_s = case[f"load_{load}_s"]
            if pd.notna(load_s):
                phases = times[case["case"], f"load_{load}"]
                parts = {**(phases / phases.sum() * load_s), "prediction": case["prediction_s"]}
                rows += [[case["case"], load, part, parts[part]] for part in INFERENCE_PARTS if part in parts]
    breakdown = pd.DataFrame(rows, columns=["case", "load", "part", "time_s"])
    breakdown = breakdown.astype({"time_s": "float64"}).dropna(subset=["time_s"])
    breakdown["share_frac"] = breakdown["time_s"] / breakdown.groupby(["case", "load"])["time_s"].transform("sum")
    return breakdown


def prediction_metrics(run: Run) -> pd.DataFrame:
    """Return the loss and metrics of each inference: columns case; metric; value (null with a reason); reason."""
    rows = run.table("metrics")
    return in_order(rows[rows["stage"] == "prediction"], run, "case")[["case", "metric", "value", "reason"]]
