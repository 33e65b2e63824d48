"""Published numbers of the studies, and the trainings that are compared with them."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.training.stages import training_summary
from charact.record.published import published_table
from charact.record.reader import Run

_COLUMNS = ["workload", "data", "mode", "num_epochs", "total_s", "accuracy", "set"]


def published_cases(names: Sequence[str]) -> pd.DataFrame:
    """Return the published numbers of machines.

    Columns: machine, the name of its GPU; workload, data, mode, num_epochs, total_s and accuracy; set, of basic
    operations, which have no workload. Null if not published.
    """
    frames = []
    for name in names:
        published = published_table(name)
        rows = pd.DataFrame(published["cases"]).reindex(columns=_COLUMNS)
        frames.append(rows.assign(machine=published["gpu"].removeprefix("NVIDIA "), reference=name))
    return pd.concat(frames, ignore_index=True)


def trainings(runs: Sequence[Run], wanted: pd.DataFrame) -> pd.DataFrame:
    """Add the trainings in runs to rows of workloads and data sets.

    A training on synthetic data stands for each data set without a training of its own: its time depends on shapes.

    Args:
        runs: runs, of which those that train count.
        wanted: rows with workload, data, num_epochs and num_samples, the number of training samples.

    Returns:
        the rows with: source, the data that were read, or `not run`; measured_s, the total execution time;
        samples_per_s of training; modelled_s = num_epochs × num_samples / samples_per_s; accuracy, the best one on
        real data.
    """
    known = {(row["workload"], row["data"]): row for run in runs for row in _rows(run)}
    found = [known.get((row.workload, row.data)) or known.get((row.workload, "synthetic")) or {}
             for row in wanted.itertuples()]
    rate = pd.Series([row.get("samples_per_s") for row in found], wanted.index, dtype="float64")
    return wanted.assign(
        source=[row.get("source", "not run") for row in found], samples_per_s=rate,
        measured_s=pd.Series([row.get("total_s") for row in found], wanted.index, dtype="float64"),
        accuracy=pd.Series([row.get("accuracy") for row in found], wanted.index, dtype="float64"),
        modelled_s=wanted["num_epochs"] * wanted["num_samples"] / rate)


def _rows(run: Run) -> list[dict[Any, Any]]:
    summary = training_summary(run)
    if summary.empty:
        return []
    rows = summary.merge(run.cases[["case", "workload"]], on="case").to_dict("records")
    return [{"workload": row["workload"], "data": row["data"], "samples_per_s": row["samples_per_s"],
             "total_s": row["total_s"], "source": _source(row),
             "accuracy": row["best_value"] if row["best_metric"] == "accuracy" and row["data"] != "synthetic" else None}
            for row in rows]


def _source(row: dict[Any, Any]) -> str:
    epochs = "1 epoch" if row["num_epochs"] == 1 else f"{row['num_epochs']:.0f} epochs"
    return f"{row['data']}, {epochs}" if row["status"] == "ok" else f"{row['data']}: {row['status']}"
