"""Steps of inference servers in imported traces: by kind, what limits them, and the device's work by kind of kernel."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.record.reader import Run
from charact.record.schema import KERNEL_KINDS, STEP_KINDS

MIN_PERCENTILE_STEPS = 10
"""Least number of steps for a 90th percentile."""
CAUSES = ("launch", "queue", "copy", "host", "kernel")
"""Causes of the time between steps: columns `gap_<cause>_s` of the table `serving_steps`."""
_UNKNOWN = "n/a"
"""In place of the kind of steps whose kind is not known."""
_KINDS = (*STEP_KINDS, _UNKNOWN)


@memoize
def serving_steps(run: Run) -> pd.DataFrame:
    """Return the steps of each case, with what their times are of.

    Columns: those of the table `serving_steps`; time_s, the step's time on the device, in a case without a device on
    the host (null for a step without work on the case's device); whole_s, the time since the end of the steps before.
    """
    steps = run.table("serving_steps")
    on_device = steps.groupby("case")["device_s"].transform("count") > 0
    time_s = steps["device_s"].where(on_device, steps["host_s"])
    on_host_s = steps["host_s"] + steps["gap_s"].fillna(0.0)
    return steps.assign(time_s=time_s, whole_s=steps["cycle_s"].where(on_device, on_host_s))


@memoize
def serving_kinds(run: Run) -> pd.DataFrame:
    """Return the steps of each case by kind.

    Columns: case; kind (prefill, decode, mixed, null if not known) and kind_reason; num_steps; median_s, of time_s, and
    p90_s (null with fewer than `MIN_PERCENTILE_STEPS` steps); whole_s, the median time from the end of the steps before
    to the step's end; share_frac, the kind's part of the sum of these times over all steps; busy_frac, the share of
    that time in which the device worked (null without a device); num_requests, num_tokens, num_kernels, medians, null
    if not named; graph_frac, the share of the kernels' time that graph replays have (null without kernels).
    """
    steps = serving_steps(run).assign(named=lambda rows: rows["kind"].fillna(_UNKNOWN))
    groups = steps.groupby(["case", "named"], sort=False)
    kinds = groups.agg(
        kind=("kind", "first"), kind_reason=("kind_reason", "first"), num_steps=("step", "size"),
        num_timed=("time_s", "count"), median_s=("time_s", "median"), p90_s=("time_s", _p90),
        whole_s=("whole_s", "median"), total_s=("whole_s", "sum"), busy_s=("busy_s", _total),
        cycle_s=("cycle_s", _total), num_requests=("num_requests", "median"), num_tokens=("num_tokens", "median"),
        num_kernels=("num_kernels", "median"), kernel_s=("kernel_s", "sum"), graph_s=("graph_s", "sum")).reset_index()
    kinds["share_frac"] = _share(kinds, "total_s")
    kinds["busy_frac"] = kinds["busy_s"] / kinds["cycle_s"].where(kinds["cycle_s"] > 0)
    kinds["graph_frac"] = kinds["graph_s"] / kinds["kernel_s"].where(kinds["kernel_s"] > 0)
    kinds["position"] = kinds["named"].map(_KINDS.index).astype("int64")
    columns = ["case", "kind", "kind_reason", "num_steps", "median_s", "p90_s", "whole_s", "share_frac", "busy_frac",
               "num_requests", "num_tokens", "num_kernels", "graph_frac"]
    return in_order(kinds.sort_values("position", kind="stable"), run, "case")[columns]


def _p90(values: "pd.Series[float]") -> float:
    known = values.dropna()
    return float(known.quantile(0.9)) if len(known) >= MIN_PERCENTILE_STEPS else float("nan")


def _total(values: "pd.Series[float]") -> float:
    return float(values.sum(min_count=1))


def _share(rows: pd.DataFrame, column: str) -> "pd.Series[float]":
    totals = rows.groupby("case")[column].transform("sum")
    share: pd.Series[float] = rows[column] / totals.where(totals > 0)
    return share


@memoize
def serving_gaps(run: Run) -> pd.DataFrame:
    """Return the time between the steps of each case by cause, the longest first.

    Columns: case; cause, one of `CAUSES`; time_s, the sum over all gaps; mean_s of a gap, over all of them;
    share_frac of the gaps' time. The causes of a case sum to the time of its gaps.
    """
    steps = run.table("serving_steps").dropna(subset=["gap_s"])
    gaps = pd.concat([steps[["case"]].assign(cause=cause, time_s=steps[f"gap_{cause}_s"]) for cause in CAUSES])
    gaps = gaps.groupby(["case", "cause"], sort=False, as_index=False)[["time_s"]].sum()
    gaps["mean_s"] = gaps["time_s"] / gaps["case"].map(steps.groupby("case").size()).astype("float64")
    gaps["share_frac"] = _share(gaps, "time_s")
    return in_order(gaps[gaps["time_s"] > 0].sort_values("time_s", ascending=False, kind="stable"), run, "case")


@memoize
def serving_limits(run: Run) -> pd.DataFrame:
    """Return what the step kind with most time in each case spends it on.

    Columns: case; kind (null if not known), share_frac, median_s and busy_frac as in `serving_kinds`; idle_cause, the
    largest part of the time in which the device did not work, one of `CAUSES` without kernel, or `inside`, between the
    kernels of a step (null without such time, and without a device); idle_frac, its share of the steps' time. A call
    that waits for a copy counts as copy, also inside of a step.
    """
    kinds = serving_kinds(run).sort_values("share_frac", ascending=False, kind="stable").groupby("case").head(1)
    rows = []
    for row in kinds.to_dict("records"):
        steps = run.table("serving_steps").query("case == @row['case']").dropna(subset=["cycle_s"])
        steps = steps[steps["kind"].isna() if pd.isna(row["kind"]) else steps["kind"] == row["kind"]]
        parts = {cause: float(steps[f"gap_{cause}_s"].sum()) for cause in ("launch", "queue", "host", "copy")}
        parts["copy"] += float(steps["idle_copy_s"].sum())
        parts["inside"] = float((steps["idle_s"] - steps["idle_copy_s"]).sum())
        cause, longest_s = max(parts.items(), key=lambda part: part[1])
        total_s = float(steps["cycle_s"].sum())
        rows.append({
            **{name: row[name] for name in ("case", "kind", "share_frac", "median_s", "busy_frac")},
            "idle_cause": cause if longest_s > 0 else None, "idle_frac": longest_s / total_s if total_s else None})
    frame = pd.DataFrame(rows, columns=["case", "kind", "share_frac", "median_s", "busy_frac", "idle_cause",
                                        "idle_frac"])
    texts, numbers = ("case", "kind", "idle_cause"), ("share_frac", "median_s", "busy_frac", "idle_frac")
    frame = frame.astype({**dict.fromkeys(texts, "object"), **dict.fromkeys(numbers, "float64")})
    return in_order(frame, run, "case")


@memoize
def serving_kernels(run: Run) -> pd.DataFrame:
    """Return the device's work in each case's trace by kind of kernel, the longest first.

    Columns: case; kernel_kind; num_kernels; device_s; share_frac of the case's device time; operator_frac and
    graph_frac, the shares of device_s that an operator launched and that graph replays have; step_frac, that of steps;
    largest, the kernel with most time of a row of the table, and largest_frac of device_s.
    """
    rows = run.table("serving_kernels")
    rows = rows.assign(operator_s=rows["device_s"].where(rows["has_operator"] == 1, 0.0),
                       graph_s=rows["device_s"].where(rows["graph"].notna(), 0.0),
                       step_s=rows["device_s"].where(rows["in_step"] == 1, 0.0))
    keys = ["case", "kernel_kind"]
    sums = rows.groupby(keys, sort=False, as_index=False)[
        ["num_kernels", "device_s", "operator_s", "graph_s", "step_s"]].sum()
    by_kernel = rows.groupby([*keys, "largest"], sort=False, as_index=False)[["largest_s"]].sum()
    largest = by_kernel.sort_values("largest_s", ascending=False, kind="stable").groupby(keys, as_index=False).head(1)
    sums = sums.merge(largest, on=keys, how="left")
    sums["share_frac"] = _share(sums, "device_s")
    whole_s = sums["device_s"].where(sums["device_s"] > 0)
    for name in ("operator", "graph", "step", "largest"):
        sums[f"{name}_frac"] = sums[f"{name}_s"] / whole_s
    columns = [*keys, "num_kernels", "device_s", "share_frac", "operator_frac", "graph_frac", "step_frac", "largest",
               "largest_frac"]
    return in_order(sums.sort_values("device_s", ascending=False, kind="stable"), run, "case")[columns]


@memoize
def serving_graphs(run: Run) -> pd.DataFrame:
    """Return the device's work in each case's trace by graph and kind of kernel.

    Columns: case; graph (null for work that was launched on its own); kernel_kind; num_kernels; device_s; share_frac of
    the graph's device time, or of that outside of graphs. Graphs with most time first.
    """
    rows = run.table("serving_kernels").assign(name=lambda each: each["graph"].fillna(""))
    keys = ["case", "name", "kernel_kind"]
    sums = rows.groupby(keys, sort=False, as_index=False).agg(
        graph=("graph", "first"), num_kernels=("num_kernels", "sum"), device_s=("device_s", "sum"))
    totals = sums.groupby(["case", "name"])["device_s"].transform("sum")
    sums["share_frac"] = sums["device_s"] / totals.where(totals > 0)
    sums["position"] = sums["kernel_kind"].map(KERNEL_KINDS.index).astype("int64")
    sums = sums.assign(total_s=totals).sort_values(["total_s", "name", "position"], ascending=[False, True, True],
                                                   kind="stable")
    return in_order(sums, run, "case")[["case", "graph", "kernel_kind", "num_kernels", "device_s", "share_frac"]]


@memoize
def serving_kernels_by_step(run: Run) -> pd.DataFrame:
    """Return the device's work by step kind and kind of kernel: where the time of each kind of step goes.

    Columns: case; steps, the step kind, `n/a` if it is not known, or `outside` of steps; kernel_kind; device_s.
    """
    rows = run.table("serving_kernels")
    steps = rows["kind"].fillna(_UNKNOWN).where(rows["in_step"] == 1, "outside")
    sums = rows.assign(steps=steps).groupby(["case", "steps", "kernel_kind"], sort=False, as_index=False)[
        ["device_s"]].sum()
    sums["position"] = sums["steps"].map((*_KINDS, "outside").index).astype("int64")
    sums["kernel_position"] = sums["kernel_kind"].map(KERNEL_KINDS.index).astype("int64")
    sums = sums.sort_values(["position", "kernel_position"], kind="stable")
    return in_order(sums, run, "case")[["case", "steps", "kernel_kind", "device_s"]]
