"""The terminal's summary of trainings and inferences: what takes the total time, and how well the task is done."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from charact.analysis.training.stages import (
    inference_breakdown,
    inference_summary,
    learning_curves,
    prediction_metrics,
    stage_breakdown,
    training_summary,
)
from charact.record.reader import Run
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.terminal.bars import Bar, Part, sparkline

_LOADS = {"cold": "load and prediction, cold", "warm": "load and prediction, warm"}


def headlines(run: Run) -> list[RenderableType]:
    """A table of the trainings and one of the inferences; those that have no times, and have not failed, say so."""
    trainings, without = _timed(training_summary(run), "total_s")
    inferences, untold = _timed(inference_summary(run), "total_warm_s")
    tables: list[RenderableType] = []
    if len(trainings):
        metrics = trainings["best_metric"].dropna().unique()
        one_metric = len(metrics) == 1
        table = _table("total time", "samples/s", f"best {metrics[0]}" if one_metric else "best", "to target")
        for row in fmt.rows(trainings):
            best = fmt.missing("no epoch") if pd.isna(row.best_value) else fmt.metric(row.best_metric, row.best_value)
            best = best if one_metric or pd.isna(row.best_value) else f"{row.best_metric} {best}"
            to_target = "–" if pd.isna(row.target_metric) else fmt.duration(row.time_to_target_s, "not reached")
            _add(table, row.case, fmt.duration(row.total_s), fmt.number(row.samples_per_s), best, to_target)
        tables.append(table)
    if len(inferences):
        table = _table("total, cold", "total, warm", "samples/s", "batch p50", "p99")
        for row in fmt.rows(inferences):
            _add(table, row.case, fmt.duration(row.total_cold_s, "not cold"), fmt.duration(row.total_warm_s),
                 fmt.number(row.samples_per_s), fmt.seconds(row.p50_s), fmt.seconds(row.p99_s))  # fmt: skip
        tables.append(table)
    nothing = fmt.missing("the record holds no rows")
    return [*tables, *(Text.assemble((case, "bold"), "  ", (nothing, "dim")) for case in [*without, *untold])]


def _timed(summary: pd.DataFrame, total: str) -> tuple[pd.DataFrame, list[str]]:
    """Rows that have a total, and the cases of those that ended well without one."""
    timed = summary[total].notna()
    return summary[timed], [str(case) for case in summary[~timed & (summary["status"] == "ok")]["case"]]


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("case", overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", overflow="fold")
    return table


def _add(table: Table, case: Any, headline: str, *cells: str) -> None:
    table.add_row(Text(str(case)), Text(headline, style="bold"), *(Text(cell) for cell in cells))


def blocks(run: Run) -> list[RenderableType]:
    """Of each training and inference that has times: its total, what takes it, and its metrics."""
    shown: list[RenderableType] = []
    for row in fmt.rows(training_summary(run).dropna(subset=["total_s"])):
        bars: list[RenderableType] = [_stage_bar(run, row.case), _phase_bar(run, row.case)]
        shown += case_block(str(row.case), _training_line(row), [*bars, *_curves(run, row.case)])
    for row in fmt.rows(inference_summary(run).dropna(subset=["total_warm_s"])):
        shown += case_block(str(row.case), _inference_line(run, row), _load_bars(run, row.case))
    return shown


def case_block(name: str, line: RenderableType, below: list[RenderableType]) -> list[RenderableType]:
    """A case's title and first line, with bars and tables below."""
    title = Rule(Text(name, style="bold"), align="left", style="dim")
    return [Text(), title, Padding(line, (0, 0, 0, 2)), *(Padding(each, (1, 0, 0, 2)) for each in below)]


def _training_line(row: Any) -> Text:
    epochs = "1 epoch" if row.num_epochs == 1 else f"{fmt.number(row.num_epochs)} epochs"
    line = Text.assemble((fmt.duration(row.total_s), "bold"), f" for {epochs}")
    if row.num_epochs != row.num_epochs_asked:
        line.append(f" of {fmt.number(row.num_epochs_asked)}")
    if pd.notna(row.best_value):
        line.append(f"; best {fmt.best(row)}")
    if pd.notna(row.compile_s):
        line.append(f"; compiling took {fmt.duration(row.compile_s)} of it")
    if pd.notna(row.target_metric):
        reached = pd.notna(row.time_to_target_s)
        words = f"after {fmt.duration(row.time_to_target_s)}, in epoch {row.reached_epoch:.0f}" if reached else \
            fmt.missing(row.target_reason)
        line.append(f"\ntarget {fmt.target(row)}: {words}")
    if row.data == "synthetic":
        line.append(f"\n{fmt.OF_NO_TASK}", style="dim")
    return line


def _stage_bar(run: Run, case: Any) -> Bar:
    return _bar(run, case, "stage", "total execution time by stage", palette.STAGES)


def _phase_bar(run: Run, case: Any) -> Bar:
    return _bar(run, case, "phase", "total execution time by phase", palette.PHASES)


def _bar(run: Run, case: Any, column: str, label: str, colors: dict[str, str]) -> Bar:
    parts = stage_breakdown(run).query("case == @case")
    sums = parts.groupby(column, sort=False)[["time_s", "share_frac"]].sum()
    return Bar(label, [
        Part(str(name), part["share_frac"], fmt.duration(part["time_s"]), colors[str(name)])
        for name, part in sums.iterrows()
    ])  # fmt: skip


def _curves(run: Run, case: Any) -> list[RenderableType]:
    """First and last value of each metric with the curve between them, training beside validation."""
    curves = learning_curves(run).query("case == @case")
    if curves.empty:
        return []
    stages = list(curves["stage"].unique())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
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
    # Folding would tear a number from its unit.
    first, end = (value.replace(" ", "\N{NO-BREAK SPACE}") for value in (fmt.metric(metric, known.iloc[0]), last))
    return f"{first} {sparkline(known.tolist())} {end}"


def _inference_line(run: Run, row: Any) -> Text:
    totals = [] if pd.isna(row.total_cold_s) else [f"{fmt.duration(row.total_cold_s)} with a cold load"]
    totals.append(f"{fmt.duration(row.total_warm_s)} with a warm one" if totals else
                  f"{fmt.duration(row.total_warm_s)} with a warm load")  # fmt: skip
    percentiles = ", ".join(f"{name} {fmt.seconds(getattr(row, f'{name}_s'))}" for name in palette.PERCENTILES)
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
        Bar(_LOADS[str(load)], [
            Part(row.part, row.share_frac, fmt.duration(row.time_s), palette.INFERENCE_PARTS[row.part])
            for row in fmt.rows(rows)
        ])
        for load, rows in parts.groupby("load", sort=False)
    ]  # fmt: skip
