"""The section Operators."""

from charact.analysis.profile.breakdown import top_operators
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import CASE, PHASE, missing_cases, why_nothing
from charact.views.section import Section
from charact.views.sections.profile._shared import flop_columns
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table, top

_NUM_TOP = 25


def operators(run: Run) -> Body:
    """Build the section: the slowest operators of each case."""
    rows, note = top(top_operators(run), _NUM_TOP)
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "operators"))])
    columns = [
        CASE, Column("operator", "Operator"),
        share_column("share_frac", "Share", "part of the operator time of the case's iteration"),
        Column("time_s", "Time", fmt.seconds, "per iteration without nested operators, under the profiler"),
        PHASE, Column("operator_type", "Type", unbroken=True),
        Column("num_calls", "Calls", fmt.number, "per iteration"),
        *flop_columns(run, "per iteration", "FLOP / time under the profiler"),
    ]  # fmt: skip
    return Body(
        lead="The slowest operators, summed over layers and shapes. Click a heading to sort.",
        blocks=[Block(table=table(rows, "Operators by time", columns, note)),
                *missing_cases(run, "operators", rows["case"])],
    )  # fmt: skip


SECTION = Section("operators", "Operators", 140, operators, ("operators",), ("operators",))
