"""A self-contained page of a history: its values over the runs, their levels, and what differs at change points."""

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from charact.views.document import Block, Body
from charact.views.html.elements.drawing import FAINT, draw_svg, plain_axes, scaled_ticks, show_points_on_hover
from charact.views.html.report import chapters_report
from charact.views.tables import format as fmt
from charact.views.tables import history_table as texts
from charact.views.tables import metric_text, palette
from charact.views.tables.model import limited

_WIDTH_PX, _HEIGHT_PX = 900, 320
_MAX_ROWS = 2000
_MAX_HOVERED = 400
_NUM_TICKS = 8
_DATE = len("2026-11-25")


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
    blocks = [Block(figures=[figure(rows, case, metric)], legend=[("run", palette.CASES[0]), ("level", FAINT)])] \
        if rows["value"].notna().any() else []
    blocks += [Block(title="Change points", points=changes)] if changes else []
    body = Body(blocks=[*blocks, Block(title="Runs, the newest first", table=shown)])
    times = rows["started"].dropna()
    period = " to ".join(dict.fromkeys(times.iloc[[0, -1]])) if len(times) else "times not recorded"
    return chapters_report(f"{metric_text.label(metric).capitalize()} of {case}", f"{len(rows):,} runs: {period}",
                           [("history", "Over time", body)], "history")


def figure(rows: pd.DataFrame, case: str, metric: str) -> Markup:
    """Draw each run's value with its interval, in the order of time; the levels, and a line at each change point."""
    known = rows.reset_index(drop=True).dropna(subset=["value"])
    positions = known.index.to_numpy()

    def draw(page: Figure) -> None:
        ax = page.subplots()
        reach = np.clip([known["value"] - known["low"], known["high"] - known["value"]], 0, None)
        ax.errorbar(positions, known["value"], yerr=np.nan_to_num(reach), fmt="o", markersize=3.5, linewidth=0.8,
                    color=palette.CASES[0])
        ax.step(positions, known["level"], where="post", color=FAINT, linewidth=1.5)
        for position in positions[known["change_frac"].notna()]:
            ax.axvline(position - 0.5, color=palette.SLOWER, linewidth=1, linestyle="--")
        every = max(1, -(-len(known) // _MAX_HOVERED))
        show_points_on_hover(ax, [(position, row.value, _hover(metric, row)) for position, row in
                                  list(zip(positions, fmt.rows(known), strict=True))[::every]])
        named = np.unique(np.linspace(0, len(rows) - 1, min(_NUM_TICKS, len(rows))).round().astype(int))
        ax.xaxis.set_major_locator(mpl.ticker.FixedLocator(named.tolist()))
        times = rows["started"].fillna("").astype(str)
        within_a_day = times.str[:_DATE].nunique() == 1
        labels = [times.iloc[at][_DATE + 1:] if within_a_day else times.iloc[at][:_DATE] for at in named]
        ax.xaxis.set_major_formatter(mpl.ticker.FixedFormatter(labels))
        ax.set_ylabel(_axis(ax, known, metric))
        plain_axes(ax)

    return draw_svg(f"{metric_text.label(metric).capitalize()} of {case} over {len(rows):,} runs", _HEIGHT_PX, draw,
                    width_px=_WIDTH_PX)


def _axis(ax: Any, known: pd.DataFrame, metric: str) -> str:
    """Set the ticks of the vertical axis in a unit; return its label."""
    if metric_text.unit(metric) == "%":
        ax.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, symbol=" %"))
        return metric_text.label(metric)
    if not (unit := metric_text.unit(metric)):
        return metric_text.label(metric)
    return f"{metric_text.label(metric)} ({scaled_ticks(ax.yaxis, float(known['value'].max()), unit)})"


def _hover(metric: str, row: Any) -> str:
    lines = [row.started or row.run, metric_text.value(metric, row.value), row.run]
    return "\n".join([*lines, f"commit {row.commit}"] if isinstance(row.commit, str) else lines)
