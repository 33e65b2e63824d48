"""The figure of the share of each operator type in the operator time of each case."""

from collections.abc import Sequence

import seaborn as sns

from charact.analysis.profile.breakdown import iteration_operator_types
from charact.record.reader import Run
from charact.views.papers._figure import (
    TICK_PT,
    Drawing,
    NoData,
    PaperFigure,
    measured_on,
    of_runs,
    panels,
    times_a_case,
    why_not_taken,
    with_labels,
)
from charact.views.tables import palette

_LEAST_FRAC = 0.01
"""Types below this share in every case have no column."""
_HEAD_IN, _LETTER_IN, _ROW_IN = 0.35, 0.053, 0.19
"""Height of the axis label with the title, of a letter of the names of types, and of a row."""


def _draw(runs: Sequence[Run], width_in: float) -> Drawing:
    rows = of_runs(runs, iteration_operator_types).dropna(subset=["share_frac"])
    if rows.empty:
        raise NoData(f"no case has operators: {why_not_taken(runs, 'operators')}")
    rows = with_labels(rows, runs)
    cases = list(dict.fromkeys(rows["label"]))
    shares = rows.pivot_table(index="label", columns="operator_type", values="share_frac", aggfunc="sum", fill_value=0)
    shares = shares.loc[cases, shares.max() >= _LEAST_FRAC]
    shares = shares[shares.mean().sort_values(ascending=False, kind="stable").index]
    head_in = _HEAD_IN + _LETTER_IN * max(map(len, shares.columns), default=0)
    figure, axes = panels(width_in, head_in + _ROW_IN * len(cases))
    ax = axes[0, 0]
    percent = 100 * shares
    colors = sns.light_palette(palette.operator_type("convolution"), as_cmap=True)
    sns.heatmap(percent, ax=ax, cmap=colors, vmin=0, vmax=100, linewidths=0.5, annot=percent.map("{:.0f}".format),
                fmt="", annot_kws={"fontsize": TICK_PT}, cbar=False)
    ax.set_title("share of operator time (%)", loc="left", pad=3)
    ax.set(xlabel="operator type", ylabel="")
    ax.tick_params(length=0)
    ax.set_xticks(ax.get_xticks(), list(shares.columns), rotation=90)
    ax.set_yticks(ax.get_yticks(), cases, rotation=0)
    counted = times_a_case((entry.passes.operators.num_counted_iterations for run in runs for entry in run.entries),
                           "iterations")
    caption = (
        "Share (%) of each operator type in the operator time of an iteration; a row is a case. Operator time is the "
        "device's time in cases that have it, else the host's time without nested operators; time in no operator does "
        f"not count. Types below {_LEAST_FRAC * 100:g} % in every case have no column, so rows may sum to less than "
        f"100 %. Operator pass: torch.profiler over {counted}; it lengthens short operators. {measured_on(runs)}")
    return Drawing(figure, caption)


FIGURE = PaperFigure("operator-types", 10, _draw)
