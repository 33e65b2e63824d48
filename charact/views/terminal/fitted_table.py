"""Tables that fit the screen without cutting a word: columns wrap at spaces, then names get lines of their own."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from charact.views.tables import format as fmt

INDENT = 2
_GAP = 2
_BREAK_WIDTH = 16
"""Width from which titles, and long words if there is no other way, break after hyphens."""


@dataclass(frozen=True)
class FittedTable:
    """Rows of texts below titles, of which the first column names the row.

    The first form that fits is drawn: columns side by side, in which texts wrap at spaces and numbers do not; the name
    of each row on a line above its other columns; the same two with long words that break after hyphens; each value on
    a line next to its title.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[Text]]
    are_numbers: Sequence[bool]

    @property
    def least_width(self) -> int:
        """Width of the columns side by side if texts wrap at each space."""
        return _sum(self._least_widths())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = self._widths()
        for is_broken in (False, True):
            least = self._least_widths(is_broken)
            if _sum(least) <= options.max_width:
                yield self._columns(0, _spread(least, widest, options.max_width))
                return
            if len(least) > 1 and _sum(least[1:]) + INDENT <= options.max_width:
                widths = _spread(least[1:], widest[1:], options.max_width - INDENT)
                yield Padding(self._columns(1, widths, rows=[]), (0, 0, 0, INDENT))
                for row in self.rows:
                    yield row[0]
                    yield Padding(self._columns(1, widths, rows=[row], header=False), (0, 0, 0, INDENT))
                return
        for row in self.rows:
            table = empty_table(show_header=False)
            table.add_column(style="dim", no_wrap=True)
            table.add_column(overflow="fold")
            for title, cell in zip(self.titles[1:], row[1:], strict=True):
                table.add_row(Text("\n".join(_lines(title, options.max_width // 2 - INDENT))), cell)
            yield row[0]
            yield Padding(table, (0, 0, 0, INDENT))

    def _columns(self, first: int, widths: Sequence[int], *, rows: Sequence[Sequence[Text]] | None = None,
                 header: bool = True) -> Table:
        """Return the columns from the first one on, with fixed widths."""
        table = empty_table(show_header=header)
        for title, is_number, width in zip(self.titles[first:], self.are_numbers[first:], widths, strict=True):
            table.add_column(Text("\n".join(_lines(title, max(width, _BREAK_WIDTH)))), width=width, overflow="fold",
                             justify="right" if is_number else "left")
        for row in self.rows if rows is None else rows:
            table.add_row(*map(_wrapped, row[first:], widths))
        return table

    def _cells(self, number: int) -> list[str]:
        return [line for row in self.rows for line in row[number].plain.split("\n")]

    def _widths(self) -> list[int]:
        """Return the width of each column without wrapped cells."""
        return [max([*map(cell_len, self._cells(number)), _longest(_lines(title, _BREAK_WIDTH))])
                for number, title in enumerate(self.titles)]

    def _least_widths(self, is_broken: bool = False) -> list[int]:
        """Return the width of the longest word of each column; a number with its unit is one word.

        Long words other than names break after hyphens if `is_broken`.
        """
        found = []
        for number, (title, is_number) in enumerate(zip(self.titles, self.are_numbers, strict=True)):
            words = [word for cell in self._cells(number)
                     for word in ([cell] if is_number and fmt.reason_of(cell) is None else cell.split())]
            if is_broken and number:
                words = [line for word in words for line in _lines(word, _BREAK_WIDTH)]
            found.append(max(_longest(words), _longest(_lines(title, _BREAK_WIDTH))))
        return found


def empty_table(show_header: bool = True) -> Table:
    """Return a table without lines, two columns of space between its columns."""
    return Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", show_header=show_header)


def _lines(text: str, width: int) -> list[str]:
    """Return the lines of a text that breaks at spaces and after hyphens, as in the identifier of a run."""
    lines = [""]
    for part in re.findall(r"\s*(?:[^\s-]+-?|-)", text):
        if cell_len(lines[-1] + part) > width and lines[-1]:
            lines.append(part.lstrip())
        else:
            lines[-1] += part
    return lines


def _wrapped(cell: Text, width: int) -> Text:
    """Return a cell whose words that are longer than the column break after hyphens; a cell of several styles folds."""
    is_longer = any(cell_len(word) > width for word in cell.plain.split())
    return Text("\n".join(_lines(cell.plain, width)), style=cell.style) if is_longer and not cell.spans else cell


def _longest(words: Iterable[str]) -> int:
    return max(map(cell_len, words), default=0)


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _spread(least: Sequence[int], widest: Sequence[int], width: int) -> list[int]:
    """Return widths between the least and the widest, within the given width; those that lack the least grow first."""
    widths, left = list(least), width - _sum(least)
    for number in sorted(range(len(widths)), key=lambda number: widest[number] - least[number]):
        grown = min(left, max(widest[number] - widths[number], 0))
        widths[number] += grown
        left -= grown
    return widths
