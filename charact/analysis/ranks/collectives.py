"""Collectives: how often, how many bytes, and what they cost."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.script_attribution import is_imported
from charact.analysis.ranks.matching import matched_iterations, rank_cases
from charact.analysis.ranks.waiting import waits
from charact.core.bus_bandwidth import bus_factor
from charact.record.reader import Run
from charact.traces.collective_names import operation_name

_KEYS = ["case", "phase", "operation", "group"]
_COLUMNS = ["case", "rank", "phase", "operation", "group", "group_size", "num_calls", "bytes", "exposed_s", "late_s",
            "bus_bytes_per_s", "of_best_frac", "of_best_reason", "device_s", "overlapped_s"]
_UNSEEN = "the ranks did not wait for it alone"


@memoize
def collective_summary(run: Run) -> pd.DataFrame:
    """Return each rank's collectives per iteration, by phase, operation and group.

    Columns: case; rank; phase; operation; group; group_size; num_calls; bytes, the larger of inputs and outputs;
    exposed_s, in which the host did nothing but wait; late_s of it for the last rank, the rest is the transfer (null if
    not all ranks observed the end); bus_bytes_per_s, bandwidth of the transfer of the collectives whose end all ranks
    observed; of_best_frac, this over the best that was measured between as many ranks, or of_best_reason, why it is not
    known; device_s on the device (null on a CPU); overlapped_s = device_s - exposed_s, in which the device computed,
    too (null unless both are known). All are means over the case's iterations. In an imported trace, exposed_s is the
    time in which the device ran nothing else; rank is null if it is not known.

    The bus bandwidth is bytes over the time from the last rank's call to the end, times `bus_factor`.

    *Error*: transfers that run at the same time share the link, so the bus bandwidth is a lower bound.
    """
    cases = pd.DataFrame([[entry.case, entry.rank, entry.passes.timing.num_iterations or 0] for entry in run.entries],
                         columns=["case", "rank", "num_iterations"]).astype({"case": "str", "rank": "Int64"})
    rows = run.table("collectives").merge(cases, on="case")
    if rows.empty:
        return pd.DataFrame(columns=_COLUMNS)
    sums = rows.groupby(_KEYS, sort=False).agg(
        rank=("rank", "first"), group_size=("group_size", "first"), num_calls=("sequence", "size"),
        bytes=("bytes", _total), exposed_s=("exposed_s", _total), device_s=("device_s", _total),
        num_iterations=("num_iterations", "first")).reset_index()
    per_iteration = ["num_calls", "bytes", "exposed_s", "device_s"]
    sums[per_iteration] = sums[per_iteration].div(sums["num_iterations"], axis=0).astype("float64")
    sums["overlapped_s"] = sums["device_s"] - sums["exposed_s"]
    summary = _of_best(run, sums.merge(_late(run), on=_KEYS, how="left"))
    return summary[_COLUMNS].sort_values(["rank", "phase", "operation"], kind="stable", ignore_index=True)


def _total(values: "pd.Series[float]") -> float:
    return float(values.sum(min_count=1))


def _late(run: Run) -> pd.DataFrame:
    """Return late_s per matched iteration and bus_bytes_per_s, by case, phase, operation and group."""
    rows = waits(run).dropna(subset=["operation"])
    rows = rows.merge(rank_cases(run)[["program", "rank", "case", "world_size"]], on=["program", "rank"])
    rows["transfer_s"] = rows["wait_s"] - rows["late_s"]
    rows["moved_bytes"] = rows["bytes"].astype("float64") * [
        bus_factor(operation_name(str(operation)), int(size))
        for operation, size in zip(rows["operation"], rows["world_size"], strict=True)]
    num_iterations = matched_iterations(run).groupby("case")["own_iteration"].nunique()
    sums = rows.groupby(_KEYS)[["late_s", "transfer_s", "moved_bytes"]].sum().reset_index()
    sums["late_s"] /= sums["case"].map(num_iterations).astype("float64")
    sums["bus_bytes_per_s"] = sums["moved_bytes"] / sums["transfer_s"].where(sums["transfer_s"] > 0)
    return sums[[*_KEYS, "late_s", "bus_bytes_per_s"]]


def _of_best(run: Run, rows: pd.DataFrame) -> pd.DataFrame:
    best = {(ceiling["backend"], ceiling["num_ranks"], ceiling["operation"]): ceiling["bus_bytes_per_s"]
            for ceiling in run.manifest.get("collective_ceilings") or []}
    hosts = {entry.hostname for entry in run.entries}
    fracs: list[float | None] = []
    reasons: list[str | None] = []
    for row in rows.to_dict("records"):
        operation, num_ranks = operation_name(row["operation"]), row["group_size"]
        backend = run.entry(row["case"]).passes.collectives.backend
        rate, reason = best.get((backend, num_ranks, operation)), None
        if pd.isna(row["bus_bytes_per_s"]):
            reason = _UNSEEN
        elif len(hosts) > 1:
            reason = "the ranks ran on several machines, the best is measured on one"
        elif rate is None and is_imported(run):
            reason = "a trace has no ceilings of its machine"
        elif rate is None and any((backend, num_ranks) == key[:2] for key in best):
            reason = f"the bandwidth of {operation} is not measured"
        elif rate is None and pd.isna(num_ranks):
            reason = "the number of its ranks was not recorded"
        elif rate is None:
            reason = str(run.manifest.get("collective_ceilings_reason")
                         or f"not measured: charact doctor --ceilings --nproc {num_ranks:.0f}, then measure again")
        fracs.append(row["bus_bytes_per_s"] / rate if reason is None and rate is not None else None)
        reasons.append(reason)
    return rows.assign(of_best_frac=pd.Series(fracs, index=rows.index, dtype="float64"),
                       of_best_reason=pd.Series(reasons, index=rows.index, dtype="object"))
