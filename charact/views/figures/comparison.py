"""Charts of a comparison: ratios with intervals, phases, steps of a difference; and the chart of a history."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from charact.views.charts import (
    DASHED,
    FAINT,
    NOT_CONNECTED,
    Axis,
    Bar,
    Chart,
    Curve,
    Mark,
    Note,
    Rule,
    percent,
    stacked_bars,
)
from charact.views.tables import format as fmt
from charact.views.tables import metric_text, palette

_ROW_PX, _HEADING_PX = 24, 26
_STEP_PX = 40


def side_colors(sides: Sequence[str]) -> dict[str, str]:
    """Return a color for each group, by its label."""
    return {side: palette.CASES[number % len(palette.CASES)] for number, side in enumerate(sides)}


def ratio_intervals(ratios: pd.DataFrame, colors: dict[str, str]) -> Chart:
    """Return each case's ratio of times, a point per group with its interval, against the baseline at 1.

    The axis is logarithmic: twice as long and half as long are equally far from 1. The line at 1 is drawn next to the
    points only, so that it does not cross names.
    """
    rows = ratios[ratios["ratio"].notna()]
    num_cases, num_sides = rows["case"].nunique(), rows["side"].nunique()
    step = _ROW_PX * num_sides + _HEADING_PX
    marks: list[Mark] = [Note(1, -_ROW_PX, "baseline", "center", size=10, color=FAINT)]
    for top, (case, of_case) in zip(range(0, num_cases * step, step), rows.groupby("case", sort=False), strict=True):
        marks += [Note(0, top - 2, str(case), of_width=True),
                  Curve([1, 1], [top + 3, top + 4 + num_sides * _ROW_PX], FAINT, width=1)]
        for y, row in enumerate(fmt.rows(of_case)):
            marks += _point(row, top + 14 + y * _ROW_PX, colors[row.side])
    ends = [1.0, *rows["ratio"], *rows["low"].dropna(), *rows["high"].dropna()]
    margin = max((max(ends) / min(ends)) ** 0.08, 1.02)
    return Chart("Ratios of times to the baseline",
                 Axis("time / baseline’s time", None, min(ends) / margin, max(ends) * margin, log=True,
                      always=1),
                 Axis(low=num_cases * step, high=-2 * _ROW_PX, ticks=()), marks, 94 + step * num_cases)


def _point(row: Any, y: float, color: str) -> list[Mark]:
    text, interval = f"{row.side}: {row.ratio:.3g} times the baseline’s time", list[Mark]()
    if pd.notna(row.low):
        text += f", between {row.low:.3g} and {row.high:.3g}"
        interval = [Curve([row.low, row.high], [y, y], color, width=3, opacity=0.55)]
    return [*interval, Curve([row.ratio], [y], color, marker="o", size=7, texts=[text]),
            Note(row.ratio, y, f"{row.ratio:.3g}", "center", "top", 9.5, FAINT, (0, -7))]


def side_phases(times: pd.DataFrame) -> Chart:
    """Return the iteration time of one case by phase, a bar per group. Columns: side, phase, time_s."""
    return stacked_bars("Time of an iteration by phase of each group", times, ("side", "phase", "time_s"),
                        palette.PHASES.__getitem__, "time of an iteration")


def waterfall(title: str, steps: pd.DataFrame, labels: tuple[str, str]) -> Chart:
    """Return steps from the baseline's time to the candidate's, named by `labels`; slower steps point to the right.

    The axis does not begin at 0: compare lengths of steps, not the two end lines.
    """
    places, num_steps = [*steps["start_s"], *steps["end_s"]], len(steps)
    low, high = min(places), max(places)
    room_s = 0.12 * (high - low) or 0.1 * high or 1.0
    marks: list[Mark] = []
    for label, end_s, y in ((labels[0], steps["start_s"].iloc[0], -1.25),
                            (labels[1], steps["end_s"].iloc[-1], num_steps - 0.3)):
        marks += [Rule(end_s, FAINT, DASHED, 1, "x"),
                  Note(end_s, y, f"{label}: {fmt.seconds(end_s)}", "left" if 2 * end_s < high + low else "right",
                       "center", color=FAINT, offset=(4 if 2 * end_s < high + low else -4, 0))]
    for y, row in enumerate(fmt.rows(steps)):
        color = palette.SLOWER if row.delta_s > 0 else palette.FASTER
        marks += [Bar(y, row.start_s, row.delta_s, 0.36, color, text=f"{row.name}: {fmt.change(row.delta_s)}"),
                  Curve([row.end_s, row.end_s], [y, min(y + 1, num_steps - 0.7)], color, width=1),
                  Note(0, y - 0.28, f"{row.name}  {fmt.change(row.delta_s)}", of_width=True, boxed=True)]
    return Chart(title, Axis("median iteration", "s", low - room_s, high + room_s),
                 Axis(low=num_steps + 0.1, high=-1.6, ticks=()), marks, 60 + _STEP_PX * (num_steps + 1))


_MAX_HOVERED = 400
_NUM_TICKS = 8
_DATE = len("2026-11-25")


def history(rows: pd.DataFrame, case: str, metric: str) -> Chart:
    """Return each run's value with its interval, in the order of time; the levels, and a line at each change point."""
    known = rows.reset_index(drop=True).dropna(subset=["value"])
    every = max(1, -(-len(known) // _MAX_HOVERED))
    texts = ["" if number % every else _run_text(metric, row) for number, row in enumerate(fmt.rows(known))]
    low, high = known["low"].fillna(known["value"]), known["high"].fillna(known["value"])
    marks: list[Mark] = [
        Curve(known.index, known["value"], palette.CASES[0], NOT_CONNECTED, marker="o", size=3.5, texts=texts,
              low=np.minimum(low, known["value"]), high=np.maximum(high, known["value"])),
        Curve(known.index, known["level"], FAINT, steps="post"),
        *(Rule(at - 0.5, palette.SLOWER, DASHED, 1, "x") for at in known.index[known["change_frac"].notna()])]
    named = np.unique(np.linspace(0, len(rows) - 1, min(_NUM_TICKS, len(rows))).round().astype(int))
    times = rows["started"].fillna("").astype(str)
    part = slice(_DATE + 1, None) if times.str[:_DATE].nunique() == 1 else slice(_DATE)
    unit, label = metric_text.unit(metric), metric_text.label(metric)
    is_share = unit == "%"
    return Chart(f"{label.capitalize()} of {case} over {len(rows):,} runs",
                 Axis(ticks=named.tolist(), names=[times.iloc[at][part] for at in named]),
                 Axis(label, None if is_share else unit or None, text=percent if is_share else None),
                 marks, 320, 900)


def _run_text(metric: str, row: Any) -> str:
    lines = [row.started or row.run, metric_text.value(metric, row.value), row.run]
    return "\n".join([*lines, f"commit {row.commit}"] if isinstance(row.commit, str) else lines)
