"""Utilization of the device: five metrics against their ideal, and the energy of an iteration."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.pass_status import pass_reason, passes_taken
from charact.analysis.common.script_attribution import is_imported, is_watched
from charact.analysis.efficiency.ceilings import case_ceilings
from charact.analysis.efficiency.counters import counter_meaning, counter_sources, counter_values, missing_counters
from charact.analysis.efficiency.roofline import work_reason
from charact.analysis.profile.case_summary import case_summary
from charact.record.manifest import CaseEntry
from charact.record.reader import Run

_WARP_METRICS = ("warp_occupancy_frac", "warp_execution_efficiency_frac", "nonpredicated_efficiency_frac")
UTILIZATION_METRICS = (*_WARP_METRICS, "bandwidth_utilization_frac", "flop_per_s")
_METERS = ("nvml", "rapl")
"""Sources of energy."""
_PREFERRED = ("pm", "ncu", "gpm", "kineto")
_MODEL = "flop pass"
"""Source name of a rate from counted FLOP and measured time."""
_COLUMNS = ["case", "metric", "value", "value_frac", "ideal", "source", "method", "reason"]


@memoize
def utilization(run: Run) -> pd.DataFrame:
    """Return the five metrics of each case against their ideal, from the best available source.

    Columns: case; metric, of `UTILIZATION_METRICS`; value; ideal, 1 for shares, for a rate the GEMM ceiling of the
    case's precision; value_frac = value / ideal, above 1 if it exceeds the ceiling; source, method; reason, why
    value_frac is null. A rate without a counter is modelled: counted FLOP / median iteration time.

    *Error*: the mean over several devices; a sampled value covers everything that ran on the device.
    """
    values = counter_values(run).groupby(["case", "counter", "source"], sort=False)["value"].mean()
    read = {key: float(value) for key, value in values.items()}
    rates, peaks = case_summary(run)["flop_per_s"], case_ceilings(run).itertuples()
    rows = [_metric(run, entry, metric, read, rate, peak)
            for entry, rate, peak in zip(run.entries, rates, peaks, strict=True) for metric in UTILIZATION_METRICS]
    return pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(["value", "value_frac", "ideal"], "float64"))


_BUSY = {
    "CPU": (("host", "cpu_utilization_frac"),),  # of this process only
    "GPU": tuple((source, "utilization_frac") for source in ("gpm", "nvml", "amd", "kineto")),
}
"""Counters of how busy a device is; the first available one counts. NVML's own window begins before the pass."""


@memoize
def busy(run: Run) -> pd.DataFrame:
    """Return how busy the processor and the GPU are in the counter pass of each case, as far as that was read.

    Columns: case; device_kind ('CPU', of this process only, or 'GPU'); busy_frac, the mean over several devices.
    """
    read = counter_values(run).groupby(["case", "source", "counter"], sort=False)["value"].mean().to_dict()
    rows = []
    for entry in run.entries:
        for kind, candidates in _BUSY.items():
            fracs = [read[entry.case, *each] for each in candidates if (entry.case, *each) in read]
            rows += [[entry.case, kind, frac] for frac in fracs[:1]]
    return pd.DataFrame(rows, columns=["case", "device_kind", "busy_frac"]).astype({"busy_frac": "float64"})


def _metric(run: Run, entry: CaseEntry, metric: str, read: dict[Any, float], rate: float, peak: Any) -> list[Any]:
    case = entry.case
    sources = [source for of_case, counter, source in read if (of_case, counter) == (case, metric)]
    source = next((source for source in (*_PREFERRED, *sources) if source in sources), None)
    if source is not None:
        value, method = read[case, metric, source], counter_meaning(run, source, metric).get("method")
    elif metric == "flop_per_s" and pd.notna(rate):
        value, source, method = rate, _MODEL, "modelled"
    else:
        return [case, metric, None, None, None, None, None, _why_not_read(run, entry, metric)]
    ideal = peak.peak_flop_per_s if metric == "flop_per_s" else 1.0
    return [case, metric, value, value / ideal, ideal, source, method, peak.reason if pd.isna(ideal) else None]


def _why_not_read(run: Run, entry: CaseEntry, metric: str) -> str:
    on_cpu = entry.device == "cpu"
    if metric in _WARP_METRICS and on_cpu:
        return "a CPU has no warps"
    if is_imported(run):
        return "not in the trace"
    if metric == "flop_per_s" and (reason := work_reason(run, entry.case)):
        return reason
    if reason := pass_reason(run, entry.case, "counters"):
        return reason
    if on_cpu:
        return "a CPU has no counter for it"
    outcomes = entry.passes.counters.sources
    able = [source for source in _PREFERRED if counter_meaning(run, source, metric)]
    reasons = [f"{source}: {outcome.reason or outcome.missing.get(metric) or 'no value was read'}"
               for source in able if (outcome := outcomes.get(source)) is not None]
    unasked = [source for source in able if source not in outcomes]
    if unasked:
        reasons.append(f"not requested: --counters {' or '.join(unasked)}")
    return "; ".join(reasons) or "no source provides it"


def energy_reason(run: Run) -> str | None:
    """Return why a run has no energy per iteration; None if it has."""
    if not energy(run).empty:
        return None
    if is_imported(run):
        return "not in the trace"
    if "counters" not in passes_taken(run):
        return "not measured: " + ("run charact run --passes counters" if is_watched(run) else "use --counters auto")
    on_cpu = all(entry.device == "cpu" for entry in run.entries)
    sources = counter_sources(run).set_index("source")
    sources = sources[sources.index.isin(("rapl",) if on_cpu else _METERS) & ~sources.index.duplicated()]
    lacking = missing_counters(run).query("counter == 'energy_j'").drop_duplicates("source")
    reasons = sources["reason"].fillna(lacking.set_index("source")["reason"]).dropna()
    return "; ".join(f"{source}: {reason}" for source, reason in reasons.items()) or (
        "not requested: --counters auto" if sources.empty else "no source provided it")


@memoize
def energy(run: Run) -> pd.DataFrame:
    """Return the energy of an iteration of each case, by source and device.

    Columns: case; device; source; energy_per_iteration_j and energy_per_sample_j, the energy of the counter pass over
    its iterations and samples; power_w, its mean; reason, why there is no energy.
    """
    read = counter_values(run).query("counter in ('energy_j', 'power_w')")
    keys = ["case", "device", "source"]
    wide = read.pivot_table(index=keys, columns="counter", values="value", sort=False)
    frame = wide.reindex(columns=["energy_j", "power_w"]).astype("float64").reset_index()
    facts = pd.DataFrame([[entry.passes.counters.num_iterations, entry.batch_size, entry.passes.counters.duration_s]
                          for entry in map(run.entry, frame["case"])], frame.index, dtype="float64",
                         columns=["num_iterations", "batch_size", "duration_s"])
    frame["energy_per_iteration_j"] = frame["energy_j"] / facts["num_iterations"]
    frame["energy_per_sample_j"] = frame["energy_per_iteration_j"] / facts["batch_size"]
    frame["power_w"] = frame["power_w"].fillna(frame["energy_j"] / facts["duration_s"])
    missing = missing_counters(run).query("counter == 'energy_j'").set_index(["case", "source"])["reason"].to_dict()
    reasons = [missing.get(key, "only power was read") for key in zip(frame["case"], frame["source"], strict=True)]
    frame["reason"] = pd.Series(reasons, dtype="str", index=frame.index).where(frame["energy_j"].isna())
    return frame[[*keys, "energy_per_iteration_j", "energy_per_sample_j", "power_w", "reason"]]
