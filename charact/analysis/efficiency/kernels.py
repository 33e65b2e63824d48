"""GPU kernels: device time, launch geometry and hardware counters."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.analysis.efficiency.counters import counters_by_kernel
from charact.analysis.efficiency.utilization import UTILIZATION_METRICS
from charact.record.reader import Run

_GEOMETRY = ("grid", "block", "registers", "shared_memory_bytes")
_COLUMNS = [
    "case", "kernel", "num_calls", "device_s", "share_frac", "occupancy_frac", *_GEOMETRY, "varying",
    *UTILIZATION_METRICS,
]  # fmt: skip


@memoize
def top_kernels(run: Run) -> pd.DataFrame:
    """Return the kernels, copies and fills of each case, summed over launch geometries and phases, longest first.

    Columns: case; kernel; num_calls and device_s per iteration; share_frac of the case's device time; occupancy_frac,
    the estimated occupancy, weighted by time (null for copies and fills); grid, block (as JSON), registers (per thread)
    and shared_memory_bytes (per block), each null if it differs between launches; varying, the names of the columns
    that differ; the `UTILIZATION_METRICS` as in `counted_kernels`, null without counters.
    """
    rows = run.kernels.assign(weighted=lambda kernels: kernels["occupancy_frac"] * kernels["device_s"])
    rows["known_s"] = rows["device_s"].where(rows["occupancy_frac"].notna())
    keys = ["case", "kernel"]
    kernels = rows.groupby(keys, sort=False, as_index=False).agg(
        num_calls=("num_calls", "sum"), device_s=("device_s", "sum"),
        weighted=("weighted", "sum"), known_s=("known_s", "sum"),
    )  # fmt: skip
    kernels["share_frac"] = kernels["device_s"] / kernels.groupby("case")["device_s"].transform("sum")
    kernels["occupancy_frac"] = kernels["weighted"] / kernels["known_s"].where(kernels["known_s"] > 0)
    groups = rows.groupby(keys, sort=False)[list(_GEOMETRY)]
    values = groups.nunique()
    varying = [", ".join(name for name in _GEOMETRY if counts[name] > 1) for counts in values.to_dict("records")]
    geometries = groups.first().where(values == 1).assign(varying=varying).reset_index()
    kernels = kernels.merge(geometries, on=keys, how="left")
    # Names of counted kernels may differ in white space only.
    counted = counted_kernels(run).drop(columns=["kernel", "kernel_s"]).drop_duplicates(["case", "name"])
    kernels = kernels.assign(name=_bare(kernels["kernel"])).merge(counted, on=["case", "name"], how="left")
    kernels = kernels.sort_values("device_s", ascending=False, kind="stable")
    return in_order(kernels, run, "case")[_COLUMNS]


@memoize
def counted_kernels(run: Run) -> pd.DataFrame:
    """Return the kernels of each case that have counters, summed over phases, longest first.

    Columns: case; kernel; name, the kernel without white space, in which profilers differ; kernel_s, its time while
    counters were read; the `UTILIZATION_METRICS`, weighted by that time.
    """
    rows = counters_by_kernel(run)
    rows["phase"] = rows["phase"].fillna("")
    keys = ["case", "kernel"]
    wide = rows.pivot_table(index=[*keys, "phase"], columns="counter", values="value", sort=False)
    wide = wide.reindex(columns=["kernel_s", *UTILIZATION_METRICS]).astype("float64").reset_index()
    groups = wide.groupby(keys, sort=False)
    counted = groups["kernel_s"].sum(min_count=1).to_frame()
    for metric in UTILIZATION_METRICS:
        known_s = wide["kernel_s"].where(wide[metric].notna())
        sums = wide.assign(known_s=known_s, spent=wide[metric] * known_s).groupby(keys, sort=False)
        counted[metric] = sums["spent"].sum(min_count=1) / sums["known_s"].sum(min_count=1)
    counted = counted.reset_index()
    counted.insert(2, "name", _bare(counted["kernel"]))
    return in_order(counted.sort_values("kernel_s", ascending=False, kind="stable"), run, "case")


def _bare(kernels: "pd.Series[str]") -> "pd.Series[str]":
    return kernels.astype("str").str.replace(r"\s", "", regex=True)
