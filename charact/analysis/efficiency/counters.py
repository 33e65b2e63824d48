"""Counter values over a pass, by phase, by kernel and over time; and counters that were not read, with reasons."""

import numpy as np
import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.record.reader import Run

_READ = ["case", "source", "device", "rank", "counter"]


@memoize
def counter_values(run: Run) -> pd.DataFrame:
    """Return counters over a whole pass; for counters that were only sampled, the mean of their samples.

    Columns: case; source; device; rank; counter; value (unit in the counter's name); num_samples, null if the counter
    was read once.
    """
    rows = run.counters[run.counters["kernel"].isna()]
    return _read_or_mean(rows[rows["time_s"].notna() | rows["phase"].isna()], run, _READ)


@memoize
def counters_by_phase(run: Run) -> pd.DataFrame:
    """Return counters over each phase; for counters that were only sampled, the mean of the samples in the phase.

    Columns: those of `counter_values`, and phase.

    *Error*: a sample covers the time since the one before, which may begin in another phase.
    """
    rows = run.counters[run.counters["kernel"].isna() & run.counters["phase"].notna()]
    return _read_or_mean(rows, run, [*_READ, "phase"])


def _read_or_mean(rows: pd.DataFrame, run: Run, keys: list[str]) -> pd.DataFrame:
    """Return one row for each of `keys`: the value that was read once, else the mean of the samples."""
    rows = rows.assign(is_sample=rows["time_s"].notna())
    only_sampled = rows.groupby(keys, dropna=False)["is_sample"].transform("all").astype(bool)
    groups = rows[~rows["is_sample"] | only_sampled].groupby(keys, dropna=False, sort=False, as_index=False)
    values = groups.agg(value=("value", "mean"), num_samples=("is_sample", "sum"))
    values["num_samples"] = values["num_samples"].astype("float64").where(values["num_samples"] > 0)
    ordered = [name for name in ("case", "phase") if name in keys]
    return in_order(values, run, *ordered)[[*keys, "value", "num_samples"]]


def counters_by_kernel(run: Run) -> pd.DataFrame:
    """Return counters of single kernels: columns case, source, device, phase, kernel, counter, value."""
    rows = run.counters[run.counters["kernel"].notna()]
    return in_order(rows, run, "case")[["case", "source", "device", "phase", "kernel", "counter", "value"]]


def counter_timeline(run: Run) -> pd.DataFrame:
    """Return samples of counters: columns case, source, device, counter, time_s since the pass began, phase, value."""
    rows = run.counters[run.counters["time_s"].notna() & run.counters["kernel"].isna()]
    return in_order(rows, run, "case")[["case", "source", "device", "counter", "time_s", "phase", "value"]]


def thinned(samples: pd.DataFrame, num_rows: int) -> pd.DataFrame:
    """Return samples of one counter in at most `num_rows` rows: means of consecutive ones, at the time of the last.

    Columns: time_s; value.
    """
    every = max(-(-len(samples) // num_rows), 1)
    return samples.groupby(np.arange(len(samples)) // every).agg(time_s=("time_s", "last"), value=("value", "mean"))


def counter_ranges(run: Run) -> pd.DataFrame:
    """Return ranges of counter samples: columns case, source, device, counter, lowest, mean, highest, num_samples."""
    keys = ["case", "source", "device", "counter"]
    samples = counter_timeline(run).groupby(keys, sort=False, as_index=False)
    ranges = samples.agg(lowest=("value", "min"), mean=("value", "mean"), highest=("value", "max"),
                         num_samples=("value", "count"))  # fmt: skip
    return in_order(ranges, run, "case")


def counter_spans(run: Run) -> pd.DataFrame:
    """Return the phases of the first sampled iterations: columns case, start_s, end_s, phase."""
    rows = [[entry.case, *span] for entry in run.entries for span in entry.passes.counters.spans]
    spans = pd.DataFrame(rows, columns=["case", "start_s", "end_s", "phase"])
    return spans.astype({"case": "str", "start_s": "float64", "end_s": "float64", "phase": "str"})


def counter_sources(run: Run) -> pd.DataFrame:
    """Return the outcome of each source.

    Columns: case; source; status ('ok', 'n/a' or 'failed'); reason and remedy, null if there is none.
    """
    rows = [[entry.case, source, outcome.status, outcome.reason, outcome.remedy] for entry in run.entries
            for source, outcome in entry.passes.counters.sources.items()]
    return pd.DataFrame(rows, columns=["case", "source", "status", "reason", "remedy"], dtype="str")


def missing_counters(run: Run) -> pd.DataFrame:
    """Return counters that a source has, but not on the case's device: columns case, source, counter, reason."""
    rows = [[entry.case, source, counter, reason] for entry in run.entries
            for source, outcome in entry.passes.counters.sources.items() for counter, reason in outcome.missing.items()]
    return pd.DataFrame(rows, columns=["case", "source", "counter", "reason"], dtype="str")


def counter_meaning(run: Run, source: str, counter: str) -> dict[str, str]:
    """Return definition, method and scope of a counter, from its source; empty in records without them."""
    described: dict[str, dict[str, dict[str, str]]] = run.manifest.get("counters", {})
    return described.get(source, {}).get(counter, {})
