"""Tables as views draw them: cells hold the words to show and the value to sort by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from charact.views.tables import format as fmt

Words = Callable[[float | None, str | None], str]


@dataclass(frozen=True)
class Cell:
    """A cell: its words, the value it sorts by (null sorts last), and its share where a bar is drawn behind it."""

    text: str
    sort: float | str | None = None
    share_frac: float | None = None
    numeric: bool = False
    unbroken: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Row:
    """A row: the case it belongs to, where it does, its cells, and the side it is of in a comparison."""

    case: str | None
    cells: list[Cell]
    side: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of a frame and how it is shown: its title, what it means (a tooltip), and the words for a value.

    `words` is None for text; `is_share` draws a bar; `reason` tells, from the row, why a value is missing;
    `unbroken` keeps a text in one line; `wide` gives long ones room, and shows three lines of them.
    """

    name: str
    title: str
    words: Words | None = None
    meaning: str = ""
    reason: Callable[[Any], str | None] = lambda row: None
    is_share: bool = False
    unbroken: bool = False
    wide: bool = False

    def cell(self, row: Any) -> Cell:
        """The column's cell of a row, a named tuple of the frame."""
        value = getattr(row, self.name)
        null = bool(pd.isna(value))
        if self.words is None:
            shown = fmt.missing(self.reason(row)) if null else str(value)
            return Cell(shown, None if null else str(value), unbroken=self.unbroken, wide=self.wide)
        text = self.words(None if null else float(value), self.reason(row))
        share_frac = float(value) if self.is_share and not null else None
        return Cell(text, None if null else float(value), share_frac, numeric=True)


@dataclass(frozen=True)
class Table:
    """A caption, columns, and rows; `note` says what the table leaves out."""

    caption: str
    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    note: str = ""


def table(frame: pd.DataFrame, caption: str, columns: Sequence[Column], note: str = "") -> Table:
    """The table of a frame; a column `case` of the frame lets rows be filtered by it."""
    rows = [
        Row(getattr(row, "case", None), [column.cell(row) for column in columns], getattr(row, "side", None))
        for row in frame.itertuples(index=False)
    ]
    return Table(caption, columns, rows, note)


def limited(shown: Table, num_rows: int, whole: str) -> Table:
    """The table with its first rows, and a note where others are left out.

    Args:
        shown: the table.
        num_rows: how many are kept.
        whole: the command that writes all of them.
    """
    num_left = len(shown.rows) - num_rows
    if num_left <= 0:
        return shown
    note = f"The first {num_rows:,} rows; {num_left:,} more are left out: `{whole}` writes them all."
    return replace(shown, rows=shown.rows[:num_rows], note=f"{shown.note} {note}".strip())


def share_column(name: str, title: str, meaning: str) -> Column:
    """A column of shares, each with a bar."""
    return Column(name, title, fmt.share, meaning, is_share=True)


def top(frame: pd.DataFrame, num_rows: int, whole: str = "charact export") -> tuple[pd.DataFrame, str]:
    """The first rows of each case, of a comparison on each side; and a note where some are left out.

    Args:
        frame: the longest rows of each case first.
        num_rows: how many are kept.
        whole: the command that writes all of them.
    """
    keys = ["case", "side"] if "side" in frame else ["case"]
    longest = int(frame.groupby(keys).size().max()) if len(frame) else 0
    if longest <= num_rows:
        return frame, ""
    note = f"The {num_rows} longest of each case, of up to {longest}; `{whole}` writes them all."
    return frame.groupby(keys, sort=False).head(num_rows), note
