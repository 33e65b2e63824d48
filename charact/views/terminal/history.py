"""Terminal view of a history: a row a run with a mark for its value, and what differs at each change point."""

import pandas as pd

from charact.core.output import show
from charact.views.document import sparkline
from charact.views.tables import format as fmt
from charact.views.tables.history_table import changes, history_table
from charact.views.terminal.comparison import print_tables

_WIDTH = 24
"""Characters of the scale from the lowest to the highest value."""


def print_history(rows: pd.DataFrame, case: str, metric: str, num_rows: int) -> None:
    """Print the last rows of a history, and all its change points.

    Args:
        rows: a frame of `series.history`.
        case: name of the case.
        metric: the metric.
        num_rows: number of rows to print.
    """
    last = rows.tail(num_rows)
    print_tables([history_table(rows, case, metric, last, marks(rows, last))], num_rows)
    if len(rows) > len(last):
        show(f"All {len(rows):,} runs: {sparkline(rows['value'].tolist())}",
             f"The last {len(last):,}; --last {len(rows)} shows all, --to FILE.html draws them")
    for sentence in changes(rows, metric):
        show(f"  {sentence}")


def marks(rows: pd.DataFrame, shown: pd.DataFrame) -> list[str]:
    """Return a line of at most `_WIDTH` characters for each row of `shown`: ● at its value, and │ at its level.

    The line spans the lowest to the highest value of `rows`; a level outside of them is at its end. ● hides │ in the
    same place. The text is empty if the row has no value.
    """
    known = rows["value"].dropna()
    low, span = (known.min(), known.max() - known.min()) if len(known) else (0.0, 0.0)

    def place(number: float) -> int:
        return round((number - low) / span * (_WIDTH - 1)) if span else 0

    texts = []
    for row in fmt.rows(shown):
        cells = [" "] * _WIDTH
        if not fmt.absent(row.value):
            cells[min(max(place(row.level), 0), _WIDTH - 1)] = "│"
            cells[place(row.value)] = "●"
        texts.append("".join(cells).rstrip())
    return texts
