"""Breakdown of an iteration's time: by phase (timing pass), by operator and operator type (operator pass), by model."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.analysis.profile.case_summary import iteration_times, phase_times, typical_iterations
from charact.core.operator_types import OPERATOR_GROUPS, OUTSIDE_OPERATORS, WITHOUT_OPERATOR, operator_group
from charact.record.reader import Run


@memoize
def phase_breakdown(run: Run) -> pd.DataFrame:
    """Return the time of each phase of each case, phases in the order they run.

    Columns: case; phase; median_s and mean_s over all iterations of the case, 0 in those without the phase; share_frac,
    the phase's part of the time of typical iterations (a case's shares sum to 1; see `slow_iterations` for the others);
    time_s = share_frac × the case's median iteration time, so that a case's phases sum to its headline number (medians
    do not sum); host_s and device_s, the means of the two clocks.
    """
    keys = ["case", "phase"]
    of_iteration = ["case", "iteration", "phase"]
    times = phase_times(run)
    # Zeros if an iteration lacks a phase that others of its case have.
    walls = times.groupby(of_iteration[:2], sort=False, as_index=False).agg(on_device=("device_s", "count"))
    times = walls.merge(times[keys].drop_duplicates(), on="case").merge(times, on=of_iteration, how="left")
    times["device_s"] = times["device_s"].mask(times["host_s"].isna() & (times["on_device"] > 0), 0.0)
    times = times.fillna({"host_s": 0.0, "time_s": 0.0})
    phases = times.groupby(keys, sort=False, as_index=False).agg(
        median_s=("time_s", "median"), mean_s=("time_s", "mean"), host_s=("host_s", "mean"),
        device_s=("device_s", "mean"),
    )  # fmt: skip
    typical = times.merge(typical_iterations(run)[["case", "iteration"]], on=["case", "iteration"])
    phases = phases.merge(typical.groupby(keys, as_index=False).agg(total_s=("time_s", "sum")), on=keys, how="left")
    phases["share_frac"] = phases["total_s"] / phases.groupby("case")["total_s"].transform("sum")
    headline = iteration_times(run).groupby("case")["wall_s"].median()
    phases["time_s"] = phases["share_frac"] * phases["case"].map(headline).astype(float)
    columns = ["case", "phase", "median_s", "mean_s", "share_frac", "time_s", "host_s", "device_s"]
    return in_order(phases, run, "case", "phase")[columns]


@memoize
def operator_times(run: Run) -> pd.DataFrame:
    """Return `operators` with `time_s`: device time in cases that have it, else host time without nested operators."""
    rows = run.operators
    on_device = rows.groupby("case")["device_s"].transform("count") > 0
    return rows.assign(time_s=rows["self_host_s"].mask(on_device, rows["device_s"].fillna(0.0)))


@memoize
def operator_types(run: Run) -> pd.DataFrame:
    """Return the time of each operator type in each phase, as measured under the profiler; longest first in a phase.

    Columns: case; phase; operator_type; num_calls and time_s per iteration; share_frac of the phase. In cases timed on
    the host, a row `OUTSIDE_OPERATORS` has the rest of the phase in the operator pass, so that a phase's shares sum to
    1. In cases timed on a device, they are shares of the phase's kernel time, without such a row.

    *Error*: the profiler lengthens short operators; its overhead ratio is in the manifest.
    """
    keys = ["case", "phase", "operator_type"]
    rows = operator_times(run)
    types = rows.groupby(keys, sort=False, as_index=False)[["num_calls", "time_s"]].sum()
    types = pd.concat([types, _outside_operators(run, rows)], ignore_index=True) if len(types) else types
    types["share_frac"] = types["time_s"] / types.groupby(["case", "phase"])["time_s"].transform("sum")
    return in_order(types.sort_values("time_s", ascending=False, kind="stable"), run, "case", "phase")


@memoize
def case_operator_types(run: Run) -> pd.DataFrame:
    """Return the time of each operator type of a case under the profiler, summed over the phases.

    Types of one of `OPERATOR_GROUPS` follow each other, groups in the same order in each case, so that bars compare.

    Columns: case; operator_type; operator_group; num_calls and time_s per iteration; share_frac of the case's time.
    """
    keys = ["case", "operator_type"]
    rows = operator_types(run).groupby(keys, sort=False, as_index=False)[["num_calls", "time_s"]].sum(min_count=1)
    rows["operator_group"] = [_group(kind) for kind in rows["operator_type"]]
    rows["share_frac"] = rows["time_s"] / rows.groupby("case")["time_s"].transform("sum")
    rows["position"] = rows["operator_group"].map([*OPERATOR_GROUPS, "other", OUTSIDE_OPERATORS].index)
    rows = rows.sort_values(["position", "time_s"], ascending=[True, False], kind="stable")
    return in_order(rows, run, "case")[[*keys, "operator_group", "num_calls", "time_s", "share_frac"]]


def _group(kind: str) -> str:
    return OUTSIDE_OPERATORS if kind == OUTSIDE_OPERATORS else operator_group(kind)


def _outside_operators(run: Run, operators: pd.DataFrame) -> pd.DataFrame:
    covered = operators.groupby(["case", "phase"])["self_host_s"].sum()
    timed_on_device = operators.groupby("case")["device_s"].count() > 0
    # Operators of several threads may overlap: their sum can then exceed the phase.
    rows = [{"case": entry.case, "phase": phase, "operator_type": OUTSIDE_OPERATORS,
             "time_s": max(phase_s - float(covered.get((entry.case, phase), 0.0)), 0.0)}
            for entry in run.entries if not timed_on_device.get(entry.case, True)
            for phase, phase_s in entry.passes.operators.phase_s.items()]
    frame = pd.DataFrame(rows, columns=["case", "phase", "operator_type", "num_calls", "time_s"])
    return frame.astype({"num_calls": "float64", "time_s": "float64"})


def iteration_operator_types(run: Run) -> pd.DataFrame:
    """Return the time of each operator type in an iteration of each case, longest first in a case.

    Columns: case; operator_type; time_s per iteration, over all phases, as measured under the profiler; share_frac of
    the iteration's operator time: the shares of a case sum to 1. Time in no operator does not count.
    """
    types = operator_types(run)
    keys = ["case", "operator_type"]
    types = types[types["operator_type"] != OUTSIDE_OPERATORS]
    rows = types.groupby(keys, sort=False, as_index=False)[["time_s"]].sum()
    total_s = rows.groupby("case")["time_s"].transform("sum")
    rows["share_frac"] = rows["time_s"] / total_s.where(total_s > 0)
    return in_order(rows.sort_values("time_s", ascending=False, kind="stable"), run, "case")


def top_operators(run: Run) -> pd.DataFrame:
    """Return operators of each case by phase, summed over layers and shapes; longest first in a case.

    Columns: case; phase; operator; operator_type; num_calls and time_s per iteration; share_frac of the operator time
    of the case's iteration; flop and bytes per iteration; flop_per_s = flop / time_s. Null FLOP were not counted.
    """
    keys = ["case", "phase", "operator", "operator_type"]
    rows = operator_times(run).groupby(keys, sort=False, as_index=False)
    operators = rows[["num_calls", "time_s", "flop", "bytes"]].sum(min_count=1)
    operators["share_frac"] = operators["time_s"] / operators.groupby("case")["time_s"].transform("sum")
    operators["flop_per_s"] = operators["flop"].div(operators["time_s"].where(operators["time_s"] > 0))
    columns = [*keys, "num_calls", "time_s", "share_frac", "flop", "bytes", "flop_per_s"]
    return in_order(operators.sort_values("time_s", ascending=False, kind="stable"), run, "case")[columns]


def operator_coverage(run: Run) -> pd.DataFrame:
    """Return the share of each case's operator time whose type is known, that is not 'other'.

    Columns: case; time_s, all operators of an iteration; other_s, those of type 'other' and kernels
    without an operator; coverage_frac.
    """
    rows = operator_times(run)
    rows["other_s"] = rows["time_s"].where(rows["operator_type"].isin(["other", WITHOUT_OPERATOR]), 0.0)
    coverage = rows.groupby("case", sort=False, as_index=False)[["time_s", "other_s"]].sum()
    coverage["coverage_frac"] = 1 - coverage["other_s"] / coverage["time_s"]
    return in_order(coverage, run, "case")


@memoize
def part_breakdown(run: Run) -> pd.DataFrame:
    """Return the time of each model's or optimizer's phases, in cases that have several; other cases have no rows.

    Columns: case; phase; part, the model or optimizer, null for time of none (such as data); time_s = share_frac × the
    case's median iteration time; share_frac of the time of typical iterations. The rows of a case sum to its
    headline number, those of a phase to its row in `phase_breakdown`. Parts are in the order in which they first ran,
    null last.
    """
    rows = run.iterations
    rows = rows[rows["case"].isin(rows.loc[rows["part"].notna(), "case"])]
    rows = rows.merge(typical_iterations(run)[["case", "iteration"]], on=["case", "iteration"])
    rows = rows.assign(time_s=rows["device_s"].fillna(rows["host_s"]))
    parts = rows.groupby(["case", "part", "phase"], sort=False, dropna=False, as_index=False)[["time_s"]].sum()
    parts["share_frac"] = parts["time_s"] / parts.groupby("case")["time_s"].transform("sum")
    headline = iteration_times(run).groupby("case")["wall_s"].median()
    parts["time_s"] = parts["share_frac"] * parts["case"].map(headline).astype(float)
    parts = in_order(parts, run, "case", "phase")
    first_seen = {part: rank for rank, part in enumerate(rows["part"].dropna().unique())}
    order = parts["part"].map(first_seen).astype(float).fillna(len(first_seen))
    parts = parts.loc[order.sort_values(kind="stable").index]
    return in_order(parts, run, "case")[["case", "phase", "part", "time_s", "share_frac"]]
