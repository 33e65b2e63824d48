"""Headline numbers of each case: iteration time with its interval, rates, FLOP and peak memory; over several runs."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.significance import Sample, timed
from charact.analysis.memory.composition import is_memory_run, memory_composition
from charact.core.statistics import median_interval
from charact.record.case_facts import pass_facts
from charact.record.reader import Run

_PROFILE_PASSES = {"timing", "operators", "kernels", "memory", "flop", "counters", "frames", "prediction", "fit",
                   "collectives"}
"""Passes of the kind `profile`. A case with any other pass has the kind named after that pass."""
_KINDS = {"ops": "operation", "construct": "construction"}
"""Kinds whose name differs from that of their pass."""

_COORDINATES = [
    "case", "workload", "variant", "input_kind", "input_size", "batch_size", "mode", "precision", "device",
    "device_name", "num_parameters", "status", "reason", "requested_bytes",
]  # fmt: skip
_TIMES = ["num_iterations", "median_s", "low_s", "high_s", "p5_s", "p95_s"]


@memoize
def phase_times(run: Run) -> pd.DataFrame:
    """Return the time of each phase of each iteration, summed over models or optimizers.

    Columns: case; iteration; phase; host_s; device_s; time_s, the device's time if available, else the host's.
    """
    keys = ["case", "iteration", "phase"]
    rows = run.iterations.groupby(keys, sort=False, as_index=False)[["host_s", "device_s"]].sum(min_count=1)
    return rows.assign(time_s=rows["device_s"].fillna(rows["host_s"]))


@memoize
def iteration_times(run: Run) -> pd.DataFrame:
    """Return the wall time of each timed iteration (s): the sum of its phases, including `other`.

    Columns: case, iteration, wall_s.
    """
    walls = phase_times(run).groupby(["case", "iteration"], sort=False, as_index=False)[["time_s"]].sum()
    return walls.rename(columns={"time_s": "wall_s"})


MIN_SPREAD_ITERATIONS = 20
"""Minimum number of iterations for their 5 and 95 % quantiles: with fewer, these are the fastest and slowest ones."""


@memoize
def iteration_samples(run: Run) -> dict[str, Sample]:
    """Return the time of an iteration of each case with timed iterations: see `significance.timed`."""
    return {str(case): timed(walls.tolist())
            for case, walls in iteration_times(run).groupby("case", sort=False)["wall_s"]}


@memoize
def case_summary(run: Run) -> pd.DataFrame:
    """Return one row for each case in the order they ran, including failed ones; missing values are null.

    Columns: the case's parameters, status and reason; kind (see `case_kinds`); num_iterations; median_s of the
    iterations' wall times, with its 95 % interval low_s to high_s (null below 6 iterations; see
    `significance.Sample.interval`); p5_s and p95_s of the iterations (null below `MIN_SPREAD_ITERATIONS`);
    samples_per_s (of a watched program, the samples that all timed iterations fetched / their time; else batch size /
    median_s); flop (per iteration, without operators that lack a FLOP formula);
    flop_per_s (flop / median_s); peak_bytes (sum of the categories at the measured peak, in PyTorch's allocator);
    compile_s (time to compile the model; null without compilation).
    """
    summary = run.cases.reindex(columns=_COORDINATES).astype({"case": "str"})
    summary["kind"] = case_kinds(run)
    summary = summary.merge(_time_statistics(run), on="case", how="left")
    summary["samples_per_s"] = _samples_per_s(run, summary)
    flop = run.flop.groupby("case")["flop"].sum(min_count=1)
    summary["flop"] = summary["case"].map(flop).astype(float)
    summary["flop_per_s"] = summary["flop"] / summary["median_s"]
    peak = memory_composition(run).query("method == 'measured'").groupby("case")["bytes"].sum()
    summary["peak_bytes"] = summary["case"].map(peak).astype(float)
    summary["compile_s"] = pd.Series([_compile_s(entry) for entry in run.manifest["cases"]], dtype="float64")
    return summary


def case_kinds(run: Run) -> list[str]:
    """Return the kind of each case in the order of the manifest; read no table.

    Kinds: `profile` (measured by passes), `memory` (only memory, measured or estimated), `training`, `inference`,
    `operation`, `bricks` (a timed suite), `construction` (a latency constructed from bricks), or another pass's name.
    """
    return [_kind(run, entry) for entry in run.manifest["cases"]]


def _kind(run: Run, entry: dict[str, Any]) -> str:
    if is_memory_run(run):
        return "memory"
    passes = entry.get("passes", {})
    own = [name for name in passes if name not in _PROFILE_PASSES]
    return _KINDS.get(own[0], own[0]) if own else "profile"


def _compile_s(entry: dict[str, Any]) -> float | None:
    times = (facts.get("compile_s") for facts in entry.get("passes", {}).values())
    return next((compile_s for compile_s in times if compile_s is not None), None)


def _samples_per_s(run: Run, summary: pd.DataFrame) -> "pd.Series[float]":
    samples = [pass_facts(entry, "timing").get("num_samples") for entry in run.manifest["cases"]]
    fetched = pd.Series(samples, summary.index, dtype="float64")
    total_s = summary["case"].map(iteration_times(run).groupby("case")["wall_s"].sum()).astype(float)
    return (fetched / total_s).fillna(summary["batch_size"].astype(float) / summary["median_s"])


def _time_statistics(run: Run) -> pd.DataFrame:
    rows = []
    samples = iteration_samples(run)
    for case, walls in iteration_times(run).groupby("case", sort=False)["wall_s"]:
        sample = samples[str(case)]
        ends = walls.quantile([0.05, 0.95]) if len(walls) >= MIN_SPREAD_ITERATIONS else (None, None)
        rows.append([case, len(walls), sample.value, *(sample.interval or (None, None)), *ends])
    statistics = pd.DataFrame(rows, columns=["case", *_TIMES])
    return statistics.astype({"case": "str"} | dict.fromkeys(_TIMES, "float64"))


_NUMBERS = ["median_s", "low_s", "high_s", "fastest_s", "slowest_s", "flop", "flop_per_s", "peak_bytes"]


def repeated_cases(cases: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each case that several runs of a group have.

    Args:
        cases: rows of `case_summary` of all runs, with the column verdict of `bottlenecks`, unreliable as in the table
            `summary`, and group, a text.

    Columns: case; group; num_runs with the case; num_ok, those in which it ended well; num_unreliable, those whose
    times may be wrong; median_s, the median over these
    of the median iterations, with its 95 % interval low_s to high_s (null below 6 runs); fastest_s and slowest_s of
    them; verdict, the most frequent one (null without any), and num_verdict, the runs with it; flop, flop_per_s and
    peak_bytes, medians over the runs.
    """
    rows = [{"case": case, "group": group, **_over_runs(some)}
            for (case, group), some in cases.groupby(["case", "group"], sort=False) if len(some) > 1]
    columns = ["case", "group", "num_runs", "num_ok", "num_unreliable", *_NUMBERS, "verdict", "num_verdict"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(_NUMBERS, "float64"))


def _over_runs(runs: pd.DataFrame) -> dict[str, Any]:
    times = runs["median_s"].dropna()
    low_s, high_s = median_interval(times.tolist()) or (None, None)
    verdicts = runs["verdict"].dropna().value_counts()
    return {
        "num_runs": len(runs), "num_ok": int((runs["status"] == "ok").sum()),
        "num_unreliable": int(runs["unreliable"].notna().sum()),
        "median_s": times.median(), "low_s": low_s, "high_s": high_s, "fastest_s": times.min(),
        "slowest_s": times.max(), "verdict": verdicts.index[0] if len(verdicts) else None,
        "num_verdict": int(verdicts.iloc[0]) if len(verdicts) else 0,
        **{name: runs[name].median() for name in ("flop", "flop_per_s", "peak_bytes")},
    }  # fmt: skip
