"""A table in the terminal whose rows have long names, readable on a narrow screen."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000
_INDENT = 2


class NamedTable:
    """Rows of a name and numbers.

    If the screen is too narrow for both, each name is on a line above its numbers. If the numbers alone are too wide,
    each is on a line next to its title.
    """

    def __init__(self, name_title: str, *titles: str) -> None:
        """Create a table without rows; titles are those of the numbers."""
        self._name_title = name_title
        self._titles = titles
        self._rows: list[tuple[Text, tuple[Text, ...]]] = []

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def add_row(self, name: Text, *cells: Text) -> None:
        """Add a name and a cell for each title."""
        self._rows.append((name, cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        """Draw the widest form that fits."""
        side_by_side, numbers = self._table(named=True), self._table(named=False)
        if _fits(side_by_side, console, options, options.max_width):
            yield side_by_side
        elif _fits(numbers, console, options, options.max_width - _INDENT):
            header, *lines = console.render_lines(Padding(numbers, (0, 0, 0, _INDENT)), options, pad=False)
            yield from [*header, Segment.line()]
            for (name, _), line in zip(self._rows, lines, strict=True):
                yield name
                yield from [*line, Segment.line()]
        else:
            for name, cells in self._rows:
                yield name
                yield Padding(self._list(cells), (0, 0, 0, _INDENT))

    def _table(self, *, named: bool) -> Table:
        """Return the table with a line per row, with or without the names."""
        table = _empty()
        if named:
            table.add_column(self._name_title, no_wrap=True)
        for title in self._titles:
            table.add_column(title, justify="right", no_wrap=True)
        for name, cells in self._rows:
            table.add_row(*([name] if named else []), *cells)
        return table

    def _list(self, cells: tuple[Text, ...]) -> Table:
        """Return a row's numbers, each on a line next to its title."""
        table = _empty(show_header=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for title, cell in zip(self._titles, cells, strict=True):
            table.add_row(Text(title), cell)
        return table


def plain_table(*titles: str, left: int = 1, gap: int = 2) -> Table:
    """Return an empty table of the first columns, which are foldable texts, and the others, which are numbers.

    Args:
        titles: titles of the columns.
        left: number of text columns.
        gap: spaces between columns.
    """
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number < left else "right", overflow="fold", no_wrap=number >= left)
    return table


def _empty(show_header: bool = True) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=show_header)


def _fits(table: Table, console: Console, options: ConsoleOptions, width: int) -> bool:
    return console.measure(table, options=options.update(max_width=_ANY_WIDTH)).maximum <= width
