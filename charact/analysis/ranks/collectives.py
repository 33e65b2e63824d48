"""Collectives: how often, how many bytes, and what they cost."""

from collections.abc import Callable

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.ranks.matching import matched_iterations, rank_cases
from charact.analysis.ranks.waiting import waits
from charact.record.reader import Run

_KEYS = ["case", "phase", "operation", "group"]
_COLUMNS = ["case", "rank", "phase", "operation", "group", "group_size", "num_calls", "bytes", "exposed_s", "late_s",
            "bus_bytes_per_s", "device_s", "overlapped_s"]
_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1.0, "reduce": lambda n: 1.0}


@memoize
def collective_summary(run: Run) -> pd.DataFrame:
    """Return each rank's collectives per iteration, by phase, operation and group.

    Columns: case; rank; phase; operation; group; group_size; num_calls; bytes, the larger of inputs and outputs;
    exposed_s, in which the host did nothing but wait; late_s of it for the last rank, the rest is the transfer (null if
    not all ranks observed the end); bus_bytes_per_s, bandwidth of the transfer of the collectives whose end all ranks
    observed; device_s on the device (null on a CPU); overlapped_s = device_s - exposed_s, in which the device computed,
    too (null unless both are known). All are means over the case's iterations. In an imported trace, exposed_s is the
    time in which the device ran nothing else; rank is null if it is not known.

    The bus bandwidth is bytes over the time from the last rank's call to the end, times 2 (n-1)/n for an all_reduce of
    n ranks, times 1 for broadcast and reduce, and (n-1)/n for other operations.

    *Error*: transfers that run at the same time share the link, so the bus bandwidth is a lower bound.

    *Source*: NVIDIA nccl-tests, doc/PERFORMANCE.md.
    """
    rows = run.table("collectives").merge(_iterations(run), on="case")
    if rows.empty:
        return pd.DataFrame(columns=_COLUMNS)
    sums = rows.groupby(_KEYS, sort=False).agg(
        rank=("rank", "first"), group_size=("group_size", "first"), num_calls=("sequence", "size"),
        bytes=("bytes", _total), exposed_s=("exposed_s", _total), device_s=("device_s", _total),
        num_iterations=("num_iterations", "first")).reset_index()
    per_iteration = ["num_calls", "bytes", "exposed_s", "device_s"]
    sums[per_iteration] = sums[per_iteration].div(sums["num_iterations"], axis=0).astype("float64")
    sums["overlapped_s"] = sums["device_s"] - sums["exposed_s"]
    found = sums.merge(_late(run), on=_KEYS, how="left")
    return found[_COLUMNS].sort_values(["rank", "phase", "operation"], kind="stable", ignore_index=True)


def _iterations(run: Run) -> pd.DataFrame:
    """Return case, rank and the number of timed iterations of every case."""
    rows = [[entry["case"], entry.get("rank"), entry.get("passes", {}).get("timing", {}).get("num_iterations") or 0]
            for entry in run.manifest["cases"]]
    found = pd.DataFrame(rows, columns=["case", "rank", "num_iterations"])
    return found.astype({"case": "str", "rank": "Int64"})


def _total(values: "pd.Series[float]") -> float:
    return float(values.sum(min_count=1))


def _late(run: Run) -> pd.DataFrame:
    """Return late_s per matched iteration and bus_bytes_per_s, by case, phase, operation and group."""
    rows = waits(run).dropna(subset=["operation"])
    rows = rows.merge(rank_cases(run)[["program", "rank", "case", "world_size"]], on=["program", "rank"])
    rows["transfer_s"] = rows["wait_s"] - rows["late_s"]
    rows["moved_bytes"] = rows["bytes"].astype("float64") * [
        _FACTORS.get(str(operation), lambda n: (n - 1) / n)(size)
        for operation, size in zip(rows["operation"], rows["world_size"], strict=True)]
    num_iterations = matched_iterations(run).groupby("case")["own_iteration"].nunique()
    sums = rows.groupby(_KEYS)[["late_s", "transfer_s", "moved_bytes"]].sum().reset_index()
    sums["late_s"] /= sums["case"].map(num_iterations).astype("float64")
    sums["bus_bytes_per_s"] = sums["moved_bytes"] / sums["transfer_s"].where(sums["transfer_s"] > 0)
    return sums[[*_KEYS, "late_s", "bus_bytes_per_s"]]
