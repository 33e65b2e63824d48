"""The figure of the constructed against the measured latency of each model."""

from collections.abc import Sequence
from itertools import cycle

import seaborn as sns
from matplotlib.lines import Line2D

from charact.bricks.analysis.tables import BAND_FRAC, normalized_latency
from charact.bricks.views.tables import LABELS
from charact.record.reader import Run
from charact.views.charts import FAINT, TRACK, ends_around
from charact.views.papers._figure import (
    Drawing,
    NoData,
    PaperFigure,
    key_below,
    measured_on,
    of_runs,
    on_diagonal,
    panels,
)
from charact.views.tables import palette


def _draw(runs: Sequence[Run], width_in: float) -> Drawing:
    rows = of_runs(runs, normalized_latency).query("phase == 'all'")
    if rows.empty:
        raise NoData("no latency was constructed from bricks")
    known = rows.dropna(subset=["latency_s", "measured_s"])
    if known.empty:
        reasons = rows["reason"].fillna(rows["measured_reason"]).dropna()
        raise NoData(f"no model was both constructed and measured: {'; '.join(dict.fromkeys(reasons))}")
    strategies = [name for name in LABELS if (known["strategy"] == name).any()]
    colors = dict(zip(strategies, palette.CASES, strict=False))
    sizes = sorted(known["g"].unique())
    markers = dict(zip(sizes, cycle("osvD^P"), strict=False))
    figure, axes = panels(width_in, width_in * 0.85 + 0.3)
    ax = axes[0, 0]
    ends = [*known["latency_s"], *known["measured_s"], *known["low_s"].dropna(), *known["high_s"].dropna()]
    low_s, high_s = ends_around(ends, 1.3)
    on_diagonal(ax, "measured latency", "constructed latency", "s", low_s, high_s)
    ax.fill_between([low_s, high_s], [(1 - BAND_FRAC) * low_s, (1 - BAND_FRAC) * high_s],
                    [(1 + BAND_FRAC) * low_s, (1 + BAND_FRAC) * high_s], color=TRACK, linewidth=0, zorder=-1)
    ax.vlines(known["measured_s"], known["low_s"], known["high_s"], color=known["strategy"].map(colors), linewidth=0.8)
    sns.scatterplot(known, x="measured_s", y="latency_s", hue="strategy", hue_order=strategies, palette=colors,
                    style="g", markers=markers, s=16, legend=False, ax=ax)
    ax.set(xlabel=ax.get_xlabel(), ylabel=ax.get_ylabel())
    handles = [Line2D([], [], color=colors[name], marker="o", linestyle="none", label=LABELS[name])
               for name in strategies]
    handles += [Line2D([], [], color=FAINT, marker=markers[g], linestyle="none", label=f"G = {g:.0f}") for g in sizes]
    key_below(figure, handles, max(3, int(width_in)))
    caption = (
        "Latency constructed from bricks against the measured latency of the same model, "
        f"{len(known)} constructions of {known['case'].nunique()} cases; on the line they are equal, and the band is "
        f"± {100 * BAND_FRAC:g} %. Both axes are logarithmic. A brick has at most G layers. Vertical bars: the 95 % "
        "interval of the construction. Measured: the median of timed iterations of the whole model. "
        f"{measured_on(runs)}")
    return Drawing(figure, caption)


FIGURE = PaperFigure("constructed-latency", 60, _draw)
