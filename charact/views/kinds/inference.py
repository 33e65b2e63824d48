"""Cases that load weights and predict a data set."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from charact.analysis.training.stages import (
    inference_breakdown,
    inference_summary,
    needed_batches,
    prediction_metrics,
)
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table, takes
from charact.views.document import Card, Item, Line, Number, bar
from charact.views.html.elements.blocks import CASE, STATUS, failure_of, status_reason
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, table


def no_data(row: Any) -> str:
    """Return why an inference lacks a number."""
    return status_reason(row) or "the record has no data"


def few_batches(percentile: str) -> Callable[[Any], str]:
    """Return a function that gives the reason why an inference lacks a percentile of its batches."""
    needed = needed_batches(percentile)

    def why(row: Any) -> str:
        few = pd.notna(row.num_batches) and row.num_batches < needed
        return f"fewer than {needed} batches" if few else no_data(row)

    return why


def not_cold(row: Any) -> str:
    """Return why an inference lacks a cold load."""
    return no_data(row) if pd.isna(row.cold_reason) else str(row.cold_reason)


def _card(row: Any, parts: pd.DataFrame, metrics: pd.DataFrame) -> Card:
    """Return the card of an inference: total time with a cold load (if measured), its parts, batches and metrics."""
    failure = failure_of(row.status, row.reason)
    if pd.isna(row.total_warm_s):
        return Card(row.case, failure=failure or ("no data", no_data(row)))
    load = "warm" if pd.isna(row.total_cold_s) else "cold"
    details = [f"{fmt.duration(row.total_warm_s)} with a warm one" if load == "cold" else
               f"cold load {fmt.missing(not_cold(row))}"]
    if pd.notna(row.compile_s):
        details.append(f"compiled in {fmt.duration(row.compile_s)}")
    numbers = [
        Number("samples/s", fmt.number(row.samples_per_s, no_data(row))),
        *(Number(f"batch, {name}", fmt.seconds(getattr(row, f"{name}_s"), few_batches(f"{name}_s")(row)))
          for name in palette.PERCENTILES),
        Number("batches", fmt.number(row.num_batches)),
        *(Number(each.metric, fmt.metric(each.metric, each.value, None if pd.isna(each.reason) else each.reason))
          for each in fmt.rows(metrics)),
    ]
    return Card(row.case, failure=failure, details=details, numbers=numbers,
                headline=Number(f"with a {load} load", fmt.duration(getattr(row, f"total_{load}_s"))),
                bars=[bar(f"Load and prediction, {load}", of_load, "part", palette.INFERENCE_PARTS.__getitem__,
                          fmt.duration) for load, of_load in parts.groupby("load", sort=False)])


def _table(summary: pd.DataFrame, *more: Column) -> Table:
    """Build the table of headline numbers; `more` columns follow the case."""
    columns = [
        CASE, *more, STATUS,
        Column("total_cold_s", "Total, cold", fmt.duration, "cold load + prediction", not_cold),
        Column("total_warm_s", "Total, warm", fmt.duration, "median warm load + prediction", no_data),
        Column("load_cold_s", "Cold load", fmt.duration, "build the model, read the file, copy the weights", not_cold),
        Column("load_warm_s", "Warm load", fmt.duration, "the same again, median", no_data),
        Column("prediction_s", "Prediction", fmt.duration, "of all samples", no_data),
        Column("samples_per_s", "Samples/s", fmt.number, "samples / time of the prediction", no_data),
        Column("p50_s", "Batch, p50", fmt.seconds, "median time of a batch", no_data),
        Column("p99_s", "Batch, p99", fmt.seconds, "1 % of the batches took longer", few_batches("p99_s")),
    ]  # fmt: skip
    return table(summary, "Headline numbers of each inference", columns)


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    summary, parts, metrics = inference_summary(run), inference_breakdown(run), prediction_metrics(run)
    cards = [_card(row, parts[parts["case"] == row.case], metrics[metrics["case"] == row.case])
             for row in fmt.rows(summary)]
    return Overview(cards, _table(summary))


def _details(run: Run, case: str) -> list[Item]:
    synthetic = (inference_summary(run).query("case == @case")["data"] == "synthetic").any()
    has_metrics = len(prediction_metrics(run).query("case == @case"))
    return [Line((fmt.OF_NO_TASK, "dim"))] if synthetic and has_metrics else []


_PARTS = {
    "load_and_prediction": CasePart(inference_breakdown, ("load", "part", "time_s", "share_frac"),
                                    whole=True),
    "metrics": CasePart(prediction_metrics, ("metric", "value", "reason"), whole=True),
}


def _answer(run: Run, cases: pd.DataFrame) -> str:
    return takes(inference_summary(run), "total_warm_s", fmt.duration, "to load a model (warm) and predict all samples")


KIND = CaseKind("inference", 30, _overview, inference_summary, in_one_table(_table),
                ("total_cold_s", "total_warm_s", "samples_per_s", "p50_s", "p99_s"), _answer, details=_details,
                parts=_PARTS)
