"""A history as items of the document: its table, marks, notes, and texts of its values."""

from typing import Any

import pandas as pd

from charact.analysis.compare.metrics import all_metrics
from charact.analysis.history.change_points import FALSE_ALARM_FRAC, MIN_VALUES
from charact.core.units import digits, scale
from charact.views.document import Item, Line, sparkline
from charact.views.tables import format as fmt
from charact.views.tables.metric_text import label, unit, value
from charact.views.tables.model import Column, Table, table

_WIDTH = 24
"""Characters of the scale from the lowest to the highest value."""


def interval(metric: str, row: Any) -> str:
    """Return the 95 % interval of a row's value: 99.1–99.9 ms; n/a with the reason without one."""
    if fmt.absent(row.value):
        return ""
    if fmt.absent(row.low):
        return fmt.missing(row.reason)
    if unit(metric) == "%":
        return f"{digits(100 * row.low, 4)}–{digits(100 * row.high, 4)} %"
    factor, name = scale([row.high], unit(metric)) if unit(metric) else (1.0, "")
    return f"{digits(row.low * factor, 4)}–{digits(row.high * factor, 4)} {name}".strip()


def change(metric: str, row: Any) -> str:
    """Return the change of the level at a row: +10.2 % (slower); empty if there is none."""
    if fmt.absent(row.change_frac):
        return ""
    sign = "+" if row.change_frac > 0 else "−"
    better = (row.change_frac > 0) == all_metrics()[metric].higher_is_better
    return f"{sign}{fmt.share(abs(row.change_frac))} ({'better' if better else 'worse'})"


def history_table(rows: pd.DataFrame, case: str, metric: str, shown: pd.DataFrame, bars: list[str] | None = None
                  ) -> Table:
    """Return a table with a row per run.

    Args:
        rows: a frame of `series.history`.
        case: name of the case.
        metric: the metric.
        shown: the rows to show.
        bars: a text for each shown row, drawn next to its value.
    """
    texts = shown.assign(
        interval=[interval(metric, row) for row in fmt.rows(shown)],
        change=[change(metric, row) for row in fmt.rows(shown)], bar=bars or [""] * len(shown),
        version=[_version(row) for row in fmt.rows(shown)])
    columns = [
        Column("started", "Started", None, "local time", lambda row: "not recorded", unbroken=True),
        Column("version", "Commit", None, "of the working directory; + with changed files", unbroken=True),
        Column("value", label(metric).capitalize(), lambda number, reason: value(metric, number, reason),
               "", lambda row: row.reason),
        Column("interval", "95 % interval", None, "over the iterations or epochs of the run", unbroken=True),
        *([Column("bar", _range(rows, metric), unbroken=True)] if bars else []),
        Column("change", "Level", None, "change of the median level at this run", unbroken=True),
        Column("run", "Run", unbroken=True),
    ]  # fmt: skip
    return table(texts.drop(columns=["level"]), f"{label(metric).capitalize()} of {case}", columns, note(rows, metric))


def history_items(rows: pd.DataFrame, case: str, metric: str, num_rows: int) -> list[Item]:
    """Return the last rows of a history with a mark for each value, and all its change points.

    Args:
        rows: a frame of `series.history`.
        case: name of the case.
        metric: the metric.
        num_rows: number of rows to show.
    """
    last = rows.tail(num_rows)
    items: list[Item] = [history_table(rows, case, metric, last, marks(rows, last)), Line()]
    if len(rows) > len(last):
        items += [Line(f"All {len(rows):,} runs: {sparkline(rows['value'].tolist())}"),
                  Line(f"The last {len(last):,}; --last {len(rows)} shows all, --to FILE.html draws them")]
    return [*items, *(Line(f"  {sentence}") for sentence in changes(rows, metric))]


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


def _version(row: Any) -> str:
    if not isinstance(row.commit, str):
        return fmt.missing("no repository")
    return f"{row.commit}+" if row.dirty is True else row.commit


def _range(rows: pd.DataFrame, metric: str) -> str:
    known = rows["value"].dropna()
    return f"{value(metric, known.min())} to {value(metric, known.max())}" if len(known) else ""


def changes(rows: pd.DataFrame, metric: str) -> list[str]:
    """Return a sentence for each change point: when, how much, and what differs from the run before."""
    sentences = []
    for row in fmt.rows(rows[rows["change_frac"].notna()]):
        level = f"{change(metric, row)}, to {value(metric, row.level)}"
        differs = row.differs or "no recorded version or machine differs"
        sentences.append(f"{row.started or row.run}: {level}; {differs}")
    return sentences


def note(rows: pd.DataFrame, metric: str) -> str:
    """Return what the change points are, or why there are none."""
    num_values = int(rows["value"].notna().sum())
    if num_values < MIN_VALUES:
        return f"Change points need {MIN_VALUES} runs with a value: there are {num_values}."
    found = int(rows["change_frac"].notna().sum())
    known = rows["value"].notna()
    mixed = "" if rows.loc[known, "machine"].nunique(dropna=False) == 1 else \
        " The runs are of several machines: a change of machine is a change of level."
    return (f"{found or 'No'} change point{'' if found == 1 else 's'} in {num_values:,} values. Independent noise "
            f"gives one in {fmt.share(FALSE_ALARM_FRAC)} of such series, correlated noise in up to 10 %.{mixed}")
