"""The figure of the total training times here against the published ones of GPUs."""

from collections.abc import Sequence

import seaborn as sns
from matplotlib.lines import Line2D

from charact.record.reader import Run
from charact.studies.published import training_times
from charact.views.charts import INK, ends_around
from charact.views.papers._figure import (
    Drawing,
    NoData,
    PaperFigure,
    key_below,
    label_axis,
    measured_on,
    panels,
    unique,
)
from charact.views.tables import palette

HERE = "this machine, modelled"
_HEAD_IN, _ROW_IN = 0.85, 0.2


def _draw(runs: Sequence[Run], width_in: float) -> Drawing:
    times = training_times(runs)
    if times.empty:
        raise NoData("no training of these runs has published times: run charact study northeastern or aalto")
    trainings = list(dict.fromkeys(times["workload"] + ", " + times["data"]))
    names = dict(zip(trainings, unique(trainings), strict=True))
    rows = times.assign(name=(times["workload"] + ", " + times["data"]).map(names),
                        machine=times["machine"].fillna(HERE).astype("str"))
    machines = [HERE, *(machine for machine in dict.fromkeys(rows["machine"]) if machine != HERE)]
    colors = dict(zip(machines, (INK, *palette.CASES), strict=False))
    markers = dict(zip(machines, ("D", *"osv^<>ph"), strict=False))
    figure, axes = panels(width_in, _HEAD_IN + _ROW_IN * len(names))
    ax = axes[0, 0]
    low_s, high_s = ends_around([*rows["total_s"], *rows["high_s"].dropna()], 1.3)
    ax.set(xscale="log", xlim=(low_s, high_s))
    sns.scatterplot(rows, x="total_s", y="name", hue="machine", hue_order=machines, palette=colors, style="machine",
                    markers=markers, s=18, legend=False, ax=ax)
    here = rows.dropna(subset=["low_s", "high_s"])
    ax.hlines(here["name"], here["low_s"], here["high_s"], color=INK, linewidth=0.8)
    ax.margins(y=0.5 / len(names) + 0.05)
    ax.grid(axis="y", linewidth=0.4)
    ax.set(ylabel="")
    ax.tick_params(axis="y", length=0)
    label_axis(ax.xaxis, "total training time", "s", low_s, high_s)
    key_below(figure, [Line2D([], [], color=colors[name], marker=markers[name], linestyle="none", label=name)
                       for name in machines], max(2, int(width_in * 0.8)))
    epochs = ", ".join(f"{number:.0f}" for number in sorted(set(rows["num_epochs"])))
    caption = (
        f"Total training time of {epochs} epochs, here and as published for GPUs, on a logarithmic axis. This machine: "
        "modelled as epochs × samples / the measured samples per second of training, without validation; bar: its 95 % "
        "interval, from the scatter of the batches that were run. Published times include validation where the study "
        f"validated. {measured_on(runs)}")
    return Drawing(figure, caption)


FIGURE = PaperFigure("published-training-times", 70, _draw)
