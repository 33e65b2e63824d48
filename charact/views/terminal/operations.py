"""Terminal summary of basic operations: totals of suites, times and rates of problems, and failures."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.rule import Rule
from rich.text import Text

from charact.analysis.operations.sparsity import sparse_crossover
from charact.analysis.operations.timings import operation_cases, operation_times, suite_totals
from charact.core.units import digits, scale
from charact.record.reader import Run
from charact.views.tables import format as fmt
from charact.views.terminal.named_table import plain_table

_NUM_PROBLEMS = 15
_RATES = {"flop_per_s": "FLOP/s", "bytes_per_s": "B/s"}
_SERIES = ["operation", "precision", "device"]


def blocks(run: Run) -> list[RenderableType]:
    """Return totals of suites, a table of problems for each operation, precision and device, and the crossovers."""
    times, failed = operation_times(run), _failed(run)
    if times.empty:
        return failed
    shown = _totals(suite_totals(run))
    for key, rows in times[times["status"] == "ok"].groupby(_SERIES, sort=False):
        hot = ["hot"] if (rows["hot"] == "yes").all() else []
        title = Text(", ".join([*map(str, key), *hot]), style="bold")
        lines = [*_problems(rows), *(Text(line, style="yellow") for line in _notes(rows))]
        shown += [Text(), Rule(title, align="left", style="dim"), *lines]
    return [*shown, *_crossovers(sparse_crossover(run)), *failed]


def _totals(totals: pd.DataFrame) -> list[RenderableType]:
    """Return each suite's total execution time, with FLOP as counted here and by the suite if different."""
    if totals.empty:
        return []
    table = plain_table("suite", "problems", "total time", "FLOP", "FLOP/s")
    published = []
    for row in fmt.rows(totals):
        words = (row.suite, row.set, row.operation, row.layout, row.precision, row.device)
        name = " ".join(str(word) for word in words if pd.notna(word))
        failed = f", {row.num_failed} failed" if row.num_failed else ""
        table.add_row(Text(name), Text(f"{row.num_problems}{failed}"),
                      Text(fmt.duration(row.total_s, "all failed"), style="bold"),
                      Text(fmt.number(row.flop, "not counted")),
                      Text(fmt.flop_rate(row.flop_per_s, "no FLOP")))  # fmt: skip
        if pd.notna(row.published_flop):
            published.append(Text(f"{name}: published as {fmt.number(row.published_flop)} FLOP ({row.convention})",
                                  style="dim"))  # fmt: skip
    return [table, *published]


def _problems(rows: pd.DataFrame) -> list[RenderableType]:
    """Return the slowest problems of one operation in the order they ran, with common units for the rates.

    The longest names fit into 80 columns. Each problem and direction is one line; a single direction is not named.
    """
    longest = rows.groupby("case", sort=False)["median_s"].sum().nlargest(_NUM_PROBLEMS)
    shown = rows[rows["case"].isin(longest.index)]
    units = {column: scale(shown[column].dropna().tolist(), unit) for column, unit in _RATES.items()
             if shown[column].notna().any()}  # fmt: skip
    directed = ["direction"] if (shown["direction"] != "forward").any() else []
    table = plain_table("problem", *directed, "time", "± %", *(unit for _, unit in units.values()), "ceiling", "error",
                   left=1 + len(directed), gap=1)  # fmt: skip
    last = None
    for row in fmt.rows(shown):
        rates = [_scaled(getattr(row, column), factor) for column, (factor, _) in units.items()]
        share = Text(fmt.share(row.share_frac), style="yellow" if row.share_frac > 1 else "")
        name = str(row.problem).partition(":")[2] or str(row.problem)
        time = Text(fmt.seconds(row.median_s, row.time_reason), style="bold")
        direction = [Text(fmt.DIRECTIONS[row.direction])] if directed else []
        table.add_row(Text("" if row.case == last else name), *direction, time, _half(row), *rates, share, _error(row))
        last = row.case
    if len(shown) == len(rows):
        return [table]
    num_problems = rows["case"].nunique()
    note = f"the {len(longest)} slowest of {num_problems}; the report and charact export have all"
    return [table, Text(note, style="dim")]


def _scaled(value: float, factor: float) -> Text:
    return Text("n/a" if pd.isna(value) else digits(value * factor))


def _half(row: Any) -> Text:
    """Return half of the interval over the median, as a percentage with two digits."""
    style = "" if row.ended_by == "precision" else "yellow"
    half_frac = (row.high_s - row.low_s) / 2 / row.median_s
    if pd.isna(half_frac):
        return Text(fmt.missing(row.time_reason or "few"), style=style)
    return Text(f"{100 * half_frac:.{0 if half_frac >= 0.1 else 1}f}", style=style)


def _error(row: Any) -> Text:
    style = "bold red" if row.max_error > row.tolerance else ""
    return Text(fmt.error(row.max_error, row.time_reason or "not checked"), style=style)


def _notes(rows: pd.DataFrame) -> list[str]:
    """Return notes on the numbers: reasons that all share, and exceptional values."""
    reasons = rows.loc[rows["median_s"].notna(), "share_reason"].dropna().unique()
    lines = [f"of the ceiling: {fmt.missing(reason)}" for reason in reasons]
    if wide := int((rows["ended_by"].notna() & (rows["ended_by"] != "precision")).sum()):
        lines.append(f"{wide} {fmt.LESS_PRECISE}")
    if above := int((rows["share_frac"] > 1).sum()):
        lines.append(f"{above} {fmt.ABOVE_A_CEILING}")
    wrong = rows[rows["max_error"] > rows["tolerance"]]
    lines += [f"{row.problem} {fmt.DIRECTIONS[row.direction]}: error {fmt.error(row.max_error)}, more than the "
              f"{fmt.error(row.tolerance)} that {row.precision} allows" for row in fmt.rows(wrong)]  # fmt: skip
    return lines


def _crossovers(rows: pd.DataFrame) -> list[RenderableType]:
    if rows.empty:
        return []
    table = plain_table("sparse against dense", "sparse is faster below a density of", left=2)
    for row in fmt.rows(rows):
        words = [row.size, row.layout, fmt.DIRECTIONS[row.direction], row.precision, row.device]
        table.add_row(Text(" ".join(map(str, words))), Text(fmt.crossover(row), style="bold"))
    return [Text(), table]


def _failed(run: Run) -> list[RenderableType]:
    cases = operation_cases(run)
    return [
        Text.assemble((str(row.problem), "bold"), f" {row.precision}  ", (f"{row.status}: ", "bold red"),
                      fmt.failure(row.status, row.reason))
        for row in fmt.rows(cases[cases["status"] != "ok"])
    ]  # fmt: skip
