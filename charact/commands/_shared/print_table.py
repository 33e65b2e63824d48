"""Tables in the terminal; in a pipe, plain lines."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from charact.core.output import OUT, show

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def print_table(title: str | None, columns: Sequence[str], rows: "Sequence[Sequence[str | Text]]") -> None:
    """Print a table to standard output; into a pipe, each row is one uncolored line of any length."""
    from charact.core.console import Console

    table = _table(title, columns, rows, one_line=not OUT.isatty())
    if OUT.isatty():
        Console(highlight=False).print(table, "")
        return
    captured = io.StringIO()
    Console(file=captured, width=10_000, color_system=None, force_terminal=False).print(table)
    show(*(line.rstrip() for line in captured.getvalue().split("\n")))


def _table(title: str | None, columns: Sequence[str], rows: "Sequence[Sequence[str | Text]]", *,
           one_line: bool) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False,
                  padding=(0, 2, 0, 0), show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(Text(column), no_wrap=number == 0, overflow="fold")
    for row in rows:
        cells = [Text(cell) if isinstance(cell, str) else cell for cell in row]
        table.add_row(*([Text("  ".join(cell.plain.splitlines())) for cell in cells] if one_line else cells))
    return table
