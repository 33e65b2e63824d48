"""The sections of figures and tables: time, operators, layers."""

from typing import Any

from charact.analysis.common.pass_status import pass_reason, was_asked_for
from charact.analysis.common.script_attribution import is_imported
from charact.analysis.efficiency.layers import top_layers
from charact.analysis.profile import breakdown as breakdown_analysis
from charact.analysis.profile.breakdown import OUTSIDE_OPERATORS, phase_breakdown, top_operators
from charact.record.reader import Run
from charact.views.html.elements import bars
from charact.views.html.elements.blocks import CASE, PHASE, Block, Body, legend_of, missing_cases, why_nothing
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table, top

_NUM_TOP = 25
_UNCOUNTED = "no formula"


def is_timed(run: Run) -> bool:
    """Whether a case was to be timed for its own sake, not only for a constructed latency to be held against."""
    passes = [entry.get("passes", {}) for entry in run.manifest["cases"]]
    return any("timing" in taken and "construct" not in taken for taken in passes)


def has_phases(run: Run) -> bool:
    """Whether iterations were timed, or were to be; those that constructed models are held against count as theirs."""
    return is_timed(run) or not set(run.iterations["case"]) <= set(run.constructions["case"])


def phases(run: Run) -> Body:
    """Time by phase, absolute and as shares."""
    breakdown = phase_breakdown(run)
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
        figures=bars.phases(breakdown), legend=legend_of(breakdown["phase"], palette.PHASES),
        table=table(breakdown, "Time of an iteration by phase", columns),
    )  # fmt: skip
    taken = "Taken from the trace." if is_imported(run) else "Taken while nothing else is measured."
    lead = f"Phases never overlap, and with “other” they sum to the iteration’s wall time. {taken}"
    return Body(lead=lead, blocks=[block, *missing_cases(run, "timing", breakdown["case"])])


def operator_types(run: Run) -> Body:
    """Time by operator type in each phase, a figure a case."""
    types = breakdown_analysis.operator_types(run)
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
            title=str(case), case=str(case), figures=[bars.operator_types(str(case), rows)],
            legend=[(str(name), palette.operator_type(str(name))) for name in names],
            table=table(rows, f"Operator types of {case}", columns),
        ))  # fmt: skip
    lead = (
        "What kind of work each phase does. Taken under the profiler, which makes short operators longer: read the "
        f"shares rather than the times. “{OUTSIDE_OPERATORS}” is what of a phase no operator covers: Python, "
        "the data loader, waiting."
    )
    return Body(lead=lead, blocks=[*blocks, *missing_cases(run, "operators", types["case"])])


def operators(run: Run) -> Body:
    """The longest operators of each case."""
    rows, note = top(top_operators(run), _NUM_TOP)
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "operators"))])
    columns = [
        CASE, PHASE, Column("operator", "Operator"), Column("operator_type", "Type"),
        Column("num_calls", "Calls", fmt.number, "per iteration"),
        Column("time_s", "Time", fmt.seconds, "per iteration without nested operators, under the profiler"),
        share_column("share_frac", "Share of operators", "part of the operator time of the case's iteration"),
        *_flop_columns(run, "per iteration", "FLOP / time under the profiler"),
    ]  # fmt: skip
    return Body(
        lead="The operators that take longest, layers and shapes taken together. Click a heading to sort.",
        blocks=[Block(table=table(rows, "Operators by time", columns, note)),
                *missing_cases(run, "operators", rows["case"])],
    )  # fmt: skip


def layers(run: Run) -> Body:
    """The longest layers of each case."""
    rows, note = top(top_layers(run), _NUM_TOP)
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "operators"))])

    modes = {entry["case"]: entry["mode"] for entry in run.manifest["cases"]}

    def no_time(row: Any) -> str:
        without_operators = "inference" if modes[row.case] == "infer" else "no operators"
        return pass_reason(run, row.case, "operators") or without_operators

    columns = [
        CASE, Column("layer", "Layer"), Column("layer_type", "Type", reason=lambda row: "not recorded"),
        Column("forward_s", "Forward", fmt.seconds, "per iteration, under the profiler", no_time),
        Column("backward_s", "Backward", fmt.seconds, "per iteration, under the profiler", no_time),
        share_column("share_frac", "Share of operators", "part of the operator time of the case's iteration"),
        *_flop_columns(run, "per iteration, all phases", "FLOP / time of all phases"),
        Column("num_parameters", "Parameters", fmt.number, "it holds itself", lambda row: "not recorded"),
    ]  # fmt: skip
    return Body(
        lead="The layers that take longest. A backward operator belongs to the layer of its forward operator.",
        blocks=[Block(table=table(rows, "Layers by time", columns, note)),
                *missing_cases(run, "operators", rows["case"])],
    )  # fmt: skip


def _flop_columns(run: Run, work: str, rate: str) -> list[Column]:
    """FLOP and FLOP/s of a row, where FLOP were counted; takes what each means."""
    if not was_asked_for(run, "flop"):
        return []

    def uncounted(row: Any) -> str:
        return pass_reason(run, row.case, "flop") or _UNCOUNTED

    return [Column("flop", "FLOP", fmt.num_flop, work, uncounted),
            Column("flop_per_s", "FLOP/s", fmt.flop_rate, rate, uncounted)]
