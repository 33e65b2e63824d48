"""Cases that time basic operations of given sizes."""

from typing import Any

import pandas as pd
from rich.console import RenderableType

from charact.analysis.operations.timings import operation_cases, operation_times, suite_totals
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table
from charact.views.document import Bar, Card, Number, Part
from charact.views.html.elements.blocks import failure_of
from charact.views.tables import format as fmt
from charact.views.tables import operation_tables, palette
from charact.views.terminal import operations as terminal

_NUM_CARDS = 12


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    totals, problems = suite_totals(run), operation_cases(run)
    few = f"Cards show the {_NUM_CARDS} slowest of {len(problems)} problems."
    note = few if len(problems) > _NUM_CARDS else ""
    shown = operation_tables.totals(totals) if len(totals) else operation_tables.headlines(problems, note=note)
    return Overview(_cards(run), shown)


def _cards(run: Run) -> list[Card]:
    """Return a card per operation of a suite, and one for each of the slowest single problems."""
    cases = operation_cases(run)
    times = operation_times(run)
    shown = [_suite_card(row, times) for row in fmt.rows(suite_totals(run))]
    own = cases[cases["suite"].isna()].sort_values("time_s", ascending=False, kind="stable", na_position="first")
    return shown + [_problem_card(row, times[times["case"] == row.case]) for row in fmt.rows(own.head(_NUM_CARDS))]


def _suite_card(row: Any, times: pd.DataFrame) -> Card:
    words = [row.suite, row.set, row.operation, row.layout, row.precision, row.device]
    name = " · ".join(str(word) for word in words if pd.notna(word))
    counted = f"{row.num_problems} problem{'' if row.num_problems == 1 else 's'}, each once"
    if pd.isna(row.total_s):
        return Card(name, several=True, failure=("failed", f"all of {counted.removesuffix(', each once')}"))
    same = times[(times["status"] == "ok") & times["median_s"].notna()]
    for column, word in zip(["suite", "set", "operation", "layout", "precision", "device"], words, strict=True):
        same = same[same[column].isna() if pd.isna(word) else same[column] == word]
    return Card(
        name, several=True, headline=Number("total execution time", fmt.duration(row.total_s)), details=[counted],
        warnings=[f"{row.num_failed} failed and are left out"] if row.num_failed else [],
        numbers=[Number("FLOP", fmt.num_flop(row.flop, operation_tables.no_flop(row))),
                 Number("rate", fmt.flop_rate(row.flop_per_s, operation_tables.no_flop(row)))],
        bars=_bars(same),
    )  # fmt: skip


def _problem_card(row: Any, times: pd.DataFrame) -> Card:
    failure = failure_of(row.status, row.reason)
    if pd.isna(row.time_s):
        return Card(row.case, failure=failure or ("no data", "the record has no repetitions"))
    first = next(fmt.rows(times))
    interval = fmt.interval(first.low_s, first.high_s, "fewer than 6 repetitions")
    of = "" if len(times) == 1 else f"{fmt.DIRECTIONS[first.direction]} "
    rate = Number(f"{of}bandwidth", fmt.byte_rate(first.bytes_per_s)) if pd.isna(first.flop_per_s) else \
        Number(f"{of}rate", fmt.flop_rate(first.flop_per_s))
    return Card(
        row.case, failure=failure,
        headline=Number("a call" if len(times) == 1 else "all directions", fmt.seconds(row.time_s)),
        details=[f"{fmt.DIRECTIONS[first.direction]}: 95 % interval {interval}"],
        numbers=[rate, Number("of the ceiling", fmt.share(first.share_frac, operation_tables.no_share(first)))],
        bars=_bars(times.dropna(subset=["median_s"])),
    )  # fmt: skip


def _bars(times: pd.DataFrame) -> list[Bar]:
    """Return the bar of directions; none if there is only one."""
    sums = times.groupby("direction", sort=False)["median_s"].sum()
    parts = [Part(fmt.DIRECTIONS[str(name)], float(time_s / sums.sum()), palette.DIRECTIONS[str(name)])
             for name, time_s in sums.items()]
    return [Bar("Time by direction", parts)] if len(parts) > 1 else []


def _details(run: Run, cases: pd.DataFrame) -> list[RenderableType]:
    return terminal.blocks(run)


_PARTS = {
    "directions": CasePart(operation_times, (
        "direction", "median_s", "low_s", "high_s", "num_repetitions", "flop_per_s", "bytes_per_s", "share_frac",
        "limit", "max_error", "tolerance", "time_reason", "share_reason"),
        ("direction", "median_s", "flop_per_s", "bytes_per_s", "share_frac", "share_reason")),
}  # fmt: skip

KIND = CaseKind("operation", 50, _overview, operation_cases, in_one_table(operation_tables.headlines), details=_details,
                shows_failures=True, parts=_PARTS)
