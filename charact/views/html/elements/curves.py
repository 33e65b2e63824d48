"""Figures of trainings and inferences: learning curves, parts of a total, and curves over batch size."""

from collections.abc import Sequence
from typing import Literal

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from charact.core.units import scale
from charact.views.html.elements.drawing import (
    FAINT,
    INK,
    bar_figure,
    draw_svg,
    plain_axes,
    rows_of,
    show_points_on_hover,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette

_NUM_MARKED = 30  # points of a curve; more markers would hide its line
_NUM_HOVERED = 60  # points of a curve whose value is shown on hover
_LOG_FROM_RATIO = 50
_STYLES: dict[str, Literal["--", "-"]] = {"training": "--", "validation": "-"}


def learning_curve(metric: str, curves: pd.DataFrame, colors: dict[str, str]) -> Markup:
    """Draw a metric of every case by epoch, training dashed and validation solid."""
    values = curves["value"].dropna()
    percent = metric.endswith("accuracy")
    logarithmic = not percent and values.min() > 0 and values.max() / values.min() > _LOG_FROM_RATIO

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        marker = "o" if curves["epoch"].max() <= _NUM_MARKED else None
        for (case, stage), rows in curves.groupby(["case", "stage"], sort=False):
            ax.plot(rows["epoch"], rows["value"], _STYLES[str(stage)], color=colors[str(case)], linewidth=1.5,
                    marker=marker, markersize=3.5)  # fmt: skip
            every = -(-len(rows) // _NUM_HOVERED)
            show_points_on_hover(ax, [
                (row.epoch, row.value, f"{case}\n{stage}, epoch {row.epoch:.0f}: {fmt.metric(metric, row.value)}")
                for row in fmt.rows(rows.dropna(subset=["value"])[::every])])  # fmt: skip
        if logarithmic:
            ax.set_yscale("log")
            ax.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: fmt.number(value)))
            ax.yaxis.set_minor_locator(mpl.ticker.NullLocator())
        elif percent:
            ax.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, symbol=" %"))
        ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(8, integer=True))
        _plain(ax, f"{metric}, logarithmic" if logarithmic else metric, "epoch")
        _style_legend(ax, [stage for stage in _STYLES if stage in set(curves["stage"])])

    return draw_svg(f"{metric} of each epoch", 250, draw)


def _style_legend(ax: Axes, stages: Sequence[str]) -> None:
    lines = [Line2D([], [], color=FAINT, linestyle=_STYLES[stage], label=stage) for stage in stages]
    ax.legend(handles=lines, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=11,
              borderaxespad=0, handlelength=2.4)  # fmt: skip


def _plain(ax: Axes, ylabel: str, xlabel: str) -> None:
    ax.set(ylabel=ylabel, xlabel=xlabel)
    ax.margins(x=0.03, y=0.06)
    plain_axes(ax)


def inference_parts(parts: pd.DataFrame) -> list[Markup]:
    """Draw the total inference time of each case by part: the loads alone, and with the prediction."""
    labels = parts["case"] + ", " + parts["load"]
    loads = rows_of(parts[parts["part"] != "prediction"].assign(label=labels), "label", "part", "time_s")
    totals = rows_of(parts.assign(label=labels), "label", "part", "time_s")

    colors = palette.INFERENCE_PARTS.__getitem__
    return [bar_figure("Time of each load by phase", loads, colors, "load", row_px=48),
            bar_figure("Total inference time by part", totals, colors, "load and prediction", row_px=48)]


def by_batch_size(title: str, rows: pd.DataFrame) -> list[Markup]:
    """Draw percentiles of the batch time, and throughput, against batch size."""

    def draw_latencies(figure: Figure) -> None:
        ax = figure.subplots()
        for name, color in palette.PERCENTILES.items():
            ax.plot(rows["batch_size"], rows[f"{name}_s"], "o-", color=color, linewidth=1.5, markersize=4)
            show_points_on_hover(ax, [
                (size, time_s, f"batch size {size}: {name} {fmt.seconds(time_s)}")
                for size, time_s in zip(rows["batch_size"], rows[f"{name}_s"], strict=True) if time_s == time_s])
        factor, unit = scale([rows[[f"{name}_s" for name in palette.PERCENTILES]].max().max()], "s")
        ax.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value * factor:g}"))
        _batch_sizes(ax, rows, f"time of a batch ({unit})")

    def draw_rates(figure: Figure) -> None:
        ax = figure.subplots()
        ax.plot(rows["batch_size"], rows["samples_per_s"], "o-", color=INK, linewidth=1.5, markersize=4)
        show_points_on_hover(ax, [
            (row.batch_size, row.samples_per_s,
             f"batch size {row.batch_size}: {fmt.number(row.samples_per_s)} samples/s")
            for row in fmt.rows(rows.dropna(subset=["samples_per_s"]))])  # fmt: skip
        ax.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: fmt.number(value)))
        _batch_sizes(ax, rows, "samples/s")

    return [draw_svg(f"Time of a batch against batch size: {title}", 240, draw_latencies),
            draw_svg(f"Throughput against batch size: {title}", 240, draw_rates)]  # fmt: skip


def _batch_sizes(ax: Axes, rows: pd.DataFrame, ylabel: str) -> None:
    """Set a logarithmic axis of batch sizes with a tick at each: they usually double."""
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(mpl.ticker.FixedLocator(sorted(rows["batch_size"].unique())))
    ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    _plain(ax, ylabel, "batch size")
    ax.set_ylim(0, None)
