"""Deep500's workload analysis: time by operator type and phase, memory, and counters of five workloads."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from charact.analysis.efficiency.counters import counter_sources, counter_values, missing_counters
from charact.analysis.memory.by_input_size import line_fits, training_to_inference
from charact.analysis.memory.composition import is_memory_run, memory_composition
from charact.analysis.profile import breakdown
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run
from charact.studies.claims import Value, claims_block
from charact.studies.published import claims_of
from charact.studies.study import Study
from charact.views.charts import stacked_bars
from charact.views.document import Block, Body
from charact.views.figures import bars
from charact.views.figures import memory as memory_figures
from charact.views.html.elements.blocks import PHASE, legend_of, operator_legend
from charact.views.sections.profile import _memory_tables as memory_tables
from charact.views.sections.profile.memory import against_input, training_over_inference
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.counter_text import counter_value
from charact.views.tables.model import Column, share_column, table

_COUNTERS = {
    "warp_occupancy_frac": "Warp occupancy", "warp_execution_efficiency_frac": "Warp execution efficiency",
    "nonpredicated_efficiency_frac": "Non-predicated efficiency", "bandwidth_utilization_frac": "Bandwidth utilization",
}  # fmt: skip
"""The study's counters, with their names there; the fifth is the rate of operations."""


def chapter(runs: Sequence[Run]) -> Body:
    """Build the chapter in the order of the study."""
    profiles = [run for run in runs if not is_memory_run(run)]
    memory = [run for run in runs if is_memory_run(run)]
    return Body(blocks=[_claims(memory), *_operator_types(profiles), *_phases(profiles), *_composition(profiles),
                        *_by_size(memory), *_counters(profiles),
                        Block(title="Published values", points=list(_PUBLISHED))])


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
    ("phases", "bars without numbers, on an axis from 0 to 700 ms"),
    ("memory", "weights against intermediate results and temporary memory, on an axis from 0 to 16,000 MB; against an "
               "image area up to 200,000 pixels, 2,048 to 18,432 MB; against a sequence length up to 1,200"),
    ("counters", "one row of normalized values without names: 1, 0.46, 1.00, 1.00, 4.02, 5.65"),
)
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
    types = _of_each(runs, breakdown.operator_types)
    if types.empty:
        return []
    times = types.groupby(["case", "operator_type"], sort=False)["time_s"].sum().reset_index()
    times["share_frac"] = times["time_s"] / times.groupby("case")["time_s"].transform("sum")
    order = times.groupby("operator_type")["share_frac"].sum().sort_values(ascending=False).index
    workloads = list(types["case"].unique())
    times = times.assign(type_order=times["operator_type"].map(order.get_loc),
                         case_order=times["case"].map(workloads.index))
    times = times.sort_values(by=["case_order", "type_order"])
    figure = stacked_bars("Time by operator type in one iteration", times, ("case", "operator_type", "share_frac"),
                          palette.operator_type, "share of the iteration, under the profiler", unit=None)
    columns = [Column("case", "Workload"), Column("operator_type", "Operator type"),
               Column("time_s", "Time", fmt.seconds, "per iteration, under the profiler"),
               share_column("share_frac", "Share", "of the iteration, under the profiler")]
    return [Block(title="Time by operator type in one iteration", figures=[figure],
                  legend=operator_legend(map(str, order)),
                  table=table(times, "Time by operator type in one iteration", columns))]


def _phases(runs: Sequence[Run]) -> list[Block]:
    rows = _of_each(runs, breakdown.phase_breakdown)
    if rows.empty:
        return []
    columns = [Column("case", "Workload"), PHASE, Column("time_s", "Time", fmt.seconds, "per iteration"),
               share_column("share_frac", "Share", "of the iteration")]
    return [Block(title="Time by phase of an iteration", figures=bars.phases(rows),
                  legend=legend_of(rows["phase"], palette.PHASES),
                  table=table(rows, "Time by phase of an iteration", columns))]


def _composition(runs: Sequence[Run]) -> list[Block]:
    rows = _of_each(runs, memory_composition)
    rows = rows[rows["method"] == "measured"] if len(rows) else rows
    if rows.empty:
        return []
    return [Block(title="Memory composition in training", figures=[memory_figures.at_peak(rows)],
                  legend=legend_of(rows.loc[rows["bytes"] > 0, "category"], palette.CATEGORIES),
                  table=memory_tables.composition(rows, "Memory by category at the peak of a training iteration"))]


def _by_size(runs: Sequence[Run]) -> list[Block]:
    """Return memory against image area and sequence length, and of training over inference, of each workload."""
    return [*(block for run in runs for block in against_input(run)[0]),
            *(replace(block, title=f"{block.title}: {', '.join(run.cases['workload'].unique())}" if block.title else "")
              for run in runs for block in training_over_inference(run))]


def _counters(runs: Sequence[Run]) -> list[Block]:
    rows = []
    for run in runs:
        values, missing, sources = counter_values(run), missing_counters(run), counter_sources(run)
        for row in fmt.rows(case_summary(run)):
            found: dict[str, Any] = {"workload": row.workload, "flop_per_s": row.flop_per_s, "status": row.status}
            of_case = values[values["case"] == row.case]
            for name in _COUNTERS:
                read = of_case.loc[of_case["counter"] == name, "value"]
                found[name] = counter_value(name, float(read.iloc[0])) if len(read) else None
                reasons = missing.loc[(missing["case"] == row.case) & (missing["counter"] == name), "reason"]
                found[f"{name}_reason"] = reasons.iloc[0] if len(reasons) else _no_source(row, sources)
            rows.append(found)
    if not rows:
        return []
    columns = [
        Column("workload", "Workload"),
        *(Column(name, title, None, "", _reason_of(name), wide=True) for name, title in _COUNTERS.items()),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "counted FLOP / median iteration time",
               lambda row: row.status if row.status != "ok" else "not measured"),
    ]  # fmt: skip
    return [Block(title="Counters of the device", table=table(pd.DataFrame(rows), "Counters of the device", columns))]


def _reason_of(name: str) -> Callable[[Any], str]:
    return lambda row: str(getattr(row, f"{name}_reason"))


def _no_source(row: Any, sources: pd.DataFrame) -> str:
    """Return why a case has none of the GPU's counters."""
    if str(row.device).startswith("cpu"):
        return "a GPU's counter; this is a CPU"
    failed = sources[(sources["case"] == row.case) & (sources["status"] != "ok")]
    return "; ".join(dict.fromkeys(failed["reason"].dropna())) or "no source provides it"


STUDY = Study(
    "deep500", "Deep500: workload analysis", "Tsinghua University: workload analysis with Deep500", chapter,
    {"quick": ("In the figures of time, VGG-16 and ResNet-50 are the variants for 32×32 images, 16 a batch.",
               "The AoA Reader reads 128 words, 8 samples a batch.",
               "Memory against the input is estimated on tensors without data, at three sizes."),
     "full": ("The study states no batch sizes: 64 images, and the workloads' own for text.",)})
