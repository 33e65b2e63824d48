"""The section Inference: time of loads and of the prediction, batch latency, and throughput."""


import pandas as pd

from charact.analysis.profile.case_summary import case_summary
from charact.analysis.training.stages import inference_breakdown, inference_summary, prediction_metrics
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.figures import curves as drawn
from charact.views.html.elements.blocks import CASE, legend_of
from charact.views.kinds.inference import few_batches, no_data, not_cold
from charact.views.section import Section, body_of
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table

_LEAD = (
    "Total inference time is load plus prediction. A load builds the model (build), reads the file (read), and "
    "copies the weights to the device, first touch included (place). Cold: the file was removed from the page "
    "cache. Warm: the median of several repeated loads."
)


def _html(run: Run) -> Body:
    summary, parts = inference_summary(run), inference_breakdown(run)
    predicted = summary[summary["total_warm_s"].notna()]
    columns = [
        CASE, Column("load", "Load"), Column("part", "Part"), Column("time_s", "Time", fmt.duration),
        share_column("share_frac", "Share", "part of the total inference time"),
    ]  # fmt: skip
    if predicted.empty:
        return body_of(run, "inference", _LEAD, [], [])
    totals = Block(
        title="Load and prediction", figures=drawn.inference_parts(parts),
        legend=legend_of(parts["part"], palette.INFERENCE_PARTS),
        table=table(parts, "Total inference time by part", columns),
    )  # fmt: skip
    blocks = [totals, *_by_batch_size(run, predicted), *_metrics(run, predicted), _loads(run, predicted)]
    return body_of(run, "inference", _LEAD, blocks, predicted["case"])


def _by_batch_size(run: Run, summary: pd.DataFrame) -> list[Block]:
    """Return blocks of batch latency and throughput against batch size, per group of otherwise equal cases."""
    series = ["workload", "variant", "input_size", "precision", "device", "attention"]
    columns = [
        CASE, Column("batch_size", "Batch size", fmt.number),
        *(Column(f"{name}_s", name, fmt.seconds, f"{name[1:]} % of the batches took at most this long",
                 few_batches(f"{name}_s"))
          for name in palette.PERCENTILES),
        Column("num_batches", "Batches", fmt.number, "of the prediction", no_data),
        Column("samples_per_s", "Samples/s", fmt.number, "samples / time of the prediction", no_data),
    ]  # fmt: skip
    rows = summary.merge(case_summary(run)[["case", *series]], on="case")
    blocks = []
    for key, group in rows.groupby(series, sort=False, dropna=False):
        workload, variant, input_size, precision, device, attention = key
        title = f"{workload} ({variant}), input size {input_size}, {precision}, {device}"
        title += f", {attention} attention" if isinstance(attention, str) else ""
        several = group["batch_size"].nunique() > 1
        blocks.append(Block(
            title=f"Time of a batch: {title}",
            figures=drawn.by_batch_size(title, group.sort_values("batch_size")) if several else [],
            legend=list(palette.PERCENTILES.items()), table=table(group, f"Time of a batch of {title}", columns),
            note="" if several else f"Against batch size {fmt.missing('one batch size only: give --batch-sizes two')}",
        ))  # fmt: skip
    return blocks


def _metrics(run: Run, summary: pd.DataFrame) -> list[Block]:
    rows = prediction_metrics(run)
    if rows.empty:
        return []
    words = [fmt.metric(row.metric, row.value, None if pd.isna(row.reason) else row.reason) for row in fmt.rows(rows)]
    columns = [CASE, Column("metric", "Metric"), Column("shown", "Value", meaning="mean over the samples")]
    note = fmt.OF_NO_TASK if (summary["data"] == "synthetic").any() else ""
    return [Block(title="Quality of predictions", table=table(rows.assign(shown=words), "Metrics", columns), note=note)]


def _loads(run: Run, summary: pd.DataFrame) -> Block:
    names = ["weights", "weights_reason", "weights_bytes", "cold_reason", "num_samples", "setup_s"]
    passes = {case: run.entry(case).passes.inference for case in summary["case"]}
    facts = [{"case": case} | {name: getattr(taken, name) for name in names} for case, taken in passes.items()]
    rows = summary.drop(columns="cold_reason").merge(pd.DataFrame(facts), on="case")
    columns = [
        CASE, Column("weights", "Weights", reason=lambda row: row.weights_reason),
        Column("weights_bytes", "File", fmt.num_bytes),
        Column("load_cold_s", "Cold load", fmt.duration, "", not_cold),
        Column("num_warm_loads", "Warm loads", fmt.number, "repetitions", no_data),
        Column("num_samples", "Samples", fmt.number, "in the data set"),
        Column("setup_s", "Set-up", fmt.duration, "reading the data set; not in the total"),
        Column("compile_s", "Compiling", fmt.duration, "not in the total", lambda row: "not compiled"),
    ]  # fmt: skip
    return Block(title="Loads", table=table(rows, "Loads", columns))


SECTION = Section("inference", "Inference", 40, _html, ("inference",),
                  points={"inference": [
    ("Total inference time", "load + prediction. A load builds the model, reads the file, copies the weights to the "
     "device, first touch included."),
    ("Cold and warm load", "cold: after the file was removed from the page cache; warm: loaded again, the median "
     "of several. The parts of a warm load are their shares of all warm loads."),
    ("Time of a batch", "from fetching a batch to the end of its prediction; percentiles are over all batches of the "
     "prediction, the first ones included."),
]})
