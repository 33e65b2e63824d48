"""Deep500's workload analysis: time by operator type and phase, memory, and counters of five workloads."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pandas as pd

from charact.analysis.memory.by_input_size import line_fits, training_to_inference
from charact.analysis.memory.composition import is_memory_run
from charact.analysis.profile import breakdown
from charact.record.reader import Run
from charact.studies.analysis.workload_counters import COUNTERS, workload_counters
from charact.studies.analysis.workload_memory import (
    NO_GROUP,
    RESULT,
    composition_in_loss,
    peaks_by_size,
    weights_and_results,
)
from charact.studies.claims import Value, claims_block
from charact.studies.published import claims_of
from charact.studies.study import Study
from charact.studies.views.figures import grouped_bars
from charact.views.charts import Axis, stacked_bars
from charact.views.document import Block, Body
from charact.views.figures import bars
from charact.views.figures import memory as memory_figures
from charact.views.html.elements.blocks import PHASE, legend_of, operator_legend
from charact.views.tables import format as fmt
from charact.views.tables import memory_text as words
from charact.views.tables import palette
from charact.views.tables.counter_text import counter_value
from charact.views.tables.model import Column, share_column, table


def chapter(runs: Sequence[Run]) -> Body:
    """Build the chapter in the order of the study."""
    profiles = [run for run in runs if not is_memory_run(run)]
    memory = [run for run in runs if is_memory_run(run)]
    return Body(blocks=[_claims(memory), *_operator_types(profiles), *_phases(profiles),
                        *_weights_and_results(profiles), *_by_size(memory), *_in_loss(memory), *_counters(profiles),
                        Block(title="Published values", note=_PUBLISHED)])


def _claims(runs: Sequence[Run]) -> Block:
    """Return the claims' table from the runs of memory."""
    squares = [row for run in runs for row in fmt.rows(line_fits(run))]
    ratios = [ratio for run in runs for ratio in training_to_inference(run)["ratio"].dropna()]
    values = {"training": Value(min(ratios))} if ratios else {}
    for name, position in (("area", "pixel"), ("length", "token")):
        of_position = [row.r_squared for row in squares if row.position == position]
        if of_position:
            values[name] = Value(min(of_position))
    return claims_block(claims_of("deep500"), values)


_PUBLISHED = (
    "Phases: bars without numbers, on an axis from 0 to 700 ms. Memory: weights against mediate results and temporary "
    "memory, on an axis from 0 to 16,000 MB; against an image area up to 200,000 pixels, 2,048 to 18,432 MB; against a "
    "sequence length up to 1,200. Counters: one row of normalized values without names, 1, 0.46, 1.00, 1.00, 4.02, "
    "5.65.")
"""What the study publishes for each of its figures: none can be compared by number."""


def _of_each(runs: Sequence[Run], analysis: Any) -> pd.DataFrame:
    """Return the rows of an analysis of all runs, with the workload in place of the case."""
    frames = []
    for run in runs:
        names = dict(zip(run.cases["case"], run.cases["workload"], strict=True))
        rows = analysis(run)
        frames.append(rows.assign(case=rows["case"].map(names)))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _operator_types(runs: Sequence[Run]) -> list[Block]:
    rows = _of_each(runs, breakdown.case_operator_types)
    if rows.empty:
        return []
    title = "Time by operator type in one iteration"
    columns = [Column("case", "Workload"), Column("operator_type", "Operator type"),
               Column("time_s", "Time", fmt.seconds, "per iteration, under the profiler"),
               share_column("share_frac", "Share", "of the iteration, under the profiler")]
    return [Block(title=title, figures=[bars.types_by_case(rows)], legend=operator_legend(rows["operator_type"]),
                  table=table(rows, title, columns))]


def _phases(runs: Sequence[Run]) -> list[Block]:
    rows = _of_each(runs, breakdown.phase_breakdown)
    if rows.empty:
        return []
    columns = [Column("case", "Workload"), PHASE, Column("time_s", "Time", fmt.seconds, "per iteration"),
               share_column("share_frac", "Share", "of the iteration")]
    return [Block(title="Time by phase of an iteration", figures=bars.phases(rows),
                  legend=legend_of(rows["phase"], palette.PHASES),
                  table=table(rows, "Time by phase of an iteration", columns))]


def _weights_and_results(runs: Sequence[Run]) -> list[Block]:
    """Return the memory at the peak in the study's groups: two bars for each workload."""
    rows = weights_and_results(runs)
    if rows.empty:
        return []
    drawn = rows[rows["group"] != NO_GROUP]
    drawn = drawn.assign(name=drawn["workload"] + ": " + drawn["group"].replace(RESULT, "results"))
    figure = stacked_bars("Weights against mediate results and temporary memory", drawn, ("name", "category", "bytes"),
                          palette.CATEGORIES.__getitem__, "memory at the peak", unit="B", row_px=bars.ROW_PX)
    columns = [Column("workload", "Workload"), Column("group", "Group"), _CATEGORY,
               Column("bytes", "Memory", fmt.num_bytes, "held through PyTorch's allocator"),
               share_column("share_frac", "Share", "of the peak"), PHASE]
    title = "Weights against mediate results, at the peak of training"
    return [Block(title=title, figures=[figure], legend=legend_of(drawn["category"], palette.CATEGORIES),
                  table=table(_worded(rows), title, columns),
                  note="Weight has gradients and optimizer state. "
                       "Results are activations (the study's mediate results) and "
                       "temporary memory. The study has no group for input.")]


_CATEGORY = Column("category", "Category")
_INPUTS = {"pixel": "image area", "token": "sequence length", "lookup": "lookups", "unit of S": "input size"}


def _worded(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(category=rows["category"].str.replace("_", " "))


def _by_size(runs: Sequence[Run]) -> list[Block]:
    """Return memory against the input, a block for image areas and one for sequence lengths."""
    rows = peaks_by_size(runs)
    blocks = []
    for position, group in rows.groupby("position", sort=False):
        group = group.assign(label=[words.model(row.workload, row.variant) for row in fmt.rows(group)])
        colors = dict(zip(group["label"].unique(), cycle(palette.CASES), strict=False))
        title = f"Memory against the {_INPUTS[str(position)]}"
        both = group.dropna(subset=["ratio"])
        figures = [memory_figures.peaks(title, group, colors)]
        if len(both):
            figures.append(memory_figures.ratios(f"{title}: training over inference", both, colors))
        columns = [Column("label", "Workload", unbroken=True), Column("input_size", "Input size", fmt.number),
                   Column("train_bytes", "Training", fmt.num_bytes, "peak of an iteration", _not_run),
                   Column("infer_bytes", "Inference", fmt.num_bytes, "peak of an iteration", _not_run),
                   Column("ratio", "Training / inference", fmt.ratio, "of the peaks", _not_run),
                   Column("method", "Method")]
        batches = ", ".join(dict.fromkeys(f"{row.batch_size} a batch, {row.precision}" for row in fmt.rows(group)))
        blocks.append(Block(title=title, figures=figures, legend=list(colors.items()),
                            table=table(group, title, columns), note=f"{batches[0].upper()}{batches[1:]}."))
    return blocks


def _not_run(row: object) -> str:
    return "not run"


def _in_loss(runs: Sequence[Run]) -> list[Block]:
    """Return what memory is for at one moment of all sizes."""
    rows = composition_in_loss(runs)
    if rows.empty:
        return []
    rows = rows.assign(label=[f"{row.workload}, {words.size_text(row.position, row.input_size)}"
                              for row in fmt.rows(rows)])
    title = "Memory at one moment of training, by input size"
    figures = [stacked_bars(f"{title}: {_INPUTS[str(position)]}", group, ("label", "category", "bytes"),
                            palette.CATEGORIES.__getitem__, f"share, by {_INPUTS[str(position)]}", unit=None,
                            row_px=bars.ROW_PX)
               for position, group in rows.groupby("position", sort=False)]
    columns = [Column("label", "Workload", unbroken=True), _CATEGORY, Column("bytes", "Memory", fmt.num_bytes),
               share_column("share_frac", "Share", "of the memory at that moment"), Column("method", "Method")]
    return [Block(title=title, figures=figures, legend=legend_of(rows["category"], palette.CATEGORIES),
                  table=table(_worded(rows), title, columns),
                  note="The moment is the peak of the phase loss, after forward and before backward: what is kept for "
                       "backward is held at every size. The peak of an iteration may be in another phase at each "
                       "size.")]


def _counters(runs: Sequence[Run]) -> list[Block]:
    """Return the counters, each divided by that of the first workload."""
    rows = workload_counters(runs)
    if rows.empty:
        return []
    title = "Counters of the device, normalized"
    first = rows["workload"].iloc[0]
    rows = rows.assign(title=rows["counter"].map(COUNTERS),
                       text=[counter_value(row.counter, row.value, row.reason) for row in fmt.rows(rows)])
    drawn = rows.dropna(subset=["normalized"]).sort_values(
        "counter", key=lambda names: names.map(list(COUNTERS).index), kind="stable")
    drawn = drawn.assign(group=drawn["title"], name=drawn["workload"], value=drawn["normalized"], text=[
        f"{row.title}, {row.workload}: {row.text}, {fmt.ratio(row.normalized)}" for row in fmt.rows(drawn)])
    colors = dict(zip(rows["workload"].unique(), cycle(palette.CASES), strict=False))
    axis = Axis(f"value / value of {first}", low=0)
    figures = [grouped_bars(title, drawn, axis, colors)] if len(drawn) else []
    columns = [Column("workload", "Workload"), Column("title", "Counter"), Column("text", "Value", wide=True),
               Column("normalized", "Normalized", fmt.ratio, f"value / value of {first}", lambda row: "no value")]
    absent = rows[rows["value"].isna()].drop_duplicates(["title", "reason"])
    missing = [(", ".join(group["title"].unique()), fmt.missing(str(reason)))
               for reason, group in absent.groupby("reason", sort=False)]
    return [Block(title=title, figures=figures, table=table(rows, title, columns) if figures else None,
                  legend=list(colors.items()) if figures else [], missing=missing)]


STUDY = Study(
    "deep500", "Deep500: workload analysis", "Tsinghua University: workload analysis with Deep500", chapter,
    {"quick": ("In the figures of time, VGG-16 and ResNet-50 are the variants for 32×32 images, 16 a batch.",
               "The AoA Reader reads 128 words, 8 samples a batch.",
               "Memory against the input is estimated on tensors without data, at three or four sizes."),
     "full": ("The study states no batch sizes: 64 images, and the workloads' own for text.",)})
