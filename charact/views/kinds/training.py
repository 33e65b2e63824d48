"""Cases that train for whole epochs."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from charact.analysis.training.stages import (
    TRAINING_STAGES,
    learning_curves,
    stage_breakdown,
    training_summary,
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
from charact.views.terminal.bars import sparkline
from charact.views.terminal.case_lines import case_block, headline_table, timed, without_rows

_TOTAL = "training, validation and checkpointing of all epochs"


def _no_epoch(row: Any) -> str:
    return status_reason(row) or "no epoch was finished"


def _card(row: Any, parts: pd.DataFrame) -> Card:
    """Return the card of a training: total execution time, split by stage, and its best metric."""
    failure = failure_of(row.status, row.reason)
    if pd.isna(row.total_s):
        return Card(row.case, failure=failure or ("no data", _no_epoch(row)))
    shares = parts.groupby("stage", sort=False)["share_frac"].sum()
    epochs = "1 epoch" if row.num_epochs == 1 else f"{fmt.number(row.num_epochs)} epochs"
    stages = [
        f"{stage} {fmt.duration(getattr(row, f'{stage}_s'))}"
        for stage in TRAINING_STAGES if pd.notna(getattr(row, f"{stage}_s"))
    ]  # fmt: skip
    compiled = [] if pd.isna(row.compile_s) else [f"compiling took {fmt.duration(row.compile_s)} of it"]
    return Card(
        row.case,
        failure=failure,
        headline=Number(f"for {epochs}", fmt.duration(row.total_s)),
        details=[", ".join(stages), *compiled, *([_batches(row)] if pd.notna(row.num_ranks) else [])],
        numbers=[
            Number("samples/s", fmt.number(row.samples_per_s, _no_epoch(row))),
            _best(row),
            _time_to_target(row) if pd.notna(row.target_metric) else
            Number("last validation loss", fmt.number(row.validation_loss, _no_epoch(row))),
        ],
        bars=[Bar("Time by stage", [Part(str(stage), float(share_frac), palette.STAGES[str(stage)])
                                    for stage, share_frac in shares.items()])],
    )  # fmt: skip


def _best(row: Any) -> Number:
    if pd.isna(row.best_value):
        return Number("best", fmt.missing(_no_epoch(row)))
    return Number(f"best {row.best_metric}, epoch {row.best_epoch:.0f}", fmt.metric(row.best_metric, row.best_value))


def _time_to_target(row: Any) -> Number:
    target = fmt.metric(row.target_metric, row.target_value).replace(" ", "\N{NO-BREAK SPACE}")
    return Number(f"to {row.target_metric} {target}", fmt.duration(row.time_to_target_s, row.target_reason))


def _table(summary: pd.DataFrame, *more: Column) -> Table:
    """Build the table of headline numbers; `more` columns follow the case."""
    best = [None if pd.isna(row.best_value) else fmt.best(row) for row in fmt.rows(summary)]
    target = [None if pd.isna(row.target_value) else fmt.target(row) for row in fmt.rows(summary)]
    words = pd.DataFrame({"best": best, "target": target}, index=summary.index, dtype="str")
    summary = summary.join(words)
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
    return table(summary, "Headline numbers of each training", columns)


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    parts, summary = stage_breakdown(run), training_summary(run)
    cards = [_card(row, parts[parts["case"] == row.case]) for row in fmt.rows(summary)]
    return Overview(cards, _table(summary))


def _headlines(run: Run, cases: pd.DataFrame) -> list[RenderableType]:
    trainings, without = timed(training_summary(run), "total_s")
    tables = [headline_table(_table(trainings), "total_s", "samples_per_s", "best", "time_to_target_s")]
    return [*(tables if len(trainings) else []), *without_rows(without)]


def _details(run: Run, cases: pd.DataFrame) -> list[RenderableType]:
    shown: list[RenderableType] = []
    for row in fmt.rows(training_summary(run).dropna(subset=["total_s"])):
        bars: list[RenderableType] = [_bar(run, row.case, "stage", palette.STAGES),
                                      _bar(run, row.case, "phase", palette.PHASES)]
        shown += case_block(str(row.case), _training_line(row), [*bars, *_curves(run, row.case)])
    return shown


def _training_line(row: Any) -> Text:
    epochs = "1 epoch" if row.num_epochs == 1 else f"{fmt.number(row.num_epochs)} epochs"
    line = Text.assemble((fmt.duration(row.total_s), "bold"), f" for {epochs}")
    if row.num_epochs != row.num_epochs_asked:
        line.append(f" of {fmt.number(row.num_epochs_asked)}")
    if pd.notna(row.best_value):
        line.append(f"; best {fmt.best(row)}")
    if pd.notna(row.compile_s):
        line.append(f"; compiling took {fmt.duration(row.compile_s)} of it")
    if pd.notna(row.num_ranks):
        line.append(f"\n{_batches(row)}")
    if pd.notna(row.target_metric):
        reached = pd.notna(row.time_to_target_s)
        words = f"after {fmt.duration(row.time_to_target_s)}, in epoch {row.reached_epoch:.0f}" if reached else \
            fmt.missing(row.target_reason)
        line.append(f"\ntarget {fmt.target(row)}: {words}")
    if row.data == "synthetic":
        line.append(f"\n{fmt.OF_NO_TASK}", style="dim")
    return line


def _batches(row: Any) -> str:
    return (f"batches of {fmt.number(row.batch_size)} on each of {row.num_ranks:.0f} ranks, "
            f"{fmt.number(row.global_batch_size)} in all")


def _bar(run: Run, case: Any, column: str, colors: dict[str, str]) -> TerminalBar:
    parts = stage_breakdown(run).query("case == @case")
    sums = parts.groupby(column, sort=False)[["time_s", "share_frac"]].sum()
    return TerminalBar(f"total execution time by {column}", [
        TerminalPart(str(name), part["share_frac"], fmt.duration(part["time_s"]), colors[str(name)])
        for name, part in sums.iterrows()
    ])  # fmt: skip


def _curves(run: Run, case: Any) -> list[RenderableType]:
    """Return a table with first value, curve and last value of each metric, for training and validation."""
    curves = learning_curves(run).query("case == @case")
    if curves.empty:
        return []
    stages = list(curves["stage"].unique())
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("by epoch", *stages):
        table.add_column(title, overflow="fold")
    for metric, rows in curves.groupby("metric", sort=False):
        of_stage = [rows[rows["stage"] == stage] for stage in stages]
        table.add_row(Text(str(metric), style="bold"), *(Text(_curve(str(metric), each)) for each in of_stage))
    return [table]


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
                       ("stage", "phase", "time_s", "share_frac")),
    "last_metrics": CasePart(lambda run: learning_curves(run).iloc[::-1],
                             ("epoch", "stage", "metric", "value", "reason"), ("stage", "metric", "value", "reason")),
}

KIND = CaseKind("training", 20, _overview, training_summary, in_one_table(_table), _headlines, _details, parts=_PARTS)
