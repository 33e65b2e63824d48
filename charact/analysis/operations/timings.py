"""Time and rates of each problem of basic operations, and totals of suites."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.significance import timed
from charact.analysis.efficiency.ceilings import case_ceilings, transfer_ceiling
from charact.analysis.efficiency.roofline import lower_bounds
from charact.record.manifest_passes import Direction
from charact.record.reader import Run

_TIMES = ["median_s", "low_s", "high_s", "num_repetitions"]
_TRANSFERS = ("host_to_device", "device_to_host")
_NO_CEILING = {"all_reduce": "no communication is compared: charact doctor --ceilings --nproc measures its ceiling"}
"""Operations without a measured ceiling, with the reason."""
_TEXTS = ["operation", "problem", "suite", "set", "layout", "precision", "device", "status", "reason"]
_SUITE = ["suite", "set", "operation", "layout", "precision", "device"]


@memoize
def operation_times(run: Run) -> pd.DataFrame:
    """Return time, work and rates of one call of each problem in each direction, in the order they ran.

    Columns: case; operation, problem, suite, set, direction, layout and hot, as in the table `problems`; precision;
    device; median_s of the repetitions, on the device's clock if it has one, with its 95 % interval low_s to high_s
    (null below 6 repetitions); num_repetitions and ended_by, what ended them; flop; published_flop, null if the suite
    counts the same; convention, how the suite counts or writes sizes; bytes, a model: inputs read and outputs written
    once; flop_per_byte; flop_per_s and bytes_per_s; share_frac, the shortest time at the machine's ceilings divided by
    median_s; limit, the ceiling that sets this shortest time ('compute' or 'bandwidth'); sparsity_frac; max_error and
    tolerance, relative to the result's largest magnitude; status and reason of the case; time_reason, why there is no
    time; share_reason, why there is no share.

    *Error*: share_frac can exceed 1 if data is read from a cache, as with --hot.
    """
    statistics = []
    for (case, direction), times in call_times(run).groupby(["case", "direction"], sort=False)["time_s"]:
        low, high = timed(times.tolist()).interval or (None, None)
        statistics.append([case, direction, times.median(), low, high, len(times)])
    of_direction = pd.DataFrame(statistics, columns=["case", "direction", *_TIMES]).astype(
        dict.fromkeys(["case", "direction"], "str") | dict.fromkeys(_TIMES, "float64"))
    rows = run.problems.merge(of_direction, on=["case", "direction"], how="left")
    facts = run.cases.reindex(columns=["case", "precision", "device", "status", "reason"]).astype({"case": "str"})
    over = case_ceilings(run).rename(columns={"reason": "share_reason"})
    rows = rows.merge(facts, on="case", how="left").merge(over, on="case", how="left")
    rows["ended_by"] = [run.entry(case).passes.ops.directions.get(direction, Direction()).ended_by
                        for case, direction in zip(rows["case"], rows["direction"], strict=True)]
    rows["peak_bytes_per_s"] = [_bandwidth(run, row) for row in rows.to_dict("records")]
    bounds = lower_bounds(rows)
    share_frac = bounds["bound_s"] / rows["median_s"].where(rows["median_s"] > 0)
    rows["share_frac"] = share_frac.mask(rows["operation"].isin(list(_NO_CEILING)))
    rows["limit"] = bounds["limit"].where(rows["share_frac"].notna(), None)
    rows["flop_per_byte"] = rows["flop"] / rows["bytes"].where(rows["bytes"] > 0)
    rows["flop_per_s"], rows["bytes_per_s"] = rows["flop"] / rows["median_s"], rows["bytes"] / rows["median_s"]
    untimed = rows["status"].astype("object").mask(rows["status"] == "ok", "the record has no repetitions")
    rows["time_reason"] = untimed.where(rows["median_s"].isna(), None)
    rows["share_reason"] = pd.Series(
        [_share_reason(row) for row in rows.to_dict("records")], rows.index, dtype="object")
    return rows[[
        "case", "operation", "problem", "suite", "set", "direction", "layout", "hot", "precision", "device", *_TIMES,
        "ended_by", "flop", "published_flop", "convention", "bytes", "flop_per_byte", "flop_per_s", "bytes_per_s",
        "share_frac", "limit", "sparsity_frac", "max_error", "tolerance", "status", "reason", "time_reason",
        "share_reason",
    ]]  # fmt: skip


@memoize
def call_times(run: Run) -> pd.DataFrame:
    """Return the time of a call in each repetition.

    Columns: those of the table `repetitions`; time_s, on the device's clock if it has one, else on the host's;
    flop_per_s, null if the problem has no FLOP count.
    """
    keys = ["case", "direction"]
    calls = run.repetitions.merge(run.problems[[*keys, "flop"]], on=keys, how="left")
    calls = calls.assign(time_s=calls["device_s"].fillna(calls["host_s"]))
    return calls.assign(flop_per_s=calls.pop("flop") / calls["time_s"])


def _bandwidth(run: Run, row: dict[Any, Any]) -> float:
    """Return the bandwidth ceiling of an operation (B/s): of the device's memory, or of its link to the host."""
    way = str(row["problem"]).rpartition(":")[2]
    return transfer_ceiling(run, row["device"], way) if way in _TRANSFERS else float(row["peak_bytes_per_s"])


def _share_reason(row: dict[Any, Any]) -> str | None:
    if pd.notna(row["share_frac"]):
        return None
    if pd.isna(row["median_s"]):
        return str(row["time_reason"])
    reason = None if pd.isna(row["share_reason"]) else str(row["share_reason"])
    return _NO_CEILING.get(row["operation"]) or reason or "neither FLOP nor bytes are counted"


@memoize
def operation_cases(run: Run) -> pd.DataFrame:
    """Return one row per case, a problem at a precision, summed over directions; in their order, with failed ones.

    Columns: case; operation, problem, suite, set, layout and convention; precision; device; num_directions; time_s, the
    sum of the directions' medians; sums of flop, published_flop (null if the suite counts the same; `convention` says
    how it counts) and bytes; status and reason of the case.
    """
    cases = run.cases.reindex(columns=["case", "workload", "precision", "device", "status", "reason"])
    measured = [entry.case for entry in run.entries_with("ops")]
    cases = cases[cases["case"].isin([*measured, *run.problems["case"]])]
    times = operation_times(run)
    facts = ["operation", "problem", "suite", "set", "layout", "convention"]
    known = times.groupby("case", as_index=False)[facts].first()
    sums = times.assign(published_flop=times["published_flop"].fillna(times["flop"]), time_s=times["median_s"])
    by_case = sums.groupby("case", as_index=False)
    sums = by_case[["time_s", "flop", "published_flop", "bytes"]].sum(min_count=1)
    rows = cases.astype({"case": "str"}).merge(known, on="case", how="left").merge(sums, on="case", how="left")
    rows["num_directions"] = rows["case"].map(times.groupby("case").size())
    counted_otherwise = times.loc[times["published_flop"].notna(), "case"]
    rows["published_flop"] = rows["published_flop"].where(rows["case"].isin(counted_otherwise))
    rows["problem"] = rows["problem"].fillna(rows["workload"])
    rows["operation"] = rows["operation"].fillna(rows["problem"].str.replace(":.*", "", regex=True))
    rows = rows.astype(dict.fromkeys(_TEXTS, "object"))
    return rows[["case", *_TEXTS[:-2], "num_directions", "time_s", "flop", "published_flop", "convention", "bytes",
                 "status", "reason"]]  # fmt: skip


@memoize
def operation_shares(run: Run) -> pd.DataFrame:
    """Return the shares of the machine's ceilings that an operation's problems reach, by direction.

    Columns: operation; direction; layout; precision; device; num_problems, the timed ones; flop_per_s and
    bytes_per_s, their maxima; median_share_frac and best_share_frac; share_reason, why there are no shares.
    """
    times = operation_times(run)
    keys = ["operation", "direction", "layout", "precision", "device"]
    return times[times["median_s"].notna()].groupby(keys, sort=False, dropna=False, as_index=False).agg(
        num_problems=("case", "size"), flop_per_s=("flop_per_s", "max"), bytes_per_s=("bytes_per_s", "max"),
        median_share_frac=("share_frac", "median"), best_share_frac=("share_frac", "max"),
        share_reason=("share_reason", "first"),
    )  # fmt: skip


@memoize
def suite_totals(run: Run) -> pd.DataFrame:
    """Return the total time of one call of each problem in every direction, by suite and operation.

    Problems outside suites are left out.

    Columns: suite; set; operation; layout; precision; device; num_problems; num_failed (or not timed); total_s and
    flop of the others (null if there are none); published_flop, the suite's own count (null if it is the same);
    convention, how the suite counts; flop_per_s.
    """
    cases = operation_cases(run).dropna(subset=["suite"])
    rows = []
    for key, problems in cases.groupby(_SUITE, sort=False, dropna=False):
        timed = problems[problems["time_s"].notna() & (problems["status"] == "ok")]
        otherwise = timed["published_flop"].notna()
        conventions = list(dict.fromkeys(timed.loc[otherwise, "convention"].dropna()))
        published = timed["published_flop"].fillna(timed["flop"]).sum() if otherwise.any() else None
        rows.append([*key, len(problems), len(problems) - len(timed), timed["time_s"].sum(min_count=1),
                     timed["flop"].sum(min_count=1), published, "; ".join(conventions) or None])  # fmt: skip
    totals = pd.DataFrame(rows, columns=[*_SUITE, "num_problems", "num_failed", "total_s", "flop", "published_flop",
                                         "convention"])  # fmt: skip
    totals = totals.astype(dict.fromkeys([*_SUITE, "convention"], "object")
                           | dict.fromkeys(["total_s", "flop", "published_flop"], "float64"))
    return totals.assign(flop_per_s=totals["flop"] / totals["total_s"])
