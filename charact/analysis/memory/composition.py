"""Composition of memory at the peak, in each phase, layer and over time; weights against intermediate results."""

from collections import defaultdict

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.row_order import in_order
from charact.record.manifest_passes import Workspaces
from charact.record.reader import Run

_PART_OF = {"weights": "weights_bytes", "activations": "intermediate_bytes", "temporary": "intermediate_bytes"}
"""Column of `weights_and_intermediate` of a category; others belong to the rest."""
_PREDICTED = ["low_bytes", "high_bytes", "tensors_bytes", "workspaces_bytes", "rounding_bytes"]
_WORKSPACES = ["workspaces_method", "workspaces_reason", "num_measured_calls", "uncertain", "duration_s"]
_MEASURED_NEEDS = ["reserved_peak_bytes", "allocator_peak_bytes", "process_before_bytes", "process_peak_bytes"]
_PREDICTED_NEEDS = ["context_bytes", "needed_bytes", "device_memory_bytes"]


def is_memory_run(run: Run) -> bool:
    """Return whether the run analyses memory only (`charact memory`)."""
    return run.options.command == "memory"


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
    wide = held.assign(part=held["category"].map(_PART_OF).fillna("rest_bytes")).pivot_table(
        index=["case", "method"], columns="part", values="bytes", aggfunc="sum", fill_value=0.0, sort=False
    )
    wide = wide.reindex(columns=["weights_bytes", "intermediate_bytes", "rest_bytes"], fill_value=0.0).reset_index()
    wide["ratio"] = wide["intermediate_bytes"] / wide["weights_bytes"].where(wide["weights_bytes"] > 0)
    wide.columns.name = None
    return in_order(wide, run, "case")


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
    rows = []
    for entry in run.entries:
        row = [entry.case, entry.status, entry.reason]
        for method, name in (("measured", "memory"), ("predicted", "prediction")):
            held, reason = totals.get((entry.case, method)), None
            if held is None and name in entry.passes:
                reason = pass_reason(run, entry.case, name) or "the record has no data"
            elif held is None:
                reason = entry.reason or f"not {method}"
            row += [held, reason]
        facts = entry.passes.prediction
        workspaces = facts.workspaces or facts.calibration or Workspaces()
        rows.append([*row, *(getattr(facts, name) for name in _PREDICTED), workspaces.method, workspaces.reason,
                     workspaces.num_measured, ", ".join(facts.uncertain or []) or None, facts.duration_s])
    columns = ["case", "status", "reason", "measured_bytes", "measured_reason", "predicted_bytes", "predicted_reason"]
    peaks = pd.DataFrame(rows, columns=[*columns, *_PREDICTED, *_WORKSPACES])
    numbers = ["measured_bytes", "predicted_bytes", "num_measured_calls", "duration_s", *_PREDICTED]
    peaks = peaks.astype({"case": "str"} | dict.fromkeys(numbers, "float64"))
    peaks["error_frac"] = peaks["predicted_bytes"] / peaks["measured_bytes"] - 1
    within = peaks["measured_bytes"].between(peaks["low_bytes"], peaks["high_bytes"]).astype("float64")
    known = peaks[["measured_bytes", "low_bytes", "high_bytes"]].notna().all(axis="columns")
    peaks["is_within"] = within.where(known)
    outside = pd.concat([peaks["low_bytes"] - peaks["measured_bytes"], peaks["measured_bytes"] - peaks["high_bytes"]],
                        axis="columns").max(axis="columns").clip(lower=0)
    peaks["outside_bytes"] = outside.where(known)
    return peaks


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
    for entry in run.entries:
        measured, predicted = entry.passes.memory, entry.passes.prediction
        if measured.peak_bytes is not None or predicted.peak_bytes is not None:
            rows.append([
                entry.case, entry.device, predicted.device, measured.peak_bytes,
                *(getattr(measured, name) for name in _MEASURED_NEEDS), predicted.reserved_peak_bytes,
                *(getattr(predicted, name) for name in _PREDICTED_NEEDS), predicted.fits,
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


def memory_by_layer(run: Run) -> pd.DataFrame:
    """Return the bytes of each category at the measured peak by the layer in which they appeared.

    Growth of a category between two snapshots belongs to the layer that runs at the second one. What a category loses
    is taken from its latest growth, as a backward pass frees activations in reverse order. Columns: case; category;
    layer, null for what was held before the iteration or allocated outside any layer; bytes. The rows of a case sum to
    its peak. Cases without measured snapshots have no rows.

    *Error*: long timelines are thinned out when recorded, so that some growth counts for the next recorded layer.
    """
    rows = memory_timeline(run)
    rows = rows[rows["method"] == "measured"]
    parts: list[tuple[str, str, str | None, float]] = []
    for case, of_case in rows.groupby("case", sort=False):
        totals = of_case.groupby("moment")["bytes"].sum()
        until = of_case[of_case["moment"] <= totals.idxmax()]
        for category, held in until.groupby("category", sort=False):
            layers = [layer if isinstance(layer, str) else None for layer in held["layer"]]
            by_layer = _remaining(layers, held["bytes"].tolist())
            parts += [(str(case), str(category), layer, amount) for layer, amount in by_layer.items()]
    frame = pd.DataFrame(parts, columns=["case", "category", "layer", "bytes"])
    return in_order(frame.astype({"case": "str", "bytes": "float64"}), run, "case", "category")


def _remaining(layers: list[str | None], held: list[float]) -> dict[str | None, float]:
    stack: list[tuple[str | None, float]] = []
    before = 0.0
    for layer, amount in zip(layers, held, strict=True):
        growth = amount - before
        before = amount
        while growth < 0 and stack:
            latest, size = stack.pop()
            growth += size
            layer = latest
        if growth > 0:
            stack.append((layer, growth))
    remaining: dict[str | None, float] = defaultdict(float)
    for layer, size in stack:
        remaining[layer] += size
    return dict(remaining)
