"""The section of a comparison that attributes the differences: waterfalls and their tables."""

from collections.abc import Sequence

from charact.analysis.compare import Side
from charact.analysis.compare.selection import in_pair, most_different
from charact.analysis.compare.waterfall import operator_steps, phase_steps
from charact.views.html.comparison.sections import MAX_PLACES, left_out_places
from charact.views.html.elements.blocks import Block, Body
from charact.views.html.elements.waterfall import waterfall
from charact.views.tables import difference_tables

_LEAD = (
    "From the baseline’s median iteration to the candidate’s, step by step: slower steps point to the right. Steps "
    "sum to the difference of the medians. Operators are shares of their phases under the profiler, scaled to the "
    "phases’ times; the rest of a phase is “outside operators”."
)


def explanations(sides: Sequence[Side]) -> Body:
    """Build the section: steps that account for the difference of each matched case."""
    blocks = []
    places, num_left = most_different(sides, MAX_PLACES)
    for side in sides[1:]:
        cases = in_pair(sides, side, {case for case, label in places if label == side.label})
        for each in difference_tables.explanations(sides[0], side, cases) if cases else []:
            title = f"{each.case}: {side.label}" if len(sides) > 2 else each.case
            blocks += _blocks(each, title, (sides[0].label, side.label)) if each.tables else []
    if not blocks:
        return Body(blocks=[Block(note="No case was timed in both groups.")])
    return Body(lead=f"{_LEAD} {left_out_places(num_left)}".strip(), blocks=blocks)


def _blocks(each: "difference_tables.Explanation", title: str, labels: tuple[str, str]) -> list[Block]:
    steps = {"Phases": phase_steps(each.rows), "Operators": operator_steps(each.rows)}
    drawn = [waterfall(f"{what} of {title}", rows, labels) for what, rows in steps.items() if len(rows)]
    note = "" if each.significant else "This difference is not significant: the steps may be noise."
    first, *others = each.tables
    return [Block(title=title, case=each.case, figures=drawn, table=first, note=note),
            *(Block(case=each.case, table=table, folded=True) for table in others)]
