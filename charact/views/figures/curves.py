"""Charts of trainings and inferences: learning curves, parts of a total, and curves over batch size."""

import pandas as pd

from charact.views.charts import (
    DASHED,
    FAINT,
    INK,
    MIN_SIZES,
    NOT_CONNECTED,
    SOLID,
    Axis,
    Chart,
    Curve,
    percent,
    stacked_bars,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette

_NUM_MARKED = 30  # points of a curve; more markers would hide its line
_NUM_HOVERED = 60  # points of a curve whose value is shown on hover
_LOG_FROM_RATIO = 50
_STYLES = {"training": DASHED, "validation": SOLID}


def learning_curve(metric: str, curves: pd.DataFrame, colors: dict[str, str]) -> Chart:
    """Return a metric of every case by epoch, training dashed and validation solid."""
    values = curves["value"].dropna()
    is_share = metric.endswith("accuracy")
    is_log = not is_share and values.min() > 0 and values.max() / values.min() > _LOG_FROM_RATIO
    marker = "o" if curves["epoch"].max() <= _NUM_MARKED else ""
    lines = []
    for (case, stage), rows in curves.groupby(["case", "stage"], sort=False):
        every = -(-len(rows) // _NUM_HOVERED)
        texts = ["" if number % every else f"{case}\n{stage}, epoch {row.epoch:.0f}: {fmt.metric(metric, row.value)}"
                 for number, row in enumerate(fmt.rows(rows))]
        lines.append(Curve(rows["epoch"], rows["value"], colors[str(case)], _STYLES[str(stage)], marker=marker,
                           size=3.5, texts=texts))
    y = Axis(f"{metric}, logarithmic" if is_log else metric, log=is_log,
             text=percent if is_share else fmt.number if is_log else None)
    stages = set(curves["stage"])
    key = [Curve([], [], FAINT, style, label=stage) for stage, style in _STYLES.items() if stage in stages]
    return Chart(f"{metric} of each epoch", Axis("epoch", whole=True), y, lines, 250, key=key)


def inference_parts(parts: pd.DataFrame) -> list[Chart]:
    """Return the total inference time of each case by part: the loads alone, and with the prediction."""
    labelled = parts.assign(label=parts["case"] + ", " + parts["load"])
    columns, color = ("label", "part", "time_s"), palette.INFERENCE_PARTS.__getitem__
    loads = labelled[labelled["part"] != "prediction"]
    return [stacked_bars("Time of each load by phase", loads, columns, color, "load", row_px=48),
            stacked_bars("Total inference time by part", labelled, columns, color, "load and prediction", row_px=48)]


def by_batch_size(title: str, rows: pd.DataFrame) -> list[Chart]:
    """Return percentiles of the batch time, and throughput, against batch size."""
    sizes = rows["batch_size"]
    x = Axis("batch size", log=True, ticks=sorted(sizes.unique()))  # sizes usually double
    style = SOLID if sizes.nunique() >= MIN_SIZES else NOT_CONNECTED
    percentiles = [
        Curve(sizes, rows[f"{name}_s"], color, style, marker="o", size=4,
              texts=[f"batch size {size}: {name} {fmt.seconds(time_s)}"
                     for size, time_s in zip(sizes, rows[f"{name}_s"], strict=True)])
        for name, color in palette.PERCENTILES.items()
    ]  # fmt: skip
    rates = [f"batch size {row.batch_size}: {fmt.number(row.samples_per_s)} samples/s" for row in fmt.rows(rows)]
    return [Chart(f"Time of a batch against batch size: {title}", x, Axis("time of a batch", "s", low=0), percentiles),
            Chart(f"Throughput against batch size: {title}", x, Axis("samples/s", low=0, text=fmt.number),
                  [Curve(sizes, rows["samples_per_s"], INK, style, marker="o", size=4, texts=rates)])]
