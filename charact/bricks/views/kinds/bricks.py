"""Cases that time a suite of bricks."""

from typing import Any

import pandas as pd

from charact.bricks.analysis import tables
from charact.bricks.views.comparison import brick_tables
from charact.bricks.views.tables import LAYERS, bar_of_types
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table, takes
from charact.views.document import Card, Item, Lines, Number, failure_line
from charact.views.html.elements.blocks import CASE, STATUS, failure_of
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, Table, table

_NUM_BRICKS = 10
"""Largest number of slowest and of failed bricks in the terminal."""


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    """Build a card for each case: time of all bricks, their number, and shares by layer type."""
    types, suites = tables.brick_types(run), tables.suite_summary(run)
    return Overview([_card(row, types[types["case"] == row.case]) for row in fmt.rows(suites)], _table(suites))


def _card(row: Any, types: pd.DataFrame) -> Card:
    failure = failure_of(row.status, row.reason)
    if pd.isna(row.suite_s):
        return Card(row.case, failure=failure or ("no data", "the record has no brick times"))
    left_out = [Number("left to the regression", fmt.number(row.num_left_out))] if row.num_left_out else []
    return Card(
        row.case, failure=failure, headline=Number("every brick once", fmt.seconds(row.suite_s)),
        details=["in context: all bricks take turns"],
        warnings=[f"{row.num_failed:.0f} of {row.num_bricks:.0f} bricks have no time"] if row.num_failed else [],
        numbers=[Number("bricks", fmt.number(row.num_bricks)), *left_out,
                 Number("rounds", fmt.number(row.num_rounds, "not recorded")),
                 Number("timing took", fmt.duration(row.timed_s, "not recorded"))],
        bars=[bar_of_types("Time by type of layer", types)])


def _table(rows: pd.DataFrame, *more: Column) -> Table:
    """Build the table of suites; `more` columns follow the case."""
    def untimed(row: Any) -> str:
        return "nothing was timed" if row.status == "ok" else str(row.status)

    columns = [
        CASE, *more, STATUS, Column("suite_s", "Every brick once", fmt.seconds, "sum of the medians", untimed),
        Column("num_bricks", "Bricks", fmt.number), Column("num_failed", "Without a time", fmt.number),
        Column("num_layers", "Layers", fmt.number, "of all bricks", lambda row: "no bricks"),
        Column("num_rounds", "Rounds", fmt.number, "over all bricks", lambda row: "not recorded"),
        Column("timed_s", "Timing took", fmt.duration, "", lambda row: "not recorded"),
        Column("set_up_s", "Setup took", fmt.duration, "inputs, weights, untimed calls", lambda row: "not recorded"),
    ]  # fmt: skip
    return table(rows, "Suites of bricks", columns)


def _details(run: Run, case: str) -> list[Item]:
    """Return the slowest bricks of a case, and those that failed."""
    bricks = tables.brick_summary(run).query("case == @case")
    timed, failed = bricks.dropna(subset=["time_s"]), bricks[tables.has_failed(bricks)]
    left_out = [max(0, len(rows) - _NUM_BRICKS) for rows in (timed, failed)]
    more = [f"{number} more{what}: see the report or charact export" if number else ""
            for number, what in zip(left_out, ("", " failed"), strict=True)]
    slowest = table(timed.head(_NUM_BRICKS), "Slowest bricks", [
        Column("brick", "Brick"), LAYERS, Column("time_s", "Time", fmt.seconds),
        Column("share_frac", "Share", fmt.share),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "", lambda row: "none counted")], " ".join(filter(None, more)))
    lines = [failure_line(f"{row.brick} {row.layers}", row.status, fmt.failure(row.status, row.reason))
             for row in fmt.rows(failed.head(_NUM_BRICKS))]
    return [slowest, *([Lines(lines)] if lines else [])]


_PARTS = {
    "layer_types": CasePart(tables.brick_types, (
        "layers", "operator_type", "num_bricks", "time_s", "share_frac", "flop_per_s")),
    "bricks": CasePart(tables.brick_summary, (
        "brick", "layers", "input_shapes", "time_s", "low_s", "high_s", "share_frac", "flop_per_s", "status",
        "time_reason")),
}  # fmt: skip


def _answer(run: Run, cases: pd.DataFrame) -> str:
    return takes(tables.suite_summary(run), "suite_s", fmt.seconds, "for each brick once")


KIND = CaseKind("bricks", 60, _overview, tables.suite_summary, in_one_table(_table), answer=_answer,
                first=("suite_s", "num_bricks", "num_layers", "num_rounds", "timed_s", "set_up_s"), details=_details,
                parts=_PARTS, compared=brick_tables)
