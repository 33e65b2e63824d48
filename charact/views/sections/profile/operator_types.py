"""The section Operator types."""

from typing import Any

from rich.console import RenderableType

from charact.analysis.common.pass_status import was_asked_for
from charact.analysis.profile import breakdown as breakdown_analysis
from charact.analysis.profile.breakdown import OUTSIDE_OPERATORS
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements import bars
from charact.views.html.elements.blocks import PHASE, missing_cases, why_nothing
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table
from charact.views.terminal.bars import Bar, Part
from charact.views.terminal.case_lines import nothing


def operator_types(run: Run) -> Body:
    """Build the section: time by operator type in each phase, a figure per case."""
    types = breakdown_analysis.operator_types(run)
    if types.empty:
        return Body(blocks=[Block(note=why_nothing(run, "operators"))])
    columns = [
        PHASE, Column("operator_type", "Operator type"),
        Column("time_s", "Time", fmt.seconds, "per iteration, under the profiler"),
        share_column("share_frac", "Share of the phase", "part of the phase's time under the profiler"),
        Column("num_calls", "Calls", fmt.number, "operators per iteration", lambda row: "not operators"),
    ]  # fmt: skip
    blocks = []
    for case, rows in types.groupby("case", sort=False):
        names = rows.groupby("operator_type")["time_s"].sum().sort_values(ascending=False).index
        blocks.append(Block(
            title=str(case), case=str(case), figures=[bars.operator_types(str(case), rows)],
            legend=[(str(name), palette.operator_type(str(name))) for name in names],
            table=table(rows, f"Operator types of {case}", columns),
        ))  # fmt: skip
    lead = (
        "Kinds of work in each phase, measured under the profiler, which lengthens short operators: compare "
        f"shares rather than times. “{OUTSIDE_OPERATORS}” is the time of a phase outside of any operator: Python, "
        "the data loader, waiting."
    )
    return Body(lead=lead, blocks=[*blocks, *missing_cases(run, "operators", types["case"])])


_NUM_TYPES = 5


def _terminal(run: Run, case: Any) -> list[RenderableType]:
    if not was_asked_for(run, "operators"):
        return []
    types = breakdown_analysis.operator_types(run)
    times = types[types["case"] == case["case"]].groupby("operator_type")["time_s"].sum()
    times = times.sort_values(ascending=False)
    if times.empty or not times.sum():
        return nothing(run, case, "time by operator type", "operators")
    top, rest = times.iloc[:_NUM_TYPES], times.iloc[_NUM_TYPES:]
    parts = [
        Part(str(name), time_s / times.sum(), fmt.seconds(time_s), palette.operator_type(str(name)))
        for name, time_s in top.items()
    ]
    if len(rest):
        name = f"{len(rest)} more"
        parts.append(Part(name, rest.sum() / times.sum(), fmt.seconds(rest.sum()), palette.REMAINDER))
    return [Bar("time by operator type (under the profiler)", parts)]


SECTION = Section("operator-types", "Operator types", 130, operator_types, ("operators",), ("operators",),
                  terminal=_terminal,
                  points={"operators": [
    ("Operators, operator types, layers", "operator pass: PyTorch’s profiler over a few separate iterations, of "
     "which the faster half is used. It lengthens short operators; the table below shows its overhead ratio."),
]},
                  trace_points={"operators": [
    ("Operators, operator types, layers",
     "from the same iterations. On a device an operator’s time is that of the kernels it launched itself."),
]})
