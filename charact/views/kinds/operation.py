"""Cases that time basic operations of given sizes."""

from dataclasses import replace
from typing import Any

import pandas as pd

from charact.analysis.operations.sparsity import sparse_crossover
from charact.analysis.operations.timings import operation_cases, operation_times, suite_totals
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table, takes
from charact.views.document import Card, Chapter, Item, Line, Lines, Number, Numbers, ShareBar, bar, failure_line
from charact.views.html.elements.blocks import failure_of
from charact.views.tables import format as fmt
from charact.views.tables import operation_tables, palette
from charact.views.tables.model import Cell, Column, table

_NUM_CARDS = 12
_NUM_PROBLEMS = 15
"""Largest number of problems of an operation in a summary: the slowest ones."""
_PLACE = ["suite", "set", "operation", "layout", "precision", "device"]


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    """Build a card per operation of a suite, one for each of the slowest single problems, and a table."""
    totals, problems, times = suite_totals(run), operation_cases(run), operation_times(run)
    few = f"Cards show the {_NUM_CARDS} slowest of {len(problems)} problems."
    note = few if len(problems) > _NUM_CARDS else ""
    own = problems[problems["suite"].isna()].sort_values("time_s", ascending=False, kind="stable", na_position="first")
    cards = [_suite_card(row, times) for row in fmt.rows(totals)]
    cards += [_problem_card(row, times[times["case"] == row.case]) for row in fmt.rows(own.head(_NUM_CARDS))]
    return Overview(cards, operation_tables.totals(totals) if len(totals) else
                    operation_tables.headlines(problems, note=note))


def _suite_card(row: Any, times: pd.DataFrame) -> Card:
    facts = {name: getattr(row, name) for name in _PLACE}
    name = " · ".join(str(fact) for fact in facts.values() if pd.notna(fact))
    counted = f"{row.num_problems} problem{'' if row.num_problems == 1 else 's'}"
    if pd.isna(row.total_s):
        return Card(name, several=True, failure=("failed", f"all of {counted}"))
    same = times[(times["status"] == "ok") & times["median_s"].notna()]
    for column, fact in facts.items():
        same = same[same[column].isna() if pd.isna(fact) else same[column] == fact]
    return Card(
        name, several=True, headline=Number("total execution time", fmt.duration(row.total_s)),
        details=[f"{counted}, each once"],
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


def _bars(times: pd.DataFrame) -> list[ShareBar]:
    """Return the bar of directions; none if there is only one."""
    sums = times.groupby("direction", sort=False, as_index=False)["median_s"].sum()
    sums = sums.assign(share_frac=sums["median_s"] / sums["median_s"].sum(), name=sums["direction"].map(fmt.DIRECTIONS))
    colors = {fmt.DIRECTIONS[name]: color for name, color in palette.DIRECTIONS.items()}
    return [bar("Time by direction", sums, "name", colors.__getitem__, amount="median_s")] if len(sums) > 1 else []


def _summary(run: Run) -> list[Item]:
    """Return totals of suites, a table of problems for each operation, precision and device, crossovers, failures."""
    times, totals = operation_times(run), suite_totals(run)
    items: list[Item] = []
    if len(totals):
        named = operation_tables.totals(totals)
        names = [" ".join(map(str, row[_PLACE].dropna())) for _, row in totals.iterrows()]
        rows = [replace(row, cells=[Cell(name), *row.cells[1:]]) for row, name in zip(named.rows, names, strict=True)]
        items.append(Numbers(replace(named, rows=rows), (
            "total_s", "num_problems", "num_failed", "flop", "published_flop", "flop_per_s")))
    for key, group in times[times["status"] == "ok"].groupby(["operation", "precision", "device"], sort=False):
        hot = ["hot"] if (group["hot"] == "yes").all() else []
        items.append(Chapter(", ".join([*map(str, key), *hot]), [_problems(group)]))
    crossovers = [Line(" ".join([row.size, row.layout, fmt.DIRECTIONS[row.direction], row.precision, row.device]),
                       ": sparse is faster below a density of ", (fmt.crossover(row), "strong"))
                  for row in fmt.rows(sparse_crossover(run))]
    return [*items, *([Line(), *crossovers] if crossovers else []),
            *(failure_line(f"{row.problem} {row.precision}", row.status, fmt.failure(row.status, row.reason))
              for row in fmt.rows(operation_cases(run).query("status != 'ok'")))]


def _problems(rows: pd.DataFrame) -> Lines:
    """Return the slowest problems of one operation in the order they ran, a row for each direction, and notes."""
    longest = rows.groupby("case", sort=False)["median_s"].sum().nlargest(_NUM_PROBLEMS)
    slowest = rows[rows["case"].isin(longest.index)]
    directed = (slowest["direction"] != "forward").any()
    names = [(row.problem.partition(":")[2] or row.problem) + (f" {fmt.DIRECTIONS[row.direction]}" if directed else "")
             for row in fmt.rows(slowest)]
    slowest = slowest.assign(name=names, half_frac=(slowest["high_s"] - slowest["low_s"]) / 2 / slowest["median_s"])

    def missing(otherwise: str) -> Any:
        return lambda row: row.time_reason if isinstance(row.time_reason, str) else otherwise

    columns = [
        Column("name", "Problem"), Column("median_s", "Time", fmt.seconds, "", missing("not timed")),
        Column("half_frac", "±", fmt.share, "", missing("few")),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "", missing("not counted")),
        Column("bytes_per_s", "Bytes/s", fmt.byte_rate, "", missing("not counted")),
        Column("share_frac", "Ceiling", fmt.share, "", operation_tables.no_share),
        Column("max_error", "Error", fmt.error, "", missing("not checked"),
               is_fault=lambda row: bool(row.max_error > row.tolerance)),
    ]  # fmt: skip
    notes = [Line((operation_tables.notes(rows), "warning"))] if operation_tables.notes(rows) else []
    notes += [Line((f"{row.problem} {fmt.DIRECTIONS[row.direction]}: error {fmt.error(row.max_error)}, more than the "
                    f"{fmt.error(row.tolerance)} that {row.precision} allows", "warning"))
              for row in fmt.rows(rows[rows["max_error"] > rows["tolerance"]])]
    if len(slowest) < len(rows):
        notes.append(Line((f"the {len(longest)} slowest of {rows['case'].nunique()} problems; the report and charact "
                           "export have all", "dim")))
    return Lines([Numbers(table(slowest, "", columns), [column.name for column in columns[1:]]), *notes])


_PARTS = {
    "directions": CasePart(operation_times, (
        "direction", "median_s", "low_s", "high_s", "num_repetitions", "flop_per_s", "bytes_per_s", "share_frac",
        "limit", "max_error", "tolerance", "time_reason", "share_reason"),
        whole=True),
}  # fmt: skip


def _answer(run: Run, cases: pd.DataFrame) -> str:
    return takes(operation_cases(run), "time_s", fmt.seconds, "a call")


KIND = CaseKind("operation", 50, _overview, operation_cases, in_one_table(operation_tables.headlines), answer=_answer,
                summary=_summary, parts=_PARTS)
