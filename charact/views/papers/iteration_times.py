"""The figure of all iteration times of each case, and of the phases if there are few cases."""

from collections.abc import Sequence

import pandas as pd
import seaborn as sns

from charact.analysis.common.significance import INTERVAL_METHOD
from charact.analysis.profile.case_summary import case_summary, iteration_times, phase_times
from charact.record.reader import Run
from charact.record.schema import PHASES
from charact.views.charts import INK
from charact.views.papers._figure import (
    Drawing,
    NoData,
    PaperFigure,
    label_axis,
    measured_on,
    of_runs,
    panels,
    timed,
    times_a_case,
    why_not_taken,
    with_labels,
)
from charact.views.tables import palette

ITERATION = "iteration"
_MOST_CASES = 4
"""Largest number of cases with a panel for each, which shows the phases."""
_LOG_FROM_RATIO = 10
_HEAD_IN, _PANEL_IN, _ROW_IN = 0.45, 0.22, 0.15
"""Height of the axis label, of a panel's title, and of a row."""


def _draw(runs: Sequence[Run], width_in: float) -> Drawing:
    walls = timed(of_runs(runs, iteration_times), runs).rename(columns={"wall_s": "time_s"}).assign(phase=ITERATION)
    if walls.empty:
        raise NoData(f"no case has timed iterations: {why_not_taken(runs, 'timing')}")
    walls = with_labels(walls, runs)
    labels = walls[["run", "case", "label"]].drop_duplicates()
    cases = list(labels["label"])
    summary = labels.merge(of_runs(runs, case_summary), on=["run", "case"]).set_index("label")
    by_phase = len(cases) <= _MOST_CASES
    if by_phase:
        phases = labels.merge(of_runs(runs, phase_times), on=["run", "case"])
        rows = pd.concat([walls, phases[phases["time_s"] > 0]], ignore_index=True)
        groups = [(case, of_case := rows[rows["label"] == case], "phase",
                   [name for name in (ITERATION, *PHASES) if (of_case["phase"] == name).any()]) for case in cases]
    else:
        rows, groups = walls, [("", walls, "label", cases)]
    low_s, high_s = rows["time_s"].min(), rows["time_s"].max()
    is_log = low_s > 0 and high_s / low_s >= _LOG_FROM_RATIO
    num_rows = sum(len(names) for *_, names in groups)
    figure, axes = panels(width_in, _HEAD_IN + _PANEL_IN * len(groups) + _ROW_IN * num_rows, len(groups), sharex=True,
                          height_ratios=[len(names) for *_, names in groups])
    colors = palette.PHASES | {ITERATION: INK}
    for ax, (title, of_panel, column, names) in zip(axes[:, 0], groups, strict=True):
        if is_log:
            ax.set_xscale("log")
        sns.stripplot(of_panel, x="time_s", y=column, order=names, hue="phase", palette=colors, hue_order=list(colors),
                      jitter=False, marker="|", size=6, linewidth=0.7, legend=False, ax=ax)
        whole = [(0, title)] if by_phase else list(enumerate(cases))
        for y, case in whole:
            of_case = summary.loc[case]
            ax.plot([of_case["low_s"], of_case["high_s"]], [y, y], color=palette.SLOWER, linewidth=2, zorder=4,
                    solid_capstyle="butt", label="interval")
            ax.plot([of_case["median_s"]], [y], color=palette.SLOWER, marker="d", markersize=4, zorder=5,
                    markeredgecolor="white", markeredgewidth=0.4, label="median")
        ax.set(ylabel="", xlabel="", ylim=(len(names) - 0.4, -0.6))
        ax.set_title(title, loc="left", pad=2)
        ax.tick_params(axis="y", length=0)
    label_axis(axes[-1, 0].xaxis, "wall time" if by_phase else "wall time of an iteration", "s", low_s, high_s)
    phases_text = "; below it, the time of each phase in each iteration" if by_phase else ""
    counted = times_a_case(summary["num_iterations"], "timed iterations")
    caption = (
        f"Wall time of each timed iteration, a mark for each{phases_text}. Diamond: the median of the iterations. Bar: "
        f"its 95 % interval ({INTERVAL_METHOD}), which cases of fewer than 6 iterations lack. Slow iterations "
        f"are included. Timing pass, without a profiler, after the warm-up: {counted}. {measured_on(runs)}")
    return Drawing(figure, caption)


FIGURE = PaperFigure("iteration-times", 20, _draw)
