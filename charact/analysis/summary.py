"""The table `summary`: the headline numbers of each case of a run, one row a case."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.significance import INTERVAL_METHOD, Sample
from charact.analysis.compare.samples import CASE, time_samples
from charact.analysis.efficiency.flop_utilization import flop_utilization
from charact.analysis.findings import findings
from charact.analysis.memory.by_input_size import growth_by_case
from charact.analysis.memory.composition import memory_composition
from charact.analysis.profile.case_summary import MIN_SPREAD_ITERATIONS, case_summary
from charact.analysis.profile.core_use import why_unreliable
from charact.record.manifest import CaseEntry
from charact.record.reader import Run
from charact.record.schema import Column

TABLE = "summary"
"""Name of the table in exports and queries."""
_TIME_OF = {"profile": "iteration", "inference": "batch", "training": "epoch", "operation": "call in every direction",
            "bricks": "every brick once", "construction": "constructed iteration"}
"""What `time_s` is the time of, by kind of case."""

COLUMNS: tuple[Column, ...] = (
    Column("case", "string", "identifier of the case, as in run.json", nullable=False),
    Column("kind", "string", "profile, memory, training, inference, operation, bricks, construction, or another pass"),
    Column("status", "string", "ok, oom, diverged, error, interrupted, running or damaged"),
    Column("reason", "string", "why the case failed; null if it did not"),
    Column("workload", "string", "name of the model, or of the program's model"),
    Column("variant", "string", "form of the model"),
    Column("input_size", "int64", "side in pixels, or length in tokens"),
    Column("output_size", "int64", "tokens that each request of a generation gets; null otherwise"),
    Column("batch_size", "int64", "samples in a batch"),
    Column("mode", "string", "one of schema.MODES"),
    Column("precision", "string", "one of schema.PRECISIONS"),
    Column("cache", "string", "how a generation keeps keys and values; null otherwise"),
    Column("attention", "string", "backend of attention; null for PyTorch's choice"),
    Column("lora_rank", "int64", "rank of the adapters that are trained; null without"),
    Column("device", "string", "cpu, cuda:0"),
    Column("time_of", "string", f"what time_s is the time of: {', '.join(_TIME_OF.values())}"),
    Column("time_s", "float64", "median time of an iteration, the sum of its phases: the device's time if there is "
                                "one, else the host's; of a training the mean time of an epoch"),
    Column("low_s", "float64", "lower end of the 95 % interval of time_s within this run; null with interval_reason"),
    Column("high_s", "float64", "its upper end"),
    Column("interval_method", "string", f"method of the interval: '{INTERVAL_METHOD}' for iterations; null without"),
    Column("interval_reason", "string", "why there is no interval; null if there is one, or no time"),
    Column("num_iterations", "int64", "timed iterations"),
    Column("p5_s", "float64", f"5 % of the iterations were faster; null below {MIN_SPREAD_ITERATIONS} iterations"),
    Column("p95_s", "float64", f"5 % of the iterations were slower; null below {MIN_SPREAD_ITERATIONS} iterations"),
    Column("samples_per_s", "float64", "batch size / time_s; of a watched program, the samples of all timed "
                                       "iterations / their time; null if not known"),
    Column("tokens_per_s", "float64", "the same with the tokens of text that the model reads, without padding; null "
                                      "without text"),
    Column("padding_frac", "float64", "padding / (tokens + padding) that the model reads; null if not known"),
    Column("mfu_frac", "float64", "model FLOP utilization: counted FLOP, without recomputed ones / time_s / the "
                                  "datasheet's peak of the device in the case's precision; null with mfu_reason"),
    Column("hfu_frac", "float64", "hardware FLOP utilization: the same with recomputed FLOP; null if there are none"),
    Column("mfu_reason", "string", "why there is no mfu_frac; null if there is one"),
    Column("peak_bytes", "float64", "measured peak in PyTorch's allocator; null if not measured"),
    Column("unreliable", "string", "why the times may be wrong, such as other programs on the cores; null if no "
                                   "reason is known"),
    Column("num_warmup_iterations", "int64", "iterations before the timed ones"),
    Column("warmup_ended_by", "string", "stable: three iterations agreed within 10 %; max_iterations or max_seconds: "
                                        "the limit came first; number: a set number; program or trace: it decided"),
    Column("num_threads", "int64", "PyTorch's threads inside an operator"),
    Column("seed", "int64", "of data and weights; null if the program sets its own"),
    Column("charact_version", "string", "version of charact that measured"),
    Column("python_version", "string", "version of Python"),
    Column("torch_version", "string", "version of PyTorch"),
    Column("memory_form", "string", "how the peak grows over the input sizes of cases that are otherwise equal: "
                                    "constant, line, square, steps, or none (fewer than 3 sizes); null if not known"),
    Column("memory_position", "string", "what the slopes count: pixel, token, or the unit of a model's own size"),
    Column("memory_slope_bytes", "float64", "bytes per position for the whole batch: of a line, or the linear part of "
                                            "a square"),
    Column("memory_square_bytes", "float64", "bytes per squared position, of a square"),
    Column("memory_fixed_bytes", "float64", "bytes at any size, of a line or a square; null if it would be negative"),
    Column("finding", "string", "ID of the finding about the watched program that costs the most, such as "
                                "data_loading; null if there is none"),
    Column("finding_cause", "string", "its cause, a sentence"),
    Column("finding_file", "string", "file of the line that causes it; null if none does"),
    Column("finding_line", "int64", "line number in that file"),
    Column("finding_low_s", "float64", "lower end of the estimate of the program's time that the remedy saves; null "
                                       "if the cause costs only memory"),
    Column("finding_high_s", "float64", "its upper end"),
    Column("finding_remedy", "string", "what to change"),
)  # fmt: skip


@memoize
def summary(run: Run) -> pd.DataFrame:
    """Return the headline numbers of each case, in the order they ran; the columns are `COLUMNS`.

    *Error*: the interval of time_s is that of `significance.Sample.interval`: it covers the iterations of this run, not
    changes between runs.
    """
    cases = case_summary(run).merge(flop_utilization(run), on="case", how="left").to_dict("records")
    times, growth, findings_by_case = time_samples(run, CASE), _growth(run), _findings(run)
    rows = [_row(run, case, entry, times.get(entry.case, {}).get(CASE))
            | growth.get(entry.case, {}) | findings_by_case.get(entry.case, {})
            for case, entry in zip(cases, run.entries, strict=True)]
    types = {"string": "str", "int64": "Int64", "float64": "float64"}
    frame = pd.DataFrame(rows, columns=[column.name for column in COLUMNS])
    return frame.astype({column.name: types[column.type] for column in COLUMNS})


def summary_rows(run: Run) -> list[dict[str, Any]]:
    """Return `summary` as plain values, with None for null."""
    frame = summary(run).astype(object)
    return [{str(name): value for name, value in row.items()}
            for row in frame.where(frame.notna(), None).to_dict("records")]


def _row(run: Run, case: dict[Any, Any], entry: CaseEntry, time: Sample | None) -> dict[str, Any]:
    timing, software = entry.passes.timing, run.manifest.get("software", {})
    settings = timing.program and timing.program.settings
    of_program = settings and settings.threads and settings.threads.intra_op
    row = case | {
        "unreliable": why_unreliable(timing.core_use), "num_warmup_iterations": timing.num_warmup_iterations,
        "warmup_ended_by": timing.warmup_ended_by,
        "num_threads": of_program or timing.num_threads or run.options.threads,
        "seed": run.manifest.get("options", {}).get("seed"), "charact_version": software.get("charact"),
        "python_version": software.get("python"), "torch_version": software.get("torch"),
        "low_s": None, "high_s": None,
    }  # fmt: skip
    if time is None:
        return row
    row |= {"time_of": _TIME_OF.get(case["kind"]), "time_s": time.value}
    if (interval := time.interval) is None:
        return row | {"interval_reason": time.reason or "a count: no variation"}
    method = INTERVAL_METHOD if time.least is not None else "block bootstrap"
    return row | {"low_s": interval[0], "high_s": interval[1],
                  "interval_method": "standard error" if time.error_frac is not None else method}


def _findings(run: Run) -> dict[str, dict[str, Any]]:
    columns: dict[str, dict[str, Any]] = {}
    for row in findings(run).to_dict("records"):
        low_s, high_s = row["recoverable_s"] if isinstance(row["recoverable_s"], list) else (None, None)
        columns.setdefault(str(row["case"]), {
            "finding": row["finding"], "finding_cause": row["cause"], "finding_file": row["file"],
            "finding_line": row["line"], "finding_low_s": low_s, "finding_high_s": high_s,
            "finding_remedy": row["remedy"]})
    return columns


_GROWTH = {"shape": "memory_form", "position": "memory_position", "slope_bytes": "memory_slope_bytes",
           "square_bytes": "memory_square_bytes", "fixed_bytes": "memory_fixed_bytes"}
_MIN_SIZES = 3
"""Minimum number of sizes that show how memory grows."""


def _growth(run: Run) -> dict[str, dict[str, Any]]:
    """Return the columns about growing memory, by case: of measured peaks if there are any, else of estimates."""
    if len({entry.input_size for entry in run.entries}) < _MIN_SIZES:  # most runs; spares the fits
        return {str(case): {"memory_form": "none"} for case in memory_composition(run)["case"].unique()}
    rows = growth_by_case(run).sort_values("method").drop_duplicates("case")  # 'measured' before 'predicted'
    rows = rows.assign(slope_bytes=rows["slope_bytes"].fillna(rows["linear_bytes"]),
                       shape=rows["shape"].astype(object).mask(rows["num_sizes"] < _MIN_SIZES, "none"))
    columns = rows.reindex(columns=["case", *_GROWTH]).rename(columns=_GROWTH)
    return {str(row["case"]): {str(name): value for name, value in row.items()} for row in columns.to_dict("records")}
