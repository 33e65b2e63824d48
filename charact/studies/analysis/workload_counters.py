"""The five counters of several workloads, each divided by the value of the first workload."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.efficiency.counters import counter_sources, counter_values, missing_counters
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run

COUNTERS = {
    "warp_occupancy_frac": "Warp occupancy", "warp_execution_efficiency_frac": "Warp execution efficiency",
    "nonpredicated_efficiency_frac": "Non-predicated efficiency",
    "bandwidth_utilization_frac": "Bandwidth utilization", "flop_per_s": "FLOP/s",
}  # fmt: skip
"""The study's counters, with their names there."""


def workload_counters(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the study's five counters of each workload, a row each.

    Columns: workload; counter; value, for FLOP/s the counted FLOP / median iteration time; normalized, the value / that
    of the first workload, null if either is missing; reason, why a value is missing.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        values, missing, sources = counter_values(run), missing_counters(run), counter_sources(run)
        for row in case_summary(run).itertuples():
            for counter in COUNTERS:
                if counter == "flop_per_s":
                    value, reason = row.flop_per_s, row.status if row.status != "ok" else "not measured"
                else:
                    read = values.loc[(values["case"] == row.case) & (values["counter"] == counter), "value"]
                    value = read.iloc[0] if len(read) else None
                    reasons = missing.loc[(missing["case"] == row.case) & (missing["counter"] == counter), "reason"]
                    reason = reasons.iloc[0] if len(reasons) else _no_source(row, sources)
                rows.append({"workload": row.workload, "counter": counter, "value": value, "reason": reason})
    frame = pd.DataFrame(rows, columns=["workload", "counter", "value", "reason"]).astype({"value": "float64"})
    firsts = frame.drop_duplicates("counter").set_index("counter")["value"]
    first = frame["counter"].map(firsts).astype("float64")
    frame["normalized"] = frame["value"] / first.where(first > 0)
    return frame


def _no_source(row: Any, sources: pd.DataFrame) -> str:
    """Return why a case has none of the GPU's counters."""
    if str(row.device).startswith("cpu"):
        return "a GPU's counter; this is a CPU"
    failed = sources[(sources["case"] == row.case) & (sources["status"] != "ok")]
    return "; ".join(dict.fromkeys(failed["reason"].dropna())) or "no source provides it"
