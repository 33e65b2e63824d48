"""A self-contained page of a history: its values over the runs, their levels, and what differs at change points."""

import pandas as pd

from charact.views.charts import FAINT
from charact.views.document import Block, Body
from charact.views.figures.comparison import history
from charact.views.html.report import chapters_report
from charact.views.tables import history_table as texts
from charact.views.tables import metric_text, palette
from charact.views.tables.model import limited

_MAX_ROWS = 2000


def history_page(rows: pd.DataFrame, case: str, metric: str) -> str:
    """Return the page of a metric's history.

    Args:
        rows: a frame of `series.history`.
        case: name of the case.
        metric: the metric.
    """
    newest_first = texts.history_table(rows, case, metric, rows.iloc[::-1])
    shown = limited(newest_first, _MAX_ROWS, "charact history --to FILE.csv")
    changes = [(f"{number}", sentence) for number, sentence in enumerate(texts.changes(rows, metric), 1)]
    blocks = [Block(figures=[history(rows, case, metric)], legend=[("run", palette.CASES[0]), ("level", FAINT)])] \
        if rows["value"].notna().any() else []
    blocks += [Block(title="Change points", points=changes)] if changes else []
    body = Body(blocks=[*blocks, Block(title="Runs, the newest first", table=shown)])
    times = rows["started"].dropna()
    period = " to ".join(dict.fromkeys(times.iloc[[0, -1]])) if len(times) else "times not recorded"
    return chapters_report(f"{metric_text.label(metric).capitalize()} of {case}", f"{len(rows):,} runs: {period}",
                           [("history", "Over time", body)], "history")
