"""Findings in the terminal's summary: the first ones, each with its remedy, place and saving."""

from rich.console import RenderableType
from rich.text import Text

from charact.analysis.findings import findings, has_findings, largest_part, program_time
from charact.record.reader import Run
from charact.views.tables import finding_text
from charact.views.tables import format as fmt
from charact.views.terminal.case_lines import Hanging


def finding_lines(run: Run) -> list[RenderableType]:
    """Return the first findings about a watched program as lines; none for other runs and for older records."""
    if not has_findings(run):
        return []
    rows, parts = findings(run), program_time(run)
    lines: list[RenderableType] = []
    if rows.empty:
        lines = [Hanging(Text(finding_text.nothing(largest_part(run)), style="dim"))]
    for number, row in enumerate(fmt.rows(rows.head(finding_text.NUM_FIRST)), 1):
        lines += [
            Hanging(Text.assemble(f"{number}. ", (finding_text.sentence(row.cause), "bold"))),
            Hanging(Text.assemble("   saves ", (finding_text.saving(row), "green"),
                                  (f" ({basis})" if (basis := finding_text.basis(row, "")) else "", "dim"))),
            *([Hanging(Text(f"   {where}", style="cyan"))] if (where := finding_text.place(row)) else []),
            *(Hanging(Text(f"   {text}", style="dim")) for text in row.evidence[:2]),
            Hanging(Text.assemble("   → ", finding_text.sentence(row.remedy))),
        ]  # fmt: skip
    if len(rows) > finding_text.NUM_FIRST:
        lines.append(Text(f"   {len(rows) - finding_text.NUM_FIRST} more in the report", style="dim"))
    if len(parts):
        lines.append(Hanging(Text(finding_text.sentence(finding_text.program_parts(parts)), style="dim")))
    return [*lines, Text()]
