"""The figure of estimated against measured peak memory."""

from collections.abc import Sequence

import seaborn as sns
from matplotlib.lines import Line2D

from charact.analysis.memory.composition import memory_peaks
from charact.record.reader import Run
from charact.views.charts import ends_around
from charact.views.papers._figure import (
    Drawing,
    NoData,
    PaperFigure,
    key_below,
    measured_on,
    of_runs,
    on_diagonal,
    panels,
    unique,
)
from charact.views.tables import palette


def _draw(runs: Sequence[Run], width_in: float) -> Drawing:
    peaks = of_runs(runs, memory_peaks)
    rows = peaks.dropna(subset=["predicted_bytes", "measured_bytes"])
    rows = rows[(rows["predicted_bytes"] > 0) & (rows["measured_bytes"] > 0)]
    if rows.empty:
        reasons = peaks["measured_reason"].fillna(peaks["predicted_reason"])
        reasons = reasons.mask(peaks["measured_bytes"].isna() & peaks["predicted_bytes"].isna(), "neither")
        raise NoData(f"no case has both an estimated and a measured peak: {'; '.join(dict.fromkeys(reasons.dropna()))}")
    workloads = {(str(run.path), entry.case): entry.workload or entry.case for run in runs for entry in run.entries}
    rows = rows.assign(workload=[workloads[key] for key in zip(rows["run"], rows["case"], strict=True)])
    names = dict(zip(found := list(dict.fromkeys(rows["workload"])), unique(found), strict=True))
    rows = rows.assign(workload=rows["workload"].map(names))
    colors = {name: palette.CASES[number % len(palette.CASES)] for number, name in enumerate(names.values())}
    figure, axes = panels(width_in, width_in * 0.85 + 0.3)
    ax = axes[0, 0]
    low, high = ends_around([*rows["predicted_bytes"], *rows["measured_bytes"], *rows["high_bytes"].dropna()], 1.4)
    on_diagonal(ax, "measured peak", "estimated peak", "B", low, high)
    ax.vlines(rows["measured_bytes"], rows["low_bytes"].fillna(rows["predicted_bytes"]),
              rows["high_bytes"].fillna(rows["predicted_bytes"]), color=rows["workload"].map(colors), linewidth=0.8)
    sns.scatterplot(rows, x="measured_bytes", y="predicted_bytes", hue="workload", palette=colors, s=14, legend=False,
                    ax=ax)
    ax.set(xlabel=ax.get_xlabel(), ylabel=ax.get_ylabel())
    key_below(figure, [Line2D([], [], color=color, marker="o", linestyle="none", label=name)
                       for name, color in colors.items()], max(2, int(width_in)))
    caption = (
        f"Estimated against measured peak memory of an iteration in PyTorch's allocator: {len(rows)} cases; "
        " on the line they are equal. Both axes are logarithmic. Vertical bars: the range of the estimate. "
        "Estimated on tensors without data; measured by the memory pass from the profiler's allocation events, one "
        f"iteration a case. {measured_on(runs)}")
    return Drawing(figure, caption)


FIGURE = PaperFigure("memory-estimates", 50, _draw)
