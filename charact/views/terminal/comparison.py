"""Terminal view of a comparison: its tables in sequence."""

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from charact.core.console import Console
from charact.core.output import show
from charact.views.tables.model import Column, Row, Table
from charact.views.terminal.renderer import rich_table

_STYLES = {"slower": "red", "faster": "green"}
"""Colors of verdicts. Others have none: whether they are good depends on the metric."""
_GAP = 2
MOST_ROWS = 40
"""Default number of rows of each case and group, so that all cases are visible."""
_MOST_IN_ALL = 1000


def summary(tables: Sequence[Table], width: int, num_rows: int = MOST_ROWS) -> RenderableType:
    """Render the tables with their captions; of a long one the first rows of each case and group.

    Args:
        tables: tables to show.
        width: columns of the terminal; a wider table is split by case, if a case has several rows.
        num_rows: number of rows of each case and group.
    """
    return Group(*(part for table in tables for part in _parts(table, width, num_rows)))


def _parts(table: Table, width: int, num_rows: int) -> list[RenderableType]:
    shown = _first(table.rows, num_rows)
    names = [column.name for column in table.columns]
    cases = list(dict.fromkeys(row.case for row in shown))
    if "case" in names and len(cases) < len(shown) and _width(table.columns, shown) > width:
        drawn = [part for case in cases
                 for part in _of_case(table.columns, [row for row in shown if row.case == case], names.index("case"))]
    else:
        drawn = [rich_table(table.columns, shown, _STYLES)]
    return [Text(table.caption, style="bold"), *drawn, *_notes(table, len(shown), num_rows), Text()]


def _width(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    """Return the width of the longest cells side by side, in characters."""
    texts = [[column.title for column in columns], *([cell.text for cell in row.cells] for row in rows)]
    return sum(max(map(cell_len, texts_of_column)) + _GAP for texts_of_column in zip(*texts, strict=True)) - _GAP


def _of_case(columns: Sequence[Column], rows: Sequence[Row], place: int) -> list[RenderableType]:
    """Render the rows of one case below its name; `place` is the index of the case column."""
    without = [replace(row, cells=[*row.cells[:place], *row.cells[place + 1 :]]) for row in rows]
    return [Text(str(rows[0].case), style="underline"),
            rich_table([*columns[:place], *columns[place + 1 :]], without, _STYLES)]


def _first(rows: Sequence[Row], num_rows: int) -> list[Row]:
    seen: Counter[tuple[str | None, str | None]] = Counter()
    first = []
    for row in rows:
        seen[row.case, row.side] += 1
        if seen[row.case, row.side] <= num_rows:
            first.append(row)
    return first[:_MOST_IN_ALL]


def _notes(table: Table, num_shown: int, num_rows: int) -> list[RenderableType]:
    left_out = len(table.rows) - num_shown
    notes = [table.note] if table.note else []
    if left_out:
        of_each = " of each case" if any(row.case is not None for row in table.rows) else ""
        first = f"The first {num_shown:,}" if num_shown == _MOST_IN_ALL else f"The first {num_rows}{of_each}"
        notes.append(f"{first}; {left_out} more: --top {_more(table.rows)} shows them, --to FILE.csv writes all")
    return [Text(note, style="dim") for note in notes]


def _more(rows: Sequence[Row]) -> int:
    return max(Counter((row.case, row.side) for row in rows).values())


def print_tables(tables: Sequence[Table], num_rows: int = MOST_ROWS) -> None:
    """Print the tables with `num_rows` rows of each case and group; into a pipe, each row is one uncolored line."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(summary(tables, console.width, num_rows))
        return
    captured = io.StringIO()
    whole = Console(file=captured, width=10_000, color_system=None, force_terminal=False)
    whole.print(summary(tables, whole.width, num_rows))
    show(*(line.rstrip() for line in captured.getvalue().removesuffix("\n").split("\n")))


def print_lines(lines: Sequence[str]) -> None:
    """Print sentences in bold, wrapped to the terminal; into a pipe, each is one line."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(*(Text(line, style="bold") for line in lines), sep="\n")
    else:
        show(*lines)
