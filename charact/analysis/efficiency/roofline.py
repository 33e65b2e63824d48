"""Roofline: the rate of a case, phase, operator type or layer against its ceilings."""

from typing import Any, Literal

import numpy as np
import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.pass_status import pass_reason, passes_taken
from charact.analysis.common.row_order import in_order
from charact.analysis.common.script_attribution import is_imported, is_watched
from charact.analysis.efficiency.ceilings import case_ceilings
from charact.analysis.efficiency.counters import counter_meaning, counter_values, counters_by_phase
from charact.analysis.profile.breakdown import operator_times, phase_breakdown
from charact.analysis.profile.case_summary import iteration_times
from charact.record.reader import Run

By = Literal["case", "phase", "operator_type", "layer"]

_CLOCK = {"case": "timing", "phase": "timing", "operator_type": "profiler", "layer": "profiler"}
_PASS = {"timing": "timing", "profiler": "operators"}
_COUNTED = ("measured", "sampled")
"""Methods by which a byte counter beats the model; a CPU's cache misses are estimates, and too low."""


@memoize
def roofline(run: Run, by: By) -> pd.DataFrame:
    """Return work per iteration of each case, phase, operator type or layer, its rate, and its roofline bound.

    By case, every case has a row; else there are rows for everything with counted FLOP or modelled bytes. Phases are in
    the order they run, operator types and layers longest first.

    Columns: case; the one that `by` names; flop, counted; bytes, of every operator's inputs and outputs once
    (bytes_method 'modelled'), or read from a counter ('measured', for cases and phases); flop_per_byte; time_s, of the
    timing pass (clock 'timing': the median iteration, or the phase's part of it) or as measured under the profiler
    (clock 'profiler'); flop_per_s and bytes_per_s; attainable_flop_per_s, the lower of the ceiling of products and
    flop_per_byte times that of memory; share_frac, the time that the work needs at the ceilings over time_s; limit, the
    tighter ceiling ('compute' or 'bandwidth'); reason, why one of these is null.

    *Error*: pointwise work counts no FLOP, so compute rates are lower bounds. Modelled bytes assume no cache hits:
    with cache hits share_frac can exceed 1, and is not clipped.

    *Source*: Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009.
    """
    keys: list[str] = ["case"] if by == "case" else ["case", by]
    if by == "case":
        times = iteration_times(run).groupby("case", as_index=False).agg(time_s=("wall_s", "median"))
    else:
        times = phase_breakdown(run) if by == "phase" else operator_times(run)
        times = times.groupby(keys, as_index=False)[["time_s"]].sum(min_count=1)
    rows = _work(run, by, keys).merge(times, on=keys, how="left")
    rows["clock"] = _CLOCK[by]
    rows = rows.merge(case_ceilings(run), on="case", how="left")
    bounds = lower_bounds(rows)
    time_s = rows["time_s"].where(rows["time_s"] > 0)
    rows["flop_per_byte"] = rows["flop"] / rows["bytes"].where(rows["bytes"] > 0)
    rows["flop_per_s"], rows["bytes_per_s"] = rows["flop"] / time_s, rows["bytes"] / time_s
    rows["attainable_flop_per_s"] = rows["flop"].where(rows["flop"] > 0) / bounds["bound_s"]
    rows["share_frac"], rows["limit"] = bounds["bound_s"] / time_s, bounds["limit"]
    rows["reason"] = pd.Series([_reason(run, row) for row in rows.to_dict("records")], rows.index, dtype="object")
    if _CLOCK[by] == "profiler":
        rows = rows.sort_values("time_s", ascending=False, kind="stable")
    columns = [*keys, "flop", "bytes", "bytes_method", "flop_per_byte", "time_s", "clock", "flop_per_s", "bytes_per_s",
               "attainable_flop_per_s", "share_frac", "limit", "reason"]  # fmt: skip
    return in_order(rows, run, *(key for key in keys if key in ("case", "phase")))[columns]


def lower_bounds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the least time that work takes at the ceilings, and the tighter of them.

    It reads the columns flop, bytes, peak_flop_per_s and peak_bytes_per_s; null work counts as none.

    Columns: bound_s and limit ('compute' or 'bandwidth'), null without work or without a known ceiling.
    """
    flop, num_bytes = rows["flop"].fillna(0.0), rows["bytes"].fillna(0.0)
    compute_s = (flop / rows["peak_flop_per_s"]).mask(flop == 0, 0.0)
    bandwidth_s = (num_bytes / rows["peak_bytes_per_s"]).mask(num_bytes == 0, 0.0)
    bound_s = pd.Series(np.maximum(compute_s, bandwidth_s), index=rows.index)
    bound_s = bound_s.where((flop > 0) | (num_bytes > 0))
    limit = pd.Series(np.where(compute_s >= bandwidth_s, "compute", "bandwidth"), index=rows.index, dtype="object")
    return pd.DataFrame({"bound_s": bound_s, "limit": limit.where(bound_s.notna(), None)})


def _work(run: Run, by: By, keys: list[str]) -> pd.DataFrame:
    """Return FLOP and bytes of each row, counted by dispatched operators or attributed to those that ran."""
    source = run.operators if by == "operator_type" else run.flop
    work = source.groupby(keys, sort=False, as_index=False)[["flop", "bytes"]].sum(min_count=1)
    work["bytes_method"] = pd.Series("modelled", index=work.index, dtype="object").where(work["bytes"].notna(), None)
    if by == "case":
        cases = pd.DataFrame({"case": [entry.case for entry in run.entries]}, dtype="str")
        work = cases.merge(work, on="case", how="left")
    if by in ("case", "phase"):  # memory traffic from a counter, if one was read and not estimated, replaces the model
        read = counters_by_phase(run) if by == "phase" else counter_values(run)
        read = read[read["counter"] == "dram_bytes"]
        methods = [counter_meaning(run, source, "dram_bytes").get("method") for source in read["source"]]
        read = read[pd.Series(methods, index=read.index, dtype="str").isin(_COUNTED)].drop_duplicates(keys)
        work = work.merge(read[[*keys, "value"]], on=keys, how="left")
        work["bytes_method"] = work["bytes_method"].mask(work["value"].notna(), "measured")
        work["bytes"] = work.pop("value").fillna(work["bytes"])
    return work if by == "case" else work[work["flop"].notna() | work["bytes"].notna()]


def _reason(run: Run, row: dict[Any, Any]) -> str | None:
    if pd.isna(row["flop"]) and pd.isna(row["bytes"]):
        return work_reason(run, row["case"]) or "no FLOP or bytes were counted"
    if pd.isna(row["time_s"]):
        return pass_reason(run, row["case"], _PASS[row["clock"]]) or "not timed"
    return None if pd.notna(row["share_frac"]) or pd.isna(row["reason"]) else str(row["reason"])


def work_reason(run: Run, case: str) -> str | None:
    """Return why a case has neither FLOP nor bytes; None if they were counted."""
    if is_imported(run):
        return "a trace has no FLOP"
    if is_watched(run) and "flop" not in passes_taken(run):
        return "FLOP are counted with the operators: run charact run --passes operators"
    return pass_reason(run, case, "flop")
