"""Breakdown of an iteration's time by model and optimizer, in programs that have several."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.analysis.profile.case_summary import iteration_times
from charact.record.reader import Run


@memoize
def part_breakdown(run: Run) -> pd.DataFrame:
    """Return the time of each model's or optimizer's phases, in cases that have several; other cases have no rows.

    Columns: case; phase; part, the model or optimizer, null for time of none (such as data); time_s = share_frac × the
    case's median iteration time; share_frac of the time of all iterations. The rows of a case sum to its headline
    number, those of a phase to its row in `phase_breakdown`. Parts are in the order in which they first ran, null last.
    """
    rows = run.iterations
    rows = rows[rows["case"].isin(rows.loc[rows["part"].notna(), "case"])]
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
