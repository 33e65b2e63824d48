"""Columns that the tables of a comparison share, and tables of speedups with their geometric means."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from charact.analysis.compare import GROUPS, Group, geometric_means, speedups
from charact.core.units import digits
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, Table, table

CASE = Column("case", "Case", unbroken=True)
SIDE = Column("side", "Group", unbroken=True)
INTERVAL = Column("interval", "95 % interval", unbroken=True)


def side_column(sides: Sequence[Group]) -> list[Column]:
    """Return the column of the group if there are more than two; the headings name two."""
    return [SIDE] if len(sides) > 2 else []


def candidate(sides: Sequence[Group]) -> str:
    """Return the heading of the candidate's numbers."""
    return sides[-1].label if len(sides) <= 2 else "Group’s"


def reason(row: Any) -> str | None:
    """Return why a row lacks a number; None if it does not."""
    return None if pd.isna(row.reason) else str(row.reason)


def interval(row: Any, significant: int) -> str:
    """Format the 95 % interval of a row, or the reason why there is none."""
    if pd.isna(row.low):
        return fmt.missing(reason(row))
    return f"{digits(row.low, significant)}–{digits(row.high, significant)}"


speedup = fmt.or_missing(digits)
exact_ratio = fmt.or_missing(lambda value: digits(value, 4))
"""Formatters of factors, with three and four digits."""


def speedup_tables(sides: Sequence[Group]) -> list[Table]:
    """Return tables of baseline / candidate time by workload and data set, and their geometric means.

    Scripts are left out: they have no data set, and the ratios of their times are in `ratio_table`. There are none
    where batch sizes differ: an iteration is not the same work then.
    """
    frame = speedups(sides)
    frame = frame[(frame["data"] != "as written") & ("batch_size" not in sides[0].ignored)]
    timed = frame.dropna(subset=["speedup"]).drop_duplicates("side").set_index("side")["metric"]
    frame = frame[frame["side"].isin(timed.index)]
    if frame.empty:
        return []
    # A failed case is shown next to the others.
    metric = frame["metric"].where(frame["speedup"].notna(), frame["side"].map(timed))
    data = frame["data"].fillna("data not recorded")
    frame = frame.assign(row=_coordinates(frame), data=data, metric=metric)
    ambiguous = frame.duplicated(["side", "metric", "row", "data"], keep=False)  # differ in other options
    frame["row"] = frame["row"].where(~ambiguous, frame["case"])
    base = sides[0].label
    found = [_speedup_table(f"Speedup of {side} over {base} by data set, from the {_TIMED[str(metric)]}", rows)
             for (side, metric), rows in frame.groupby(["side", "metric"], sort=False)]  # fmt: skip
    return [*found, _mean_table(sides, frame["mode"].nunique() > 1)] if frame["case"].nunique() > 1 else found


def _coordinates(frame: pd.DataFrame) -> list[str]:
    """Return a label for each case, without its data: the workload, and options that differ between cases."""
    names = ["workload", *(name for name in GROUPS if name not in ("workload", "data")
                           and frame.groupby("workload")[name].nunique(dropna=False).max() > 1)]
    return [" ".join(str(value) for value in row if pd.notna(value)) for row in frame[names].itertuples(index=False)]


def _speedup_table(caption: str, rows: pd.DataFrame) -> Table:
    data = list(rows["data"].unique())
    texts = pd.Series([_speedup(row) for row in fmt.rows(rows)], rows.index, dtype="object")
    cells = rows.assign(text=texts).set_index(["row", "data"])
    reasons = cells["reason"].dropna().to_dict()
    wide = cells["text"].unstack("data").reindex(index=rows["row"].unique(), columns=data)
    wide.columns = pd.Index([f"data_{number}" for number in range(len(data))])  # valid Python identifiers

    def why(name: object) -> Callable[[Any], str]:
        return lambda row: reasons.get((row.row, name), "no such case")

    columns = [
        Column("row", "Workload", unbroken=True),
        *(Column(f"data_{number}", str(name), unbroken=True, reason=why(name)) for number, name in enumerate(data)),
    ]  # fmt: skip
    note = "In brackets: 95 % interval." if rows["low"].notna().any() else ""
    return table(wide.rename_axis("row").reset_index(), caption, columns, note)


def _speedup(row: Any) -> str | None:
    if pd.isna(row.speedup):
        return None
    return digits(row.speedup) + ("" if pd.isna(row.low) else f" ({digits(row.low)}–{digits(row.high)})")


_TIMED = {"total_time": "total time", "inference_time": "time of load and prediction",
          "time": "time of an iteration, epoch or call"}


def _mean_table(sides: Sequence[Group], several_modes: bool) -> Table:
    groups = [(by, geometric_means(sides, by)) for by in ("workload", *(["mode"] if several_modes else []))]
    means = [frame.rename(columns={by: "group"}) for by, frame in groups] + [geometric_means(sides).assign(group="all")]
    frame = pd.concat(means, ignore_index=True)
    frame["interval"] = [interval(row, 3) for row in fmt.rows(frame)]
    columns = [
        Column("group", "Cases of", unbroken=True), *side_column(sides), Column("num_cases", "Cases", fmt.number),
        Column("speedup", "Geometric mean", speedup, "of the speedups of the cases", reason), INTERVAL,
    ]  # fmt: skip
    note = "The interval covers the variation between cases: with few cases it is wide."
    return table(frame, "Geometric means of the speedups", columns, note)
