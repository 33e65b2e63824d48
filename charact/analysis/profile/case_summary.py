"""Iterations of each case, also slow ones, and headline numbers: time, rates, FLOP and peak memory."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.script_attribution import is_watched
from charact.analysis.common.significance import Sample, timed
from charact.analysis.memory.composition import is_memory_run, memory_composition
from charact.core.slow_iterations import slow_limit_s
from charact.core.statistics import median_interval
from charact.record.reader import Run

_PROFILE_PASSES = {"timing", "operators", "kernels", "memory", "flop", "counters", "frames", "prediction", "fit",
                   "collectives"}
"""Passes of the kind `profile`. A case with any other pass has the kind named after that pass."""
_KINDS = {"ops": "operation", "construct": "construction"}
"""Kinds whose name differs from that of their pass."""

_COORDINATES = [
    "case", "workload", "variant", "input_kind", "input_size", "output_size", "batch_size", "mode", "precision",
    "cache", "attention", "lora_rank", "device", "device_name", "num_parameters", "num_trainable_parameters", "status",
    "reason", "requested_bytes",
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


@memoize
def typical_iterations(run: Run) -> pd.DataFrame:
    """Return `iteration_times` without the slow iterations of each case.

    An iteration is slow if it takes more than 1.5 times the median and lies more than three interquartile ranges above
    the upper quartile. Cases with fewer than 6 iterations have no slow ones.
    """
    walls = iteration_times(run)
    limits = walls.groupby("case", sort=False)["wall_s"].transform(lambda times: slow_limit_s(times.tolist()))
    return walls[walls["wall_s"] <= limits]


@memoize
def slow_iterations(run: Run) -> pd.DataFrame:
    """Return what slow iterations add to each case that has any; see `typical_iterations`.

    Columns: case; num_slow; num_iterations, with slow ones; extra_s, how much longer the slow ones took together than
    as many iterations of the median of all; extra_frac = extra_s / the time of all iterations; phase, the one that
    contributes most to extra_s; phase_frac, its share of extra_s.
    """
    walls = iteration_times(run)
    walls["is_slow"] = ~walls.index.isin(typical_iterations(run).index)
    phases = phase_times(run).pivot_table("time_s", ["case", "iteration"], "phase", aggfunc="sum", fill_value=0.0)
    rows = []
    for case, of_case in walls.groupby("case", sort=False):
        slow = of_case[of_case["is_slow"]]
        if slow.empty:
            continue
        extra_s = float((slow["wall_s"] - of_case["wall_s"].median()).sum())
        of_phases = phases.loc[case]
        extra = of_phases.loc[slow["iteration"]] - of_phases.median()
        by_phase = {str(name): float(column.sum()) for name, column in extra.items()}
        phase = max(by_phase, key=by_phase.__getitem__)
        rows.append([case, len(slow), len(of_case), extra_s, extra_s / of_case["wall_s"].sum(), phase,
                     by_phase[phase] / extra_s])
    columns = ["case", "num_slow", "num_iterations", "extra_s", "extra_frac", "phase", "phase_frac"]
    return pd.DataFrame(rows, columns=columns)


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
    samples_per_s (of a watched program, the samples of all timed iterations / their time; else batch size / median_s);
    tokens_per_s, the same with the tokens of text that the model reads, without padding (null without text);
    padding_frac, padding / (tokens + padding) that it reads (null if not known); flop (per iteration, without operators
    that lack a FLOP formula); flop_per_s (flop / median_s); peak_bytes (sum of the categories at the measured peak, in
    PyTorch's allocator); compile_s (time to compile the model; null without compilation).
    """
    summary = run.cases.reindex(columns=_COORDINATES).astype({"case": "str"})
    summary["kind"] = case_kinds(run)
    statistics, samples = [], iteration_samples(run)
    walls = iteration_times(run).groupby("case", sort=False)["wall_s"]
    for case, walls_s in walls:
        ends = walls_s.quantile([0.05, 0.95]) if len(walls_s) >= MIN_SPREAD_ITERATIONS else (None, None)
        sample = samples[str(case)]
        statistics.append([case, len(walls_s), sample.value, *(sample.interval or (None, None)), *ends])
    times = pd.DataFrame(statistics, columns=["case", *_TIMES])
    times = times.astype({"case": "str"} | dict.fromkeys(_TIMES, "float64"))
    summary = summary.merge(times, on="case", how="left")
    total_s = summary["case"].map(walls.sum()).astype(float)
    num_samples = pd.Series([entry.passes.timing.num_samples for entry in run.entries], dtype="float64")
    usual_s = total_s / summary["num_iterations"] if is_watched(run) else summary["median_s"]
    summary["samples_per_s"] = (num_samples / total_s).fillna(summary["batch_size"].astype(float) / usual_s)
    timings = [entry.passes.timing for entry in run.entries]
    num_tokens, num_padding = (pd.Series([getattr(timing, name) for timing in timings], dtype="float64")
                               for name in ("num_tokens", "num_padding"))
    per_iteration = num_tokens / summary["num_iterations"] / summary["median_s"]
    summary["tokens_per_s"] = num_tokens / total_s if is_watched(run) else per_iteration
    summary["padding_frac"] = num_padding / (num_tokens + num_padding)
    flop = run.flop.groupby("case")["flop"].sum(min_count=1)
    summary["flop"] = summary["case"].map(flop).astype(float)
    summary["flop_per_s"] = summary["flop"] / summary["median_s"]
    peak = memory_composition(run).query("method == 'measured'").groupby("case")["bytes"].sum()
    summary["peak_bytes"] = summary["case"].map(peak).astype(float)
    compile_s = [next((facts.compile_s for facts in entry.passes.values() if facts.compile_s is not None), None)
                 for entry in run.entries]
    return summary.assign(compile_s=pd.Series(compile_s, dtype="float64"))


def case_kinds(run: Run) -> list[str]:
    """Return the kind of each case in the order of the manifest; read no table.

    Kinds: `profile` (measured by passes), `memory` (only memory, measured or estimated), `training`, `inference`,
    `operation`, `bricks` (a timed suite), `construction` (a latency constructed from bricks), or another pass's name.
    """
    if is_memory_run(run):
        return ["memory"] * len(run.entries)
    own = [next((name for name in entry.passes if name not in _PROFILE_PASSES), "profile") for entry in run.entries]
    return [_KINDS.get(name, name) for name in own]


_NUMBERS = ["median_s", "low_s", "high_s", "fastest_s", "slowest_s", "flop", "flop_per_s", "peak_bytes"]


def repeated_cases(cases: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each case that several runs of a group have.

    It takes rows of `case_summary` of all runs, with the column verdict of `bottlenecks`, unreliable as in the table
    `summary`, and group, a text.

    Columns: case; group; num_runs with the case; num_ok, those in which it ended well; num_unreliable, those whose
    times may be wrong; median_s, the median of the median iterations, with its 95 % interval low_s to high_s (null
    below 6 runs); fastest_s and slowest_s of them; verdict, the most frequent one (null without any), and num_verdict,
    the runs with it; flop, flop_per_s and peak_bytes, medians over the runs.
    """
    rows = []
    for (case, group), runs in cases.groupby(["case", "group"], sort=False):
        if len(runs) == 1:
            continue
        times, verdicts = runs["median_s"].dropna(), runs["verdict"].dropna().value_counts()
        low_s, high_s = median_interval(times.tolist()) or (None, None)
        rows.append({
            "case": case, "group": group, "num_runs": len(runs), "num_ok": int((runs["status"] == "ok").sum()),
            "num_unreliable": int(runs["unreliable"].notna().sum()),
            "median_s": times.median(), "low_s": low_s, "high_s": high_s, "fastest_s": times.min(),
            "slowest_s": times.max(), "verdict": verdicts.index[0] if len(verdicts) else None,
            "num_verdict": int(verdicts.iloc[0]) if len(verdicts) else 0,
            **{name: runs[name].median() for name in ("flop", "flop_per_s", "peak_bytes")},
        })  # fmt: skip
    columns = ["case", "group", "num_runs", "num_ok", "num_unreliable", *_NUMBERS, "verdict", "num_verdict"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(_NUMBERS, "float64"))
