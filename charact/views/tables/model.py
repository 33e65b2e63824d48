"""Tables as views draw them: cells have a text to show and a value to sort by."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from charact.views.tables import format as fmt

Formatter = Callable[[float | None, str | None], str]


@dataclass(frozen=True)
class Cell:
    """A cell: its text, the value it sorts by (null sorts last), and its share if a bar is drawn behind it.

    A `fault` is in the color of failures. `spans` are the pieces of the text with their colors, as #RRGGBB, if it is
    drawn in several colors.
    """

    text: str
    sort: float | str | None = None
    share_frac: float | None = None
    numeric: bool = False
    unbroken: bool = False
    wide: bool = False
    fault: bool = False
    spans: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Row:
    """A row: its case if it has one, its cells, and its group in a comparison."""

    case: str | None
    cells: list[Cell]
    side: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of a frame and how it is shown: its title, its meaning (a tooltip), and the text of a value.

    `to_text` is None for text; `is_share` draws a bar; `reason` returns, from the row, why a value is missing;
    `unbroken` keeps a text on one line; `wide` shows up to three lines of a long text; `is_fault` returns, from the
    row, whether the value is a failure.
    """

    name: str
    title: str
    to_text: Formatter | None = None
    meaning: str = ""
    reason: Callable[[Any], str | None] = lambda row: None
    is_share: bool = False
    unbroken: bool = False
    wide: bool = False
    is_fault: Callable[[Any], bool] = lambda row: False

    def cell(self, row: Any) -> Cell:
        """Return the column's cell of a row, a named tuple of the frame."""
        return replace(self._cell(row), fault=True) if self.is_fault(row) else self._cell(row)

    def _cell(self, row: Any) -> Cell:
        value = getattr(row, self.name)
        null = bool(pd.isna(value))
        if self.to_text is None:
            shown = fmt.missing(self.reason(row)) if null else str(value)
            return Cell(shown, None if null else str(value), unbroken=self.unbroken, wide=self.wide)
        text = self.to_text(None if null else float(value), self.reason(row))
        share_frac = float(value) if self.is_share and not null else None
        return Cell(text, None if null else float(value), share_frac, numeric=True)


@dataclass(frozen=True)
class Table:
    """A caption, columns and rows; `note` states what the table leaves out."""

    caption: str
    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    note: str = ""


def table(frame: pd.DataFrame, caption: str, columns: Sequence[Column], note: str = "") -> Table:
    """Build the table of a frame; a column `case` of the frame allows filtering rows by case."""
    rows = [
        Row(getattr(row, "case", None), [column.cell(row) for column in columns], getattr(row, "side", None))
        for row in frame.itertuples(index=False)
    ]
    return Table(caption, columns, rows, note)


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]], num_names: int = 1) -> Table:
    """Return a table of texts, of which all but the first `num_names` columns are numbers."""
    columns = [Column(f"column_{number}", title, None if number < num_names else fmt.number)
               for number, title in enumerate(titles)]
    return Table("", columns, [Row(None, [Cell(text) for text in row]) for row in rows])


def without_columns(shown: Table, names: Collection[str]) -> Table:
    """Return the table without columns of these names."""
    kept = [number for number, column in enumerate(shown.columns) if column.name not in names]
    return replace(shown, columns=[shown.columns[number] for number in kept],
                   rows=[replace(row, cells=[row.cells[number] for number in kept]) for row in shown.rows])


_MIN_ROWS, _MIN_COLUMNS = 4, 2


def without_constants(shown: Table) -> Table:
    """Return the table without its columns in which all rows have the same text; the note names their value.

    A table keeps at least two columns, and all if it has few rows.
    """
    cells = list(zip(*(row.cells for row in shown.rows), strict=True))
    alike = [number for number, column in enumerate(cells) if len({cell.text for cell in column}) == 1]
    alike = alike[:max(len(cells) - _MIN_COLUMNS, 0)]
    if len(shown.rows) < _MIN_ROWS or not alike:
        return shown
    values = "; ".join(f"{shown.columns[number].title} {cells[number][0].text}" for number in alike)
    note = f"The same in every row: {values}. {shown.note}".strip()
    return replace(without_columns(shown, [shown.columns[number].name for number in alike]), note=note)


_MISSING = "n/a ("
_LONG_REASON = 24
"""Number of characters from which a reason is a footnote."""


def with_footnotes(shown: Table, min_cells: int = 2) -> Table:
    """Return the table with long reasons that `min_cells` cells or more share below it, once each: n/a [1]."""
    counts = Counter(cell.text for row in shown.rows for cell in row.cells if cell.text.startswith(_MISSING))
    shortest = len(_MISSING) + _LONG_REASON
    common = [text for text, number in counts.items() if number >= min_cells and len(text) >= shortest]
    marks = {text: f"[{number}]" for number, text in enumerate(common, 1)}
    if not marks:
        return shown
    rows = [replace(row, cells=[replace(cell, text=f"n/a {marks[cell.text]}", unbroken=True, wide=False)
                                if cell.text in marks else cell for cell in row.cells]) for row in shown.rows]
    reasons = "; ".join(f"{mark} {text.removeprefix(_MISSING).removesuffix(')')}" for text, mark in marks.items())
    return replace(shown, rows=rows, note=f"{shown.note} {reasons}.".strip())


def limited(shown: Table, num_rows: int, whole: str) -> Table:
    """Return the table with its first rows, and a note if others are left out.

    Args:
        shown: the table.
        num_rows: number of rows to keep.
        whole: the command that writes all rows.
    """
    num_left = len(shown.rows) - num_rows
    if num_left <= 0:
        return shown
    note = f"The first {num_rows:,} rows; {num_left:,} more are left out: `{whole}` writes all."
    return replace(shown, rows=shown.rows[:num_rows], note=f"{shown.note} {note}".strip())


MOST_ROWS = 40
"""Default number of rows of each case and group, so that all cases are visible."""
_MOST_IN_ALL = 1000


def leading(table: Table, num_rows: int = MOST_ROWS) -> Table:
    """Return the table with the first `num_rows` rows of each case and group; the note says how to see the others."""
    seen: Counter[tuple[str | None, str | None]] = Counter()
    rows: list[Row] = []
    for row in table.rows:
        seen[row.case, row.side] += 1
        if seen[row.case, row.side] <= num_rows and len(rows) < _MOST_IN_ALL:
            rows.append(row)
    left = len(table.rows) - len(rows)
    if not left:
        return table
    of_each = " of each case" if any(row.case is not None for row in table.rows) else ""
    first = f"The first {len(rows):,}" if len(rows) == _MOST_IN_ALL else f"The first {num_rows}{of_each}"
    note = f"{first}; {left} more: --top {max(seen.values())} shows them, --to FILE.csv writes all"
    return replace(table, rows=rows, note=f"{table.note} {note}".strip())


def share_column(name: str, title: str, meaning: str) -> Column:
    """Return a column of shares with bars."""
    return Column(name, title, fmt.share, meaning, is_share=True)


def top(frame: pd.DataFrame, num_rows: int, whole: str = "charact export") -> tuple[pd.DataFrame, str]:
    """Return the first rows of each case (in a comparison of each group), and a note if some are left out.

    Args:
        frame: the longest rows of each case first.
        num_rows: number of rows to keep.
        whole: the command that writes all rows.
    """
    keys = ["case", "side"] if "side" in frame else ["case"]
    longest = int(frame.groupby(keys).size().max()) if len(frame) else 0
    if longest <= num_rows:
        return frame, ""
    note = f"The {num_rows} slowest of each case, of up to {longest}; `{whole}` writes all."
    return frame.groupby(keys, sort=False).head(num_rows), note
