"""Tables in the terminal; in a pipe, plain lines."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from charact.core.output import OUT, show

if TYPE_CHECKING:
    from rich.text import Text


def print_table(title: str | None, columns: Sequence[str], rows: "Sequence[Sequence[str | Text]]") -> None:
    """Print a table to standard output; into a pipe, each row is one uncolored line of any length."""
    from rich.text import Text

    from charact.core.console import Console
    from charact.views.terminal.fitted_table import FittedTable, empty_table

    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    if OUT.isatty():
        console = Console(highlight=False)
        if title is not None:
            console.print(Text(title, style="bold"))
        console.print(FittedTable(columns, cells, [False] * len(columns)), "")
        return
    table = empty_table(show_header=any(columns))
    for column in columns:
        table.add_column(Text(column))
    for row in cells:
        table.add_row(*(Text("  ".join(cell.plain.splitlines())) for cell in row))
    captured = io.StringIO()
    plain = Console(file=captured, width=10_000, color_system=None, force_terminal=False)
    if title is not None:
        plain.print(Text(title))
    plain.print(table)
    show(*(line.rstrip() for line in captured.getvalue().split("\n")))
