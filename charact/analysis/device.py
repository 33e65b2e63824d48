"""What ran on the device, and what counters said of it."""

import pandas as pd

from charact.analysis.order import in_order
from charact.store import Run


def top_kernels(run: Run) -> pd.DataFrame:
    """Kernels, copies and fills of each case, launch geometries and phases taken together; longest first within a case.

    Columns: case; kernel; num_calls and device_s per iteration; share_frac of the case's device time; occupancy_frac,
    the estimate averaged over the kernel's time (null for copies and fills).
    """
    rows = run.kernels.assign(weighted=lambda kernels: kernels["occupancy_frac"] * kernels["device_s"])
    rows["known_s"] = rows["device_s"].where(rows["occupancy_frac"].notna())
    kernels = rows.groupby(["case", "kernel"], sort=False, as_index=False).agg(
        num_calls=("num_calls", "sum"), device_s=("device_s", "sum"),
        weighted=("weighted", "sum"), known_s=("known_s", "sum"),
    )  # fmt: skip
    kernels["share_frac"] = kernels["device_s"] / kernels.groupby("case")["device_s"].transform("sum")
    kernels["occupancy_frac"] = kernels["weighted"] / kernels["known_s"].where(kernels["known_s"] > 0)
    kernels = kernels.sort_values("device_s", ascending=False, kind="stable")
    columns = ["case", "kernel", "num_calls", "device_s", "share_frac", "occupancy_frac"]
    return in_order(kernels, run, "case")[columns]


def counter_values(run: Run) -> pd.DataFrame:
    """Counters over the whole timing pass: columns case, source, device, rank, counter, value (unit in the name)."""
    rows = run.counters
    whole = rows[rows["time_s"].isna() & rows["phase"].isna()]
    return in_order(whole, run, "case")[["case", "source", "device", "rank", "counter", "value"]]
