"""Cases that load weights and predict a data set."""

from collections.abc import Callable
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from charact.analysis.training.stages import (
    inference_breakdown,
    inference_summary,
    needed_batches,
    prediction_metrics,
)
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table
from charact.views.document import Bar, Card, Number, Part
from charact.views.html.elements.blocks import CASE, STATUS, failure_of, status_reason
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, table
from charact.views.terminal.bars import Bar as TerminalBar
from charact.views.terminal.bars import Part as TerminalPart
from charact.views.terminal.case_lines import case_block, headline_table, timed, without_rows


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


def _card(row: Any, parts: pd.DataFrame) -> Card:
    """Return the card of an inference: total time with a cold load (if measured), its parts, and the batch time."""
    failure = failure_of(row.status, row.reason)
    if pd.isna(row.total_warm_s):
        return Card(row.case, failure=failure or ("nothing", no_data(row)))
    load = "warm" if pd.isna(row.total_cold_s) else "cold"
    other = f"{fmt.duration(row.total_warm_s)} with a warm one" if load == "cold" else \
        f"cold load {fmt.missing(not_cold(row))}"
    compiled = [] if pd.isna(row.compile_s) else [f"compiled in {fmt.duration(row.compile_s)}"]
    shown = parts[parts["load"] == load]
    return Card(
        row.case,
        failure=failure,
        headline=Number(f"with a {load} load", fmt.duration(getattr(row, f"total_{load}_s"))),
        details=[other, *compiled],
        numbers=[
            Number("samples/s", fmt.number(row.samples_per_s, no_data(row))),
            Number("batch, p50", fmt.seconds(row.p50_s, no_data(row))),
            Number("batch, p99", fmt.seconds(row.p99_s, few_batches("p99_s")(row))),
        ],
        bars=[Bar("Time by part", [
            Part(part, float(share_frac), palette.INFERENCE_PARTS[part])
            for part, share_frac in zip(shown["part"].astype(str), shown["share_frac"], strict=True)])],
    )  # fmt: skip


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
    parts, summary = inference_breakdown(run), inference_summary(run)
    cards = [_card(row, parts[parts["case"] == row.case]) for row in fmt.rows(summary)]
    return Overview(cards, _table(summary))


def _headlines(run: Run, cases: pd.DataFrame) -> list[RenderableType]:
    inferences, without = timed(inference_summary(run), "total_warm_s")
    tables = [headline_table(_table(inferences), "total_cold_s", "total_warm_s", "samples_per_s", "p50_s", "p99_s")]
    return [*(tables if len(inferences) else []), *without_rows(without)]


def _details(run: Run, cases: pd.DataFrame) -> list[RenderableType]:
    shown: list[RenderableType] = []
    for row in fmt.rows(inference_summary(run).dropna(subset=["total_warm_s"])):
        shown += case_block(str(row.case), _inference_line(run, row), _load_bars(run, row.case))
    return shown


_LOADS = {"cold": "load and prediction, cold", "warm": "load and prediction, warm"}


def _inference_line(run: Run, row: Any) -> Text:
    totals = [] if pd.isna(row.total_cold_s) else [f"{fmt.duration(row.total_cold_s)} with a cold load"]
    totals.append(f"{fmt.duration(row.total_warm_s)} with a warm one" if totals else
                  f"{fmt.duration(row.total_warm_s)} with a warm load")  # fmt: skip
    percentiles = ", ".join(f"{name} {fmt.seconds(getattr(row, f'{name}_s'), few_batches(f'{name}_s')(row))}"
                            for name in palette.PERCENTILES)
    batches = f"\na batch: {percentiles}; {fmt.number(row.num_batches)} batches"
    line = Text.assemble((", ".join(totals), "bold"), batches)
    if pd.notna(row.compile_s):
        line.append(f"; compiled in {fmt.duration(row.compile_s)}")
    if pd.notna(row.cold_reason):
        line.append(f"\ncold load {fmt.missing(row.cold_reason)}", style="yellow")
    metrics = prediction_metrics(run)
    values = [
        f"{each.metric} {fmt.metric(each.metric, each.value, None if pd.isna(each.reason) else each.reason)}"
        for each in fmt.rows(metrics[metrics["case"] == row.case])
    ]
    if values:
        line.append(f"\n{', '.join(values)}")
    if values and row.data == "synthetic":
        line.append(f"\n{fmt.OF_NO_TASK}", style="dim")
    return line


def _load_bars(run: Run, case: Any) -> list[RenderableType]:
    parts = inference_breakdown(run).query("case == @case")
    return [
        TerminalBar(_LOADS[str(load)], [
            TerminalPart(row.part, row.share_frac, fmt.duration(row.time_s), palette.INFERENCE_PARTS[row.part])
            for row in fmt.rows(rows)
        ])
        for load, rows in parts.groupby("load", sort=False)
    ]  # fmt: skip


_PARTS = {
    "load_and_prediction": CasePart(inference_breakdown, ("load", "part", "time_s", "share_frac"),
                                    ("load", "part", "time_s", "share_frac")),
    "metrics": CasePart(prediction_metrics, ("metric", "value", "reason"), ("metric", "value", "reason")),
}

KIND = CaseKind("inference", 30, _overview, inference_summary, in_one_table(_table), _headlines, _details,
                parts=_PARTS)
