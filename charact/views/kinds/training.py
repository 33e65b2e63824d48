"""Cases that train for whole epochs."""

from typing import Any

import pandas as pd

from charact.analysis.training.stages import TRAINING_STAGES, learning_curves, stage_breakdown, training_summary
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table, takes
from charact.views.document import Card, Item, Line, Lines, Number, ShareBar, bar, sparkline
from charact.views.html.elements.blocks import CASE, STATUS, failure_of, status_reason
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Cell, Column, Row, Table, table

_TOTAL = "training, validation and checkpointing of all epochs"


def _no_epoch(row: Any) -> str:
    return status_reason(row) or "no epoch was finished"


def _card(row: Any, parts: pd.DataFrame) -> Card:
    """Return the card of a training: total execution time, split by stage and phase, and its best metric."""
    failure = failure_of(row.status, row.reason)
    if pd.isna(row.total_s):
        return Card(row.case, failure=failure or ("no data", _no_epoch(row)))
    of = "" if row.num_epochs == row.num_epochs_asked else f" of {fmt.number(row.num_epochs_asked)}"
    epochs = f"for {fmt.number(row.num_epochs)}{of} epoch{'' if row.num_epochs == 1 else 's'}"
    times = {stage: getattr(row, f"{stage}_s") for stage in TRAINING_STAGES}
    details = [", ".join(f"{stage} {fmt.duration(time_s)}" for stage, time_s in times.items() if pd.notna(time_s))]
    if pd.notna(row.compile_s):
        details.append(f"compiling took {fmt.duration(row.compile_s)} of it")
    if pd.notna(row.num_ranks):
        details.append(f"batches of {fmt.number(row.batch_size)} on each of {row.num_ranks:.0f} ranks, "
                       f"{fmt.number(row.global_batch_size)} in all")
    numbers = [Number("samples/s", fmt.number(row.samples_per_s, _no_epoch(row)))]
    if pd.isna(row.best_value):
        numbers.append(Number("best", fmt.missing(_no_epoch(row))))
    else:
        numbers.append(Number(f"best {row.best_metric}, epoch {row.best_epoch:.0f}",
                              fmt.metric(row.best_metric, row.best_value)))
    if pd.notna(row.target_metric):
        target = fmt.metric(row.target_metric, row.target_value).replace(" ", "\N{NO-BREAK SPACE}")
        epoch = "" if pd.isna(row.time_to_target_s) else f", in epoch {row.reached_epoch:.0f}"
        numbers.append(Number(f"to {row.target_metric} {target}",
                              f"{fmt.duration(row.time_to_target_s, row.target_reason)}{epoch}"))
    else:
        numbers.append(Number("last validation loss", fmt.number(row.validation_loss, _no_epoch(row))))
    return Card(row.case, failure=failure, headline=Number(epochs, fmt.duration(row.total_s)), details=details,
                numbers=numbers, bars=[_bar("stage", parts, palette.STAGES), _bar("phase", parts, palette.PHASES)])


def _bar(column: str, parts: pd.DataFrame, colors: dict[str, str]) -> ShareBar:
    sums = parts.groupby(column, sort=False, as_index=False)[["time_s", "share_frac"]].sum()
    return bar(f"Time by {column}", sums, column, colors.__getitem__, fmt.duration)


def _table(summary: pd.DataFrame, *more: Column) -> Table:
    """Build the table of headline numbers; `more` columns follow the case."""
    best = [None if pd.isna(row.best_value) else fmt.best(row) for row in fmt.rows(summary)]
    target = [None if pd.isna(row.target_value) else fmt.target(row) for row in fmt.rows(summary)]
    texts = pd.DataFrame({"best": best, "target": target}, index=summary.index, dtype="str")
    columns = [
        CASE, *more, STATUS,
        Column("total_s", "Total time", fmt.duration, _TOTAL, _no_epoch),
        Column("samples_per_s", "Samples/s", fmt.number, "samples trained on / time of training", _no_epoch),
        Column("best", "Best", None, "of the epochs, on the validation data", _no_epoch, unbroken=True),
        Column("target", "Target", None, "given by --until", lambda row: "none was given", unbroken=True),
        Column("time_to_target_s", "Time to target", fmt.duration, "total time when it was reached",
               lambda row: _no_epoch(row) if pd.isna(row.target_reason) else row.target_reason),
        Column("training_s", "Training", fmt.duration, "over all epochs", _no_epoch),
        Column("validation_s", "Validation", fmt.duration, "over all epochs", lambda row: "not validated"),
        Column("checkpointing_s", "Checkpointing", fmt.duration, "over all epochs", lambda row: "no checkpoints"),
        Column("training_loss", "Last training loss", fmt.number, "of the last finished epoch", _no_epoch),
        Column("validation_loss", "Last validation loss", fmt.number, "of the last finished epoch", _no_epoch),
    ]  # fmt: skip
    return table(summary.join(texts), "Headline numbers of each training", columns)


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    parts, summary = stage_breakdown(run), training_summary(run)
    return Overview([_card(row, parts[parts["case"] == row.case]) for row in fmt.rows(summary)], _table(summary))


def _details(run: Run, case: str) -> list[Item]:
    """Return a table with first value, curve and last value of each metric, for training and validation."""
    curves = learning_curves(run).query("case == @case")
    stages = list(curves["stage"].unique())
    rows = [Row(case, [Cell(str(metric)), *(Cell(_curve(str(metric), values[values["stage"] == stage]))
                                            for stage in stages)])
            for metric, values in curves.groupby("metric", sort=False)]
    columns = [Column("metric", "by epoch"), *(Column(stage, stage) for stage in stages)]
    synthetic = (training_summary(run).query("case == @case")["data"] == "synthetic").any()
    items: list[Item] = [Table("", columns, rows)] if rows else []
    items += [Line((fmt.OF_NO_TASK, "dim"))] if synthetic else []
    return [Lines(items)] if items else []


def _curve(metric: str, rows: pd.DataFrame) -> str:
    known = rows["value"].dropna()
    if rows.empty:
        return "–"
    if known.empty:
        reason = rows["reason"].iloc[-1]
        return fmt.missing(None if pd.isna(reason) else str(reason))
    last = fmt.metric(metric, known.iloc[-1])
    if len(known) == 1:
        return last
    # Keep a number and its unit on one line.
    first, end = (value.replace(" ", "\N{NO-BREAK SPACE}") for value in (fmt.metric(metric, known.iloc[0]), last))
    return f"{first} {sparkline(known.tolist())} {end}"


_PARTS = {
    "stages": CasePart(stage_breakdown, ("stage", "phase", "time_s", "share_frac"),
                       whole=True),
    "last_metrics": CasePart(lambda run: learning_curves(run).iloc[::-1],
                             ("epoch", "stage", "metric", "value", "reason"), whole=True),
}


def _answer(run: Run, cases: pd.DataFrame) -> str:
    rows = training_summary(run)
    best = [fmt.best(row) for row in fmt.rows(rows.dropna(subset=["best_value"]))]
    return takes(rows, "total_s", fmt.duration, f"to train{f'; best {best[0]}' if len(rows) == len(best) == 1 else ''}")


KIND = CaseKind("training", 20, _overview, training_summary, in_one_table(_table),
                ("total_s", "samples_per_s", "best", "time_to_target_s"), _answer, details=_details, parts=_PARTS)
