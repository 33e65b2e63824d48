"""Composition of memory at the peak, in each phase and over time; weights against intermediate results."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.row_order import in_order
from charact.record.case_facts import pass_facts
from charact.record.reader import Run

_INTERMEDIATE = ("activations", "temporary")
"""Categories of intermediate results: activations and temporary memory."""
_PREDICTED = [
    "low_bytes", "high_bytes", "tensors_bytes", "workspaces_bytes", "rounding_bytes", "workspaces_method",
    "workspaces_reason", "num_measured_calls", "uncertain", "duration_s",
]  # fmt: skip
_PARTS = ("tensors_bytes", "workspaces_bytes", "rounding_bytes")
_MEASURED_NEEDS = ["reserved_peak_bytes", "allocator_peak_bytes", "process_before_bytes", "process_peak_bytes"]
_PREDICTED_NEEDS = ["context_bytes", "needed_bytes", "device_memory_bytes"]


def is_memory_run(run: Run) -> bool:
    """Return whether the run analyses memory only (`charact memory`)."""
    return bool(run.manifest.get("options", {}).get("command") == "memory")


@memoize
def memory_composition(run: Run) -> pd.DataFrame:
    """Return the bytes of each category at the iteration's peak, categories in the order of the schema.

    Columns: case; method (measured or predicted); phase of the peak; category; bytes; share_frac of the peak. The
    categories of a case and method sum to its peak.
    """
    return _composition(run, "peak")


@memoize
def memory_by_phase(run: Run) -> pd.DataFrame:
    """Return the bytes of each category at the peak of each phase; columns as in `memory_composition`."""
    return _composition(run, "phase_peak")


def _composition(run: Run, kind: str) -> pd.DataFrame:
    rows = run.memory
    keys = ["case", "method", "phase", "category"]
    held = rows[rows["kind"] == kind].groupby(keys, as_index=False)[["bytes"]].sum()
    total = held.groupby(["case", "method", "phase"])["bytes"].transform("sum")
    held["share_frac"] = held["bytes"].div(total.where(total > 0))
    return in_order(held, run, "case", "phase", "category")


def weights_and_intermediate(run: Run) -> pd.DataFrame:
    """Return weights against intermediate results at the peak, that is activations and temporary memory.

    Columns: case; method; weights_bytes; intermediate_bytes; ratio = intermediate / weights (null without weights);
    rest_bytes, the other categories. The three sum to the peak.
    """
    held = memory_composition(run)
    wide = held.assign(part=held["category"].map(_part_of)).pivot_table(
        index=["case", "method"], columns="part", values="bytes", aggfunc="sum", fill_value=0.0, sort=False
    )
    wide = wide.reindex(columns=["weights_bytes", "intermediate_bytes", "rest_bytes"], fill_value=0.0).reset_index()
    wide["ratio"] = wide["intermediate_bytes"] / wide["weights_bytes"].where(wide["weights_bytes"] > 0)
    wide.columns.name = None
    return in_order(wide, run, "case")


def _part_of(category: str) -> str:
    if category == "weights":
        return "weights_bytes"
    return "intermediate_bytes" if category in _INTERMEDIATE else "rest_bytes"


@memoize
def memory_peaks(run: Run) -> pd.DataFrame:
    """Return measured and estimated peaks: one row for each case, including failed ones; missing values are null.

    Columns: case; status and reason; measured_bytes and predicted_bytes, the iteration's peak by either method, each
    with why it is missing (measured_reason, predicted_reason); low_bytes to high_bytes, the estimate's stated
    uncertainty; error_frac = predicted / measured - 1; is_within (0 or 1), whether that range contains the measured
    value, and outside_bytes, how far it is outside (0 if within); tensors_bytes, workspaces_bytes and rounding_bytes,
    the parts of the estimated peak; workspaces_method, how the operators' internal memory is known: 'measured' (each
    call alone), 'modelled' (with workspaces_reason) or, in older records, 'calibrated'; num_measured_calls, the
    distinct calls measured; uncertain, operators whose internal memory is modelled; duration_s of the estimation.
    """
    totals = memory_composition(run).groupby(["case", "method"])["bytes"].sum()
    rows = [_peak(run, entry, totals) for entry in run.manifest["cases"]]
    columns = ["case", "status", "reason", "measured_bytes", "measured_reason", "predicted_bytes", "predicted_reason",
               *_PREDICTED]  # fmt: skip
    numbers = ["measured_bytes", "predicted_bytes", "low_bytes", "high_bytes", *_PARTS, "num_measured_calls",
               "duration_s"]
    peaks = pd.DataFrame(rows, columns=columns).astype({"case": "str"} | dict.fromkeys(numbers, "float64"))
    peaks["error_frac"] = peaks["predicted_bytes"] / peaks["measured_bytes"] - 1
    within = peaks["measured_bytes"].between(peaks["low_bytes"], peaks["high_bytes"]).astype("float64")
    known = peaks[["measured_bytes", "low_bytes", "high_bytes"]].notna().all(axis="columns")
    peaks["is_within"] = within.where(known)
    outside = pd.concat([peaks["low_bytes"] - peaks["measured_bytes"], peaks["measured_bytes"] - peaks["high_bytes"]],
                        axis="columns").max(axis="columns").clip(lower=0)
    peaks["outside_bytes"] = outside.where(known)
    return peaks


def _peak(run: Run, entry: dict[str, Any], totals: "pd.Series[float]") -> dict[str, Any]:
    case = entry["case"]
    found: dict[str, Any] = {name: entry.get(name) for name in ("case", "status", "reason")}
    for method, name in (("measured", "memory"), ("predicted", "prediction")):
        held = totals.get((case, method))
        found[f"{method}_bytes"] = held
        found[f"{method}_reason"] = None if held is not None else _why_none(run, entry, name, method)
    facts = pass_facts(entry, "prediction")
    workspaces = facts.get("workspaces") or facts.get("calibration") or {}
    return found | {name: facts.get(name) for name in _PREDICTED} | {
        "workspaces_method": workspaces.get("method"), "workspaces_reason": workspaces.get("reason"),
        "num_measured_calls": workspaces.get("num_measured"),
        "uncertain": ", ".join(facts.get("uncertain") or []) or None,
    }  # fmt: skip


def _why_none(run: Run, entry: dict[str, Any], name: str, method: str) -> str:
    if name not in entry.get("passes", {}):
        return str(entry.get("reason") or f"not {method}")
    return pass_reason(run, entry["case"], name) or "the record has no data"


@memoize
def memory_needs(run: Run) -> pd.DataFrame:
    """Return memory needed beyond allocations: one row for each case with a measurement or estimate.

    Columns: case; device_kind, cpu or cuda, of the run; target, the device of the estimate; allocated_bytes, measured
    at the peak; reserved_peak_bytes and allocator_peak_bytes, CUDA's own statistics; reserved_ratio = reserved /
    allocated; process_before_bytes and process_peak_bytes, the process's resident set before the case and its maximum
    since; process_ratio = (maximum - before) / allocated; predicted_reserved_bytes; context_bytes, an estimate;
    needed_bytes, the memory that `target` needs for the case, including uncertainty; device_memory_bytes, the memory
    that it has; margin_bytes, the difference; fits (0 or 1).
    """
    rows = []
    for entry in run.manifest["cases"]:
        measured = pass_facts(entry, "memory")
        predicted = pass_facts(entry, "prediction")
        if measured.get("peak_bytes") is not None or predicted.get("peak_bytes") is not None:
            rows.append([
                entry["case"], entry.get("device"), predicted.get("device"), measured.get("peak_bytes"),
                *(measured.get(name) for name in _MEASURED_NEEDS), predicted.get("reserved_peak_bytes"),
                *(predicted.get(name) for name in _PREDICTED_NEEDS), predicted.get("fits"),
            ])  # fmt: skip
    numbers = ["allocated_bytes", *_MEASURED_NEEDS, "predicted_reserved_bytes", *_PREDICTED_NEEDS, "fits"]
    needs = pd.DataFrame(rows, columns=["case", "device_kind", "target", *numbers])
    needs = needs.astype({"case": "str"} | dict.fromkeys(numbers, "float64"))
    allocated = needs["allocated_bytes"].where(needs["allocated_bytes"] > 0)
    needs["reserved_ratio"] = needs["reserved_peak_bytes"] / allocated
    needs["process_ratio"] = (needs["process_peak_bytes"] - needs["process_before_bytes"]) / allocated
    needs["margin_bytes"] = needs["device_memory_bytes"] - needs["needed_bytes"]
    return needs


_SNAPSHOT = ["case", "method", "moment", "time_s", "phase", "layer", "operator"]


@memoize
def memory_timeline(run: Run) -> pd.DataFrame:
    """Return the bytes of each category at the recorded snapshots of an iteration, in order of time.

    Columns: case; method; moment, the snapshot's index from 0; time_s since the iteration's start (null for estimates,
    which have the order of events but no times); phase; running layer and operator, null outside any and if not
    recorded; category; bytes. Long timelines were thinned out when recorded, but never at peaks.
    """
    rows = run.memory
    rows = rows[rows["kind"] == "timeline"]
    # The first records have no snapshot indices: there, the time identifies a snapshot.
    moment = rows["moment"].astype("float64").fillna(
        rows.groupby(["case", "method"])["time_s"].rank(method="dense") - 1
    )
    rows = rows.assign(moment=moment)
    held = rows.groupby([*_SNAPSHOT, "category"], dropna=False, as_index=False)[["bytes"]].sum()
    held = in_order(held, run, "category").sort_values(["method", "moment"], kind="stable")
    return in_order(held, run, "case")[[*_SNAPSHOT, "category", "bytes"]]


def peak_moments(run: Run) -> pd.DataFrame:
    """Return the place of the peak in the iteration: one row for each case and method.

    Columns: case; method; phase; layer and operator running at the peak, null outside any and if not recorded; bytes.
    """
    rows = run.memory
    keys = ["case", "method", "phase", "layer", "operator"]
    peaks = rows[rows["kind"] == "peak"].groupby(keys, dropna=False, as_index=False)[["bytes"]].sum()
    return in_order(peaks, run, "case")
