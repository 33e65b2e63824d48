"""The summary of a run as one page of Markdown: `charact show --md`."""

from collections import Counter
from dataclasses import replace

from charact.record.reader import Run
from charact.views.document import Chapter, Item, Lines
from charact.views.export.markdown import escaped, item_lines, table_lines
from charact.views.export.run_summary import Data, not_measured, run_facts, shareable
from charact.views.section import all_sections
from charact.views.summary import summary
from charact.views.tables.counter_text import counter_value
from charact.views.tables.model import Table

MAX_LINES = 200
_NUM_ROWS = (10, 5, 3, 1, 0)
"""Numbers of rows of a case in the tables; the first with which everything fits is used."""
_TABLES = ("operators", "layers", "kernels")
"""Sections whose tables follow the cases."""


def summary_markdown(run: Run) -> str:
    """Return the summary of a run in at most `MAX_LINES` lines of Markdown."""
    run = shareable(run)
    items = summary(run).items
    head = [f"# {escaped(run.run_id)}", "", *_facts(run_facts(run)), *_lines([
        item for item in items if not isinstance(item, Chapter)])]
    chapters = [_lines([item]) for item in items if isinstance(item, Chapter)]
    missing = _not_measured(run)
    room = MAX_LINES - len(head) - len(missing)
    tables = [block.table for section in all_sections() if section.id in _TABLES and section.belongs_to(run)
              for block in section.html(run).blocks if block.table is not None]
    for num_rows in _NUM_ROWS:
        below = [line for table in tables for line in table_lines(_first(table, num_rows))] if num_rows else []
        if sum(map(len, chapters)) + len(below) <= room:
            break
    lines: list[str] = []
    for number, chapter in enumerate(chapters):
        if len(lines) + len(chapter) + len(below) >= room:
            lines += [f"{len(chapters) - number} more cases are left out: `charact show --json` has all."]
            break
        lines += chapter
    whole = [*head, *lines, *below, *missing]
    return "\n".join(whole[:MAX_LINES]).rstrip("\n")


def _lines(items: list[Item]) -> list[str]:
    """Return the lines of items, without repeated empty ones."""
    lines = item_lines(Lines(items))
    return [line for line, before in zip(lines, [" ", *lines], strict=False) if line or before]


def _facts(facts: Data) -> list[str]:
    of_run, machine, software = facts["run"], facts["machine"], facts["software"]
    gpus = ", ".join(machine["gpus"]) or f"no GPU ({machine['no_gpu_reason'] or 'none recorded'})"
    lines = {
        "Run": f"{of_run['status']}, {of_run['started']}, in {of_run['path']}", "Command": of_run["command"],
        "Machine": f"{machine['cpu']}, {machine['num_usable_cores']} cores, "
                   f"{counter_value('memory_bytes', machine['memory_bytes'])}; {gpus}; {machine['os']}",
        "Software": ", ".join(f"{name} {version}" for name, version in software.items() if version is not None),
    }  # fmt: skip
    return [*(f"- {title}: {escaped(text)}" for title, text in lines.items() if text), ""]


def _first(table: Table, num_rows: int) -> Table:
    """Return the table with the first rows of each case."""
    seen: Counter[str | None] = Counter()
    rows = []
    for row in table.rows:
        seen[row.case] += 1
        rows += [row] if seen[row.case] <= num_rows else []
    left = len(table.rows) - len(rows)
    return replace(table, rows=rows, note=f"{left} more rows: `charact export`." if left else "")


def _not_measured(run: Run) -> list[str]:
    """Return a line with everything that was not measured in all cases, and one for each other case."""
    texts = {case: [f"{each['what']} ({each['reason']})" for each in missing]
             for case, missing in not_measured(run).items()}
    if not texts:
        return []
    everywhere = [text for text in next(iter(texts.values())) if all(text in others for others in texts.values())]
    lines = [f"- not measured: {escaped('; '.join(everywhere))}"] if everywhere else []
    for case, missing in texts.items():
        if rest := [text for text in missing if text not in everywhere]:
            lines.append(f"- not measured in {escaped(case)}: {escaped('; '.join(rest))}")
    return ["## Not measured", "", *lines[:12], ""] if lines else []
