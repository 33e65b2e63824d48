"""Cases that time a suite of bricks."""

from typing import Any

import pandas as pd

from charact.bricks.analysis import tables
from charact.bricks.views.comparison import brick_tables
from charact.bricks.views.summary import suite
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table
from charact.views.document import Bar, Card, Number, Part
from charact.views.html.elements.blocks import CASE, STATUS, failure_of
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, table

_METHODS = {"contextual": "in context: all bricks take turns", "paper": "warm: each repeated back to back"}


def _cards(run: Run) -> list[Card]:
    """Return a card for each case: time of all bricks, their number, and shares by layer type."""
    types = tables.brick_types(run)
    return [_card(row, types[types["case"] == row.case]) for row in fmt.rows(tables.suite_summary(run))]


def _card(row: Any, types: pd.DataFrame) -> Card:
    failure = failure_of(row.status, row.reason)
    if pd.isna(row.suite_s):
        return Card(row.case, failure=failure or ("no data", "the record has no brick times"))
    kinds = types.groupby("operator_type", sort=False)["share_frac"].sum()
    return Card(
        row.case, failure=failure, headline=Number("every brick once", fmt.seconds(row.suite_s)),
        details=[_METHODS.get(row.method, f"n/a ({row.method})")],
        warnings=[f"{row.num_failed:.0f} of {row.num_bricks:.0f} bricks have no time"] if row.num_failed else [],
        numbers=[Number("bricks", fmt.number(row.num_bricks)),
                 Number("rounds", fmt.number(row.num_rounds, "not recorded")),
                 Number("took", fmt.duration(row.timed_s, "not recorded"))],
        bars=[Bar("Time by type of layer", [Part(str(kind), float(share), palette.operator_type(str(kind)))
                                            for kind, share in kinds.items()])],
    )  # fmt: skip


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


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    return Overview(_cards(run), _table(tables.suite_summary(run)))


_PARTS = {
    "layer_types": CasePart(tables.brick_types, (
        "layers", "operator_type", "num_bricks", "time_s", "share_frac", "flop_per_s")),
    "bricks": CasePart(tables.brick_summary, (
        "brick", "layers", "input_shapes", "time_s", "low_s", "high_s", "share_frac", "flop_per_s", "status",
        "time_reason")),
}  # fmt: skip

KIND = CaseKind("bricks", 60, _overview, tables.suite_summary, in_one_table(_table),
                summary=suite, parts=_PARTS, compared=brick_tables)
