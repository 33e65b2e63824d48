"""A comparison in the terminal: its tables, one below the other."""

import io
from collections import Counter
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from charact.views.tables import Row, Table

_STYLES = {"slower": "red", "lower": "red", "faster": "green", "higher": "green"}
_MOST_ROWS = 40
"""Of each case on each side: a case of many operators hides no other."""


def summary(tables: Sequence[Table]) -> RenderableType:
    """The tables with their captions; of a long one the first rows of each case on each side."""
    return Group(*(part for table in tables for part in _parts(table)))


def _parts(table: Table) -> list[RenderableType]:
    shown = _first(table.rows)
    return [Text(table.caption, style="bold"), _drawn(table, shown), *_notes(table, len(shown)), Text()]


def _first(rows: Sequence[Row]) -> list[Row]:
    seen: Counter[tuple[str | None, str | None]] = Counter()
    first = []
    for row in rows:
        seen[row.case, row.side] += 1
        if seen[row.case, row.side] <= _MOST_ROWS:
            first.append(row)
    return first


def _drawn(table: Table, rows: Sequence[Row]) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns:
        drawn.add_column(Text(column.title), justify="right" if column.words else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell.text, style=_STYLES.get(cell.text, "")) for cell in row.cells))
    return drawn


def _notes(table: Table, num_shown: int) -> list[RenderableType]:
    left_out = len(table.rows) - num_shown
    notes = [table.note] if table.note else []
    if left_out:
        of_each = " of each case" if any(row.case is not None for row in table.rows) else ""
        notes.append(f"The first {_MOST_ROWS}{of_each}; {left_out} more: --to FILE.csv writes them all")
    return [Text(note, style="dim") for note in notes]


def print_tables(tables: Sequence[Table]) -> None:
    """Print the tables; into a pipe one line a row, however long, without colour."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(summary(tables))
        return
    captured = io.StringIO()
    Console(file=captured, width=10_000, color_system=None, force_terminal=False).print(summary(tables))
    print("\n".join(line.rstrip() for line in captured.getvalue().splitlines()))
