"""The figure of the peak memory of an iteration against the input, by mode, measured and estimated."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.lines import Line2D

from charact.analysis.memory.by_input_size import SERIES, case_series
from charact.analysis.memory.composition import memory_peaks
from charact.record.reader import Run
from charact.views.charts import FAINT, MIN_SIZES, SOLID
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
    unique,
    why_not_taken,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.memory_text import AXES, model, size_text

_GROUP = [name for name in SERIES if name != "mode"]
_METHODS = {"predicted_bytes": "--", "measured_bytes": "-"}
_HEAD_IN, _PANEL_IN = 0.4, 1.6


def _rows(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the peaks of series with several sizes: the columns of `case_series` and of `memory_peaks`."""
    rows = of_runs(runs, case_series).merge(of_runs(runs, memory_peaks), on=["run", "case"])
    rows = rows[rows[list(_METHODS)].notna().any(axis="columns")]
    several = rows.groupby(SERIES, dropna=False)["input_size"].transform("nunique") > 1
    return rows[several].sort_values("num_positions", kind="stable")


def _draw(runs: Sequence[Run], width_in: float) -> Drawing:
    rows = _rows(runs)
    if rows.empty:
        known = any(len(run.memory) for run in runs)
        raise NoData("no two cases differ in the input size only: measure three with --input-sizes" if known
                     else f"no case has a peak: {why_not_taken(runs, 'memory')}")
    numbers = rows.groupby(_GROUP, sort=False, dropna=False).ngroup()
    firsts = rows.assign(number=numbers).drop_duplicates("number").sort_values("number")
    names = unique(model(row.workload, row.variant) for row in fmt.rows(firsts))
    rows = rows.assign(series=[names[number] for number in numbers])
    colors = {name: palette.CASES[number % len(palette.CASES)] for number, name in enumerate(names)}
    modes, positions = (list(dict.fromkeys(rows[name])) for name in ("mode", "position"))
    figure, axes = panels(width_in, _HEAD_IN + _PANEL_IN * len(positions), len(positions), len(modes), sharey="row")
    for line, position in enumerate(positions):
        of_position = rows[rows["position"] == position]
        high_bytes = float(of_position[[*_METHODS, "high_bytes"]].max().max())
        for ax, mode in zip(axes[line], modes, strict=True):
            of_mode = of_position[of_position["mode"] == mode]
            for series, of_series in of_mode.groupby("series", sort=False):
                _series(ax, of_series, colors[str(series)])
            if len(of_mode):
                names_of = [size_text(position, size) for size in of_mode["input_size"]]
                ticks_at_sizes(ax, of_mode["num_positions"], names_of)
            ax.set(ylabel="", xlabel=AXES[position], ylim=(0, 1.05 * high_bytes or 1))
            ax.set_title(mode, loc="left", pad=3)
        label_axis(axes[line, 0].yaxis, "peak memory", "B", 0, high_bytes)
    style = SOLID if rows.groupby(SERIES, dropna=False)["input_size"].nunique().max() >= MIN_SIZES else "none"
    handles = [Line2D([], [], color=color, marker="o", linestyle=style, label=name) for name, color in colors.items()]
    if rows["predicted_bytes"].notna().any():
        handles.append(Line2D([], [], color=FAINT, linestyle="--", label="estimated"))
    key_below(figure, handles, max(2, int(width_in)))
    caption = (
        "Peak memory of an iteration in PyTorch's allocator against the input, with ticks at the measured sizes, of an "
        "image as 64². Dots: measured by the memory pass from the profiler's allocation events, one iteration a case. "
        f"Dashed: estimated on tensors without data, its range shaded. {MIN_SIZES} sizes or more are connected. "
        f"{measured_on(runs)}")
    return Drawing(figure, caption)


def _series(ax: Any, rows: pd.DataFrame, color: str) -> None:
    """Draw the peaks of one series: measured ones as dots, estimated ones as a dashed line with its range."""
    for method, dashes in _METHODS.items():
        known = rows.dropna(subset=[method])
        connected = known["num_positions"].nunique() >= MIN_SIZES
        marker = "o" if method == "measured_bytes" else "" if connected else "x"
        if connected:
            sns.lineplot(known, x="num_positions", y=method, estimator=None, color=color, linestyle=dashes,
                         marker=marker, markeredgecolor="white", markeredgewidth=0.4, legend=False, ax=ax)
        elif len(known):
            sns.scatterplot(known, x="num_positions", y=method, color=color, marker=marker, s=14, legend=False, ax=ax)
    known = rows.dropna(subset=["low_bytes", "high_bytes"])
    if known["num_positions"].nunique() >= MIN_SIZES:
        ax.fill_between(known["num_positions"], known["low_bytes"], known["high_bytes"], color=color, alpha=0.2,
                        linewidth=0)


FIGURE = PaperFigure("memory-by-input-size", 40, _draw)
