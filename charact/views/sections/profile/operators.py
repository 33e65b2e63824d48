"""The section Operators."""

from charact.analysis.profile.breakdown import top_operators
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import CASE, PHASE
from charact.views.section import Section, body_of
from charact.views.sections.profile._shared import NUM_TOP, flop_columns
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table, top


def _html(run: Run) -> Body:
    rows, note = top(top_operators(run), NUM_TOP)
    rows = rows.sort_values("time_s", ascending=False, kind="stable")
    columns = [
        Column("operator", "Operator"),
        share_column("share_frac", "Share", "part of the operator time of the case's iteration"), CASE,
        Column("time_s", "Time", fmt.seconds, "per iteration without nested operators, under the profiler"),
        PHASE, Column("operator_type", "Type", unbroken=True),
        Column("num_calls", "Calls", fmt.number, "per iteration"),
        *flop_columns(run, "per iteration", "FLOP / time under the profiler"),
    ]  # fmt: skip
    return body_of(run, "operators", "The slowest operators, summed over layers and shapes. Click a heading to sort.",
                   [Block(table=table(rows, "Operators by time", columns, note))] if len(rows) else [], rows["case"])


SECTION = Section("operators", "Operators", 140, _html, ("operators",), ("operators",))
