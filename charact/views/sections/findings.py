"""The section Findings: what costs a watched program time and memory, and what to do about it."""

from charact.analysis.findings import findings, has_findings, largest_part, program_time
from charact.record.reader import Run
from charact.views.document import Block, Body
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


SECTION = Section("findings", "Findings", 5, _html, shows=has_findings)
