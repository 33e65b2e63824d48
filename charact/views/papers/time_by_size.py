"""The figure of an iteration's time against the input size, by phase and mode."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.lines import Line2D

from charact.analysis.common.significance import INTERVAL_METHOD
from charact.analysis.memory.by_input_size import SERIES, case_series
from charact.analysis.profile.breakdown import phase_breakdown
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run
from charact.views.charts import INK, MIN_SIZES, SOLID
from charact.views.papers._figure import (
    Drawing,
    NoData,
    PaperFigure,
    key_below,
    label_axis,
    measured_on,
    of_runs,
    panels,
    ticks_at_sizes,
    timed,
    times_a_case,
    unique,
    why_not_taken,
)
from charact.views.tables import palette
from charact.views.tables.memory_text import AXES, model, size_text

ITERATION = "iteration"
_LEAST_FRAC = 0.02
"""Phases below this share of the iteration in every case are not drawn."""
_GROUP = [name for name in SERIES if name != "mode"]
_HEAD_IN, _PANEL_IN = 0.4, 1.45


def _rows(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the time of each iteration and phase by series and size, of series with several sizes.

    Columns: those of `case_series`; phase, also `ITERATION`; time_s; low_s and high_s of the iteration.
    """
    series, phases, cases = (of_runs(runs, analysis) for analysis in (case_series, phase_breakdown, case_summary))
    phases = phases[phases["phase"].isin(phases.loc[phases["share_frac"] >= _LEAST_FRAC, "phase"])]
    keys = ["run", "case"]
    whole = cases[[*keys, "median_s", "low_s", "high_s"]].rename(columns={"median_s": "time_s"})
    times = pd.concat([whole.assign(phase=ITERATION), phases[[*keys, "phase", "time_s"]]], ignore_index=True)
    rows = timed(series, runs).merge(times[times["time_s"] > 0], on=keys)
    several = rows.groupby(SERIES, dropna=False)["input_size"].transform("nunique") > 1
    return rows[several].sort_values("input_size", kind="stable")


def _draw(runs: Sequence[Run], width_in: float) -> Drawing:
    rows = _rows(runs)
    if rows.empty:
        known = any(len(run.iterations) for run in runs)
        raise NoData("no two cases differ in the input size only: measure three with --input-sizes" if known
                     else f"no case has timed iterations: {why_not_taken(runs, 'timing')}")
    groups, modes = list(rows.groupby(_GROUP, sort=False, dropna=False)), list(dict.fromkeys(rows["mode"]))
    figure, axes = panels(width_in, _HEAD_IN + _PANEL_IN * len(groups), len(groups), len(modes), sharey="row")
    colors = {ITERATION: INK} | palette.PHASES
    names = [name for name in colors if (rows["phase"] == name).any()]
    for line, (key, of_group) in enumerate(groups):
        assert isinstance(key, tuple)
        position = str(of_group["position"].iloc[0])
        for column, mode in enumerate(modes):
            ax = axes[line, column]
            _panel(ax, of_group[of_group["mode"] == mode], names, colors)
            ax.set_xlabel("image side (px)" if position == "pixel" else AXES[position])
            ax.set_title(mode, loc="left", pad=3)
        named = f"{unique([model(str(key[0]), str(key[1]))])[0]}\n" if len(groups) > 1 else ""
        label_axis(axes[line, 0].yaxis, f"{named}time", "s", of_group["time_s"].min(), of_group["time_s"].max())
    style = SOLID if rows.groupby(SERIES, dropna=False)["input_size"].nunique().max() >= MIN_SIZES else "none"
    key_below(figure, [Line2D([], [], color=colors[name], marker="o", linestyle=style, label=name) for name in names],
              min(len(names), max(3, int(width_in))))
    counted = times_a_case(timed(of_runs(runs, case_summary), runs)["num_iterations"], "timed iterations")
    caption = (
        f"Median wall time of an iteration against the input size, with its 95 % interval ({INTERVAL_METHOD}) "
        "as a bar, and the time of its phases, which sum to the median. Both axes are logarithmic, with ticks at the "
        f"measured sizes; {MIN_SIZES} sizes or more are connected. Phases below {_LEAST_FRAC * 100:g} % of the "
        f"iteration in every case are not drawn. {_facts(rows)} Timing pass, without a profiler: "
        f"{counted}. {measured_on(runs)}")
    return Drawing(figure, caption)


def _panel(ax: Any, rows: pd.DataFrame, names: Sequence[str], colors: dict[str, str]) -> None:
    """Draw the times of one series in one mode."""
    ax.set(xscale="log", yscale="log")
    options: dict[str, Any] = {"x": "input_size", "y": "time_s", "hue": "phase", "hue_order": names,
                               "palette": {name: colors[name] for name in names}, "legend": False, "ax": ax}
    if rows["input_size"].nunique() >= MIN_SIZES:
        sns.lineplot(rows, estimator=None, marker="o", markeredgecolor="white", markeredgewidth=0.4, **options)
    elif len(rows):
        sns.scatterplot(rows, s=12, **options)
    whole = rows.dropna(subset=["low_s", "high_s"])
    ax.vlines(whole["input_size"], whole["low_s"], whole["high_s"], color=INK, linewidth=1.5)
    if len(rows):
        position = "token" if rows["position"].iloc[0] == "pixel" else str(rows["position"].iloc[0])
        ticks_at_sizes(ax, rows["input_size"], [size_text(position, size) for size in rows["input_size"]])
    ax.set_ylabel("")


def _facts(rows: pd.DataFrame) -> str:
    """Return a sentence with what the cases share, such as the batch size."""
    batches = ", ".join(dict.fromkeys(str(size) for size in rows["batch_size"]))
    return f"Batch size {batches}, {', '.join(dict.fromkeys(rows['precision']))}."


FIGURE = PaperFigure("time-by-input-size", 30, _draw)
