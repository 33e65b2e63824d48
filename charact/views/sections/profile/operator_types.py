"""The section Operator types."""

from collections.abc import Sequence

from charact.analysis.common.pass_status import was_asked_for
from charact.analysis.profile.breakdown import case_operator_types, operator_types
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.record.reader import Run
from charact.views.document import Block, Body, Item, Part, ShareBar
from charact.views.figures import bars
from charact.views.html.elements.blocks import CASE, PHASE, operator_legend
from charact.views.section import Section, body_of
from charact.views.sections.profile._shared import no_bar
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table

_NUM_TYPES = 5
"""Number of types in a summary."""
_LEAD = (
    f"Kinds of work under the profiler, which lengthens short operators. “{OUTSIDE_OPERATORS}” is Python, the data "
    "loader, and waiting."
)


def _html(run: Run) -> Body:
    """Return a bar per case, or per phase of the only case, and the table of types in each phase."""
    of_phases, of_cases = operator_types(run), case_operator_types(run)
    columns = [
        CASE, PHASE, Column("operator_type", "Operator type"),
        Column("time_s", "Time", fmt.seconds, "per iteration, under the profiler"),
        share_column("share_frac", "Share of the phase", "part of the phase's time under the profiler"),
        Column("num_calls", "Calls", fmt.number, "operators per iteration", lambda row: "not operators"),
    ]  # fmt: skip
    if of_phases.empty:
        return body_of(run, "operators", _LEAD, [], [])
    figure = bars.types_by_case(of_cases) if of_cases["case"].nunique() > 1 else bars.types_by_phase(of_phases)
    block = Block(figures=[figure], legend=operator_legend(of_cases["operator_type"].astype(str)),
                  table=table(of_phases, "Operator types in each phase", columns))
    return body_of(run, "operators", _LEAD, [block], of_phases["case"])


def _summary(run: Run, case: str) -> Sequence[Item]:
    """Return a bar of the operator types with the longest times."""
    if not was_asked_for(run, "operators"):
        return []
    types = case_operator_types(run)
    times = types[types["case"] == case].set_index("operator_type")["time_s"].sort_values(ascending=False)
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
