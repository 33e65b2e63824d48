"""The sections of figures and tables: time, operators, layers, memory, FLOP."""

from typing import Any

import pandas as pd

from charact import analysis
from charact.store import Run
from charact.views import format as fmt
from charact.views import palette
from charact.views.html import figures
from charact.views.html.blocks import CASE, PHASE, Block, Body, legend_of, missing_cases, why_nothing
from charact.views.html.tables import Column, share_column, table, top

_NUM_TOP = 25
_UNCOUNTED = "no formula"


def phases(run: Run) -> Body:
    """Time by phase, absolute and as shares."""
    breakdown = analysis.phase_breakdown(run)
    if breakdown.empty:
        return Body(blocks=[Block(note=why_nothing(run, "timing"))])
    columns = [
        CASE, PHASE,
        Column("time_s", "Time", fmt.seconds, "share × median iteration time: phases sum to the headline"),
        share_column("share_frac", "Share", "part of the time of all iterations"),
        Column("median_s", "Median", fmt.seconds, "median over the iterations; medians do not sum"),
        Column("mean_s", "Mean", fmt.seconds, "mean over the iterations"),
        Column("host_s", "Host clock", fmt.seconds, "mean between the phase's marks on the host"),
        Column("device_s", "Device clock", fmt.seconds, "mean between the phase's CUDA events",
               lambda row: "timed on the host"),
    ]  # fmt: skip
    block = Block(
        figures=figures.phases(breakdown), legend=legend_of(breakdown["phase"], palette.PHASES),
        table=table(breakdown, "Time of an iteration by phase", columns),
    )  # fmt: skip
    lead = (
        "Phases never overlap, and with “other” they sum to the iteration’s wall time. Taken while nothing else is "
        "measured."
    )
    return Body(lead=lead, blocks=[block, *missing_cases(run, "timing", breakdown["case"])])


def operator_types(run: Run) -> Body:
    """Time by operator type in each phase, a figure a case."""
    types = analysis.operator_types(run)
    if types.empty:
        return Body(blocks=[Block(note=why_nothing(run, "operators"))])
    columns = [
        PHASE, Column("operator_type", "Operator type"),
        Column("time_s", "Time", fmt.seconds, "per iteration, under the profiler"),
        share_column("share_frac", "Share of the phase", "part of the phase's time under the profiler"),
        Column("num_calls", "Calls", fmt.number, "operators per iteration", lambda row: "not operators"),
    ]  # fmt: skip
    blocks = []
    for case, rows in types.groupby("case", sort=False):
        names = rows.groupby("operator_type")["time_s"].sum().sort_values(ascending=False).index
        blocks.append(Block(
            title=str(case), case=str(case), figures=[figures.operator_types(str(case), rows)],
            legend=[(str(name), palette.operator_type(str(name))) for name in names],
            table=table(rows, f"Operator types of {case}", columns),
        ))  # fmt: skip
    lead = (
        "What kind of work each phase does. Taken under the profiler, which makes short operators longer: read the "
        f"shares rather than the times. “{analysis.OUTSIDE_OPERATORS}” is what of a phase no operator covers: Python, "
        "the data loader, waiting."
    )
    return Body(lead=lead, blocks=[*blocks, *missing_cases(run, "operators", types["case"])])


def operators(run: Run) -> Body:
    """The longest operators of each case."""
    rows, note = top(analysis.top_operators(run), _NUM_TOP)
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "operators"))])
    columns = [
        CASE, PHASE, Column("operator", "Operator"), Column("operator_type", "Type"),
        Column("num_calls", "Calls", fmt.number, "per iteration"),
        Column("time_s", "Time", fmt.seconds, "per iteration without nested operators, under the profiler"),
        share_column("share_frac", "Share of operators", "part of the operator time of the case's iteration"),
        Column("flop", "FLOP", fmt.num_flop, "per iteration", lambda row: _UNCOUNTED),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "FLOP / time under the profiler", lambda row: _UNCOUNTED),
    ]  # fmt: skip
    return Body(
        lead="The operators that take longest, layers and shapes taken together. Click a heading to sort.",
        blocks=[Block(table=table(rows, "Operators by time", columns, note)),
                *missing_cases(run, "operators", rows["case"])],
    )  # fmt: skip


def layers(run: Run) -> Body:
    """The longest layers of each case."""
    rows, note = top(analysis.top_layers(run), _NUM_TOP)
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "operators"))])

    modes = {entry["case"]: entry["mode"] for entry in run.manifest["cases"]}

    def no_time(row: Any) -> str:
        without_operators = "inference" if modes[row.case] == "infer" else "no operators"
        return analysis.pass_reason(run, row.case, "operators") or without_operators

    columns = [
        CASE, Column("layer", "Layer"), Column("layer_type", "Type", reason=lambda row: "not recorded"),
        Column("forward_s", "Forward", fmt.seconds, "per iteration, under the profiler", no_time),
        Column("backward_s", "Backward", fmt.seconds, "per iteration, under the profiler", no_time),
        share_column("share_frac", "Share of operators", "part of the operator time of the case's iteration"),
        Column("flop", "FLOP", fmt.num_flop, "per iteration, all phases", lambda row: _UNCOUNTED),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "FLOP / time of all phases", lambda row: _UNCOUNTED),
        Column("num_parameters", "Parameters", fmt.number, "it holds itself", lambda row: "not recorded"),
    ]  # fmt: skip
    return Body(
        lead="The layers that take longest. A backward operator belongs to the layer of its forward operator.",
        blocks=[Block(table=table(rows, "Layers by time", columns, note)),
                *missing_cases(run, "operators", rows["case"])],
    )  # fmt: skip


def memory(run: Run) -> Body:
    """Memory by category at the peak, by phase, and against input size."""
    peaks = analysis.memory_composition(run)
    if peaks.empty:
        return Body(blocks=[Block(note=why_nothing(run, "memory"))])
    columns = [
        CASE, Column("method", "Method", meaning="measured or predicted"), PHASE, Column("category", "Category"),
        Column("bytes", "Memory", fmt.num_bytes, "held through PyTorch's allocator"),
        share_column("share_frac", "Share", "part of what is held at that moment"),
    ]  # fmt: skip
    peak = Block(
        title="At the peak of an iteration", figures=[figures.memory(peaks)],
        legend=legend_of(peaks.loc[peaks["bytes"] > 0, "category"], palette.CATEGORIES),
        table=table(peaks, "Memory by category at the peak", columns),
    )  # fmt: skip
    by_phase = analysis.memory_by_phase(run)
    each = Block(
        title="At the peak of each phase", folded=True,
        table=table(by_phase, "Memory by category at the peak of each phase", columns),
    )  # fmt: skip
    lead = (
        "What PyTorch’s allocator holds. Memory that libraries take for themselves, and Python’s own, is not in it. "
        "Activations are made in forward or loss and outlive the operator that made them; temporary is all else that "
        "is given back by the iteration’s end. Against input size, dots are measured and joined by straight lines."
    )
    blocks = [peak, *_memory_by_size(run), *([each] if len(by_phase) else [])]
    return Body(lead=lead, blocks=[*blocks, *missing_cases(run, "memory", peaks["case"])])


def _memory_by_size(run: Run) -> list[Block]:
    rows = analysis.memory_by_size(run)
    columns = [
        Column("input_size", "Input size", fmt.number), Column("category", "Category"),
        Column("bytes", "Memory", fmt.num_bytes, "at the peak of an iteration"),
    ]  # fmt: skip
    blocks = []
    series = ["workload", "variant", "mode", "batch_size", "precision", "device", "method"]
    for key, group in rows.groupby(series, sort=False):
        if group["input_size"].nunique() < 2:
            continue
        workload, variant, mode, batch_size, precision, device, method = key
        title = f"{workload} ({variant}), {mode}, batch {batch_size}, {precision}, {device}, {method}"
        figure = figures.memory_by_size(title, group, _size_unit(run, group))
        # The rows are of several cases: the filter by case must leave the curve whole.
        blocks.append(Block(
            title=f"Against input size: {title}", figures=[figure],
            legend=legend_of(group.loc[group["bytes"] > 0, "category"], palette.CATEGORIES),
            table=table(group.drop(columns="case"), f"Peak memory against input size: {title}", columns),
        ))  # fmt: skip
    if blocks or run.cases["input_size"].isna().all():  # a watched program does not tell its input size
        return blocks
    return [Block(title="Against input size", note=fmt.missing("one input size only: give --input-sizes two"))]


def _size_unit(run: Run, group: pd.DataFrame) -> str:
    kinds = {entry["case"]: entry.get("input_kind") for entry in run.manifest["cases"]}
    return {"sequence": "tokens", "other": "S of --input-spec"}.get(kinds[group["case"].iloc[0]], "pixels a side")


def flop(run: Run) -> Body:
    """Counted work by phase, and the rate it was done at."""
    work = analysis.flop_by_phase(run)
    if work.empty:
        return Body(blocks=[Block(note=why_nothing(run, "flop"))])

    def no_rate(row: Any) -> str:
        return analysis.pass_reason(run, row.case, "timing") or "phase not timed"

    columns = [
        CASE, PHASE, Column("flop", "FLOP", fmt.num_flop, "per iteration, 1 MAC = 2 FLOP"),
        Column("time_s", "Time", fmt.seconds, "of the phase, timing pass", no_rate),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "FLOP / time of the phase", no_rate),
        Column("bytes", "Bytes moved", fmt.num_bytes, "by the counted operators, modelled: inputs and outputs once"),
        Column("flop_per_byte", "FLOP/byte", fmt.number, "arithmetic intensity of the counted operators"),
    ]  # fmt: skip
    has_rates = bool(work["flop_per_s"].notna().any())
    block = Block(
        figures=[figures.rates(work)] if has_rates else [],
        legend=legend_of(work["phase"], palette.PHASES) if has_rates else [],
        table=table(work, "Work and rate of each phase", columns),
    )  # fmt: skip
    lead = (
        "The work of convolutions, matrix products and attention, one multiply-add being 2 FLOP, over the time of the "
        "timing pass. Pointwise work is not counted, as in published counts: rates are a lower bound."
    )
    return Body(lead=lead, blocks=[block, *missing_cases(run, "flop", work["case"])])
