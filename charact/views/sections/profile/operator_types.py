"""The section Operator types."""

from collections.abc import Sequence

from charact.analysis.common.pass_status import was_asked_for
from charact.analysis.profile import breakdown as breakdown_analysis
from charact.analysis.profile.breakdown import OUTSIDE_OPERATORS
from charact.record.reader import Run
from charact.views.document import Block, Body, Item, Part, ShareBar
from charact.views.figures import bars
from charact.views.html.elements.blocks import PHASE
from charact.views.section import Section, body_of
from charact.views.sections.profile._shared import no_bar
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table

_NUM_TYPES = 5
"""Number of types in a summary."""
_LEAD = (
    "Kinds of work in each phase, measured under the profiler, which lengthens short operators: compare "
    f"shares rather than times. “{OUTSIDE_OPERATORS}” is the time of a phase outside of any operator: Python, "
    "the data loader, waiting."
)


def _html(run: Run) -> Body:
    types = breakdown_analysis.operator_types(run)
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
    return body_of(run, "operators", _LEAD, blocks, types["case"])


def _summary(run: Run, case: str) -> Sequence[Item]:
    """Return a bar of the operator types with the longest times."""
    if not was_asked_for(run, "operators"):
        return []
    types = breakdown_analysis.operator_types(run)
    times = types[types["case"] == case].groupby("operator_type")["time_s"].sum().sort_values(ascending=False)
    if times.empty or not times.sum():
        return no_bar(run, case, "Time by operator type", "operators")
    parts = [Part(str(name), time_s / times.sum(), palette.operator_type(str(name)), fmt.seconds(time_s))
             for name, time_s in times.iloc[:_NUM_TYPES].items()]
    if len(rest := times.iloc[_NUM_TYPES:]):
        parts.append(Part(f"{len(rest)} more", rest.sum() / times.sum(), palette.REMAINDER, fmt.seconds(rest.sum())))
    return [ShareBar("Time by operator type, under the profiler", parts)]


SECTION = Section("operator-types", "Operator types", 130, _html, ("operators",), ("operators",),
                  summary=_summary,
                  points={"operators": [
    ("Operators, operator types, layers", "operator pass: PyTorch’s profiler over a few separate iterations, of "
     "which the faster half is used. It lengthens short operators; the table below shows its overhead ratio."),
]},
                  trace_points={"operators": [
    ("Operators, operator types, layers",
     "from the same iterations. On a device an operator’s time is that of the kernels it launched itself."),
]})
