"""The section Findings: what costs a watched program time and memory, and what to do about it."""

from charact.analysis.findings import findings, has_findings, largest_part, program_time
from charact.record.reader import Run
from charact.views.document import Block, Body, Item, Line
from charact.views.section import Section
from charact.views.tables import finding_text
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table

_LEAD = (
    "Causes of lost time and memory, the largest recoverable time first. A range is an estimate of what the remedy "
    "saves of the whole program, without charact’s own time; charact compare --ab measures it."
)
_COLUMNS = [Column("part", "Part"), Column("time_s", "Time", fmt.seconds, "host time"),
            share_column("share_frac", "Share", "part of the program’s wall time")]


def _html(run: Run) -> Body:
    rows, parts = findings(run), program_time(run)
    several = rows["case"].nunique() > 1
    blocks = []
    for number, row in enumerate(fmt.rows(rows), 1):
        where = finding_text.place(row)
        points = [("To do", finding_text.sentence(row.remedy)), *([("Where", where)] if where else []),
                  ("Saves", f"{finding_text.saving(row)} ({finding_text.basis(row, 'measured')}, "
                            f"confidence {row.confidence})"),
                  ("Evidence", "; ".join([*row.evidence, *([f"in {row.case}"] if several else [])]))]
        blocks.append(Block(title=f"{number}. {finding_text.sentence(row.cause)}", case=row.case, points=points))
    if len(parts):
        parts_table = table(parts, "Time of the program by part; the parts sum to its wall time", _COLUMNS)
        blocks.append(Block(title="Time of the program by part", folded=True, table=parts_table))
    return Body(lead=_LEAD if len(rows) else f"{finding_text.nothing(largest_part(run))}.", blocks=blocks)


def first_findings(run: Run) -> list[Item]:
    """Return the first findings about a watched program as lines; none for other runs and for older records."""
    if not has_findings(run):
        return []
    rows, parts = findings(run), program_time(run)
    lines = [] if len(rows) else [Line((finding_text.nothing(largest_part(run)), "dim"))]
    for number, row in enumerate(fmt.rows(rows.head(finding_text.NUM_FIRST)), 1):
        basis, where = finding_text.basis(row, ""), finding_text.place(row)
        lines += [
            Line(f"{number}. ", (finding_text.sentence(row.cause), "strong")),
            Line("   saves ", (finding_text.saving(row), "good"), (f" ({basis})" if basis else "", "dim")),
            *([Line((f"   {where}", "place"))] if where else []),
            *(Line((f"   {text}", "dim")) for text in row.evidence[:2]),
            Line(f"   → {finding_text.sentence(row.remedy)}"),
        ]  # fmt: skip
    if len(rows) > finding_text.NUM_FIRST:
        lines.append(Line((f"   {len(rows) - finding_text.NUM_FIRST} more in the report", "dim")))
    if len(parts):
        lines.append(Line((finding_text.sentence(finding_text.program_parts(parts)), "dim")))
    return [*lines, Line()]


SECTION = Section("findings", "Findings", 5, _html, shows=has_findings)
