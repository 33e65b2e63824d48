"""Generations: time to the first token and per token, from the cases of one model that read prompts and decode."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.script_attribution import is_watched
from charact.analysis.profile.case_summary import case_summary, iteration_times
from charact.record.reader import Run
from charact.record.schema import GENERATING_MODES

MIN_ITERATIONS_OF = {"p90_s": 10, "p99_s": 100}
"""Least number of iterations for a percentile."""
_ALIKE = ["workload", "variant", "input_size", "output_size", "batch_size", "precision", "device", "cache",
          "attention", "rank"]


def is_generation(run: Run) -> bool:
    """Return whether prompts or decoding were timed in a run; estimates of their memory are no generation."""
    return any(entry.mode in GENERATING_MODES and entry.passes.timing.num_iterations for entry in run.entries)


@memoize
def generations(run: Run) -> pd.DataFrame:
    """Return one row for each generation, whose prompts and whose decoding are a case each; missing values are null.

    Columns: workload; variant; input_size, of the prompts, with input_low and input_high, the shortest and the longest
    (in a watched program, prompts may differ: then input_size is null); output_size, in a watched program the median;
    batch_size; precision; device; cache; attention, its backend (null for PyTorch's choice); rank; prefill_case and
    decode_case; first_s with first_low_s and first_high_s, the median time to the first token and its 95 % interval;
    token_s with token_low_s and token_high_s, the median time of each further token; p90_s and p99_s of these (null
    with too few, see `MIN_ITERATIONS_OF`); num_prompts and num_tokens, how many prefills and further tokens were timed,
    and whole, whether the latter is at least once each; request_s, the time of a whole request: first_s and the mean
    time of a further token for each of them; tokens_per_s, of one request after its first token; all_tokens_per_s, of a
    whole batch, its prompts included: batch_size x output_size / request_s (null if batches differ).
    """
    summary = case_summary(run).set_index("case")
    walls = {str(case): times for case, times in iteration_times(run).groupby("case", sort=False)["wall_s"]}
    groups: dict[tuple[Any, ...], dict[str, str]] = {}
    for entry in run.entries:
        if entry.mode in GENERATING_MODES:
            key = tuple(getattr(entry, name) for name in _ALIKE)
            groups.setdefault(key, {})[entry.mode] = entry.case
    columns = [*_ALIKE, "input_low", "input_high", "prefill_case", "decode_case", "first_s", "first_low_s",
               "first_high_s", "token_s", "token_low_s", "token_high_s", "p90_s", "p99_s", "num_prompts", "num_tokens",
               "whole", "request_s", "tokens_per_s", "all_tokens_per_s"]
    rows = pd.DataFrame([_row(key, cases, summary, walls) for key, cases in groups.items()], columns=columns)
    read = run.program_iterations.groupby("case")["context"].agg(["min", "max"])
    for name, end in (("input_low", "min"), ("input_high", "max")):
        rows[name] = rows["prefill_case"].map(read[end]).astype("float64").fillna(rows["input_size"].astype("float64"))
    return rows


def _row(key: tuple[Any, ...], cases: dict[str, str], summary: pd.DataFrame,
         walls: "dict[str, pd.Series[float]]") -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(_ALIKE, key, strict=True))
    for mode, name in (("prefill", "first"), ("decode", "token")):
        case = row[f"{mode}_case"] = cases.get(mode)
        if case is not None:
            row |= {f"{name}{end}": summary.loc[case, column] for end, column in (
                ("_s", "median_s"), ("_low_s", "low_s"), ("_high_s", "high_s"))}
    times = walls.get(row["decode_case"] or "", pd.Series(dtype="float64"))
    num_further = row["output_size"] - 1
    row |= {"num_prompts": len(walls.get(row["prefill_case"] or "", ())), "num_tokens": len(times),
            "whole": len(times) >= num_further}
    row |= {f"p{share}_s": times.quantile(share / 100) for share in (90, 99)
            if len(times) >= MIN_ITERATIONS_OF[f"p{share}_s"]}
    if len(times):
        row["tokens_per_s"] = 1 / row["token_s"]
    if row.get("first_s") is not None and (len(times) or not num_further):
        row["request_s"] = row["first_s"] + num_further * (times.mean() if len(times) else 0.0)
        if row["batch_size"] is not None:
            row["all_tokens_per_s"] = row["batch_size"] * row["output_size"] / row["request_s"]
    return row


@memoize
def token_times(run: Run) -> pd.DataFrame:
    """Return the time of each token of each decoding by the number of tokens that the request has read before.

    Columns: case; context, that number, with the prompt; time_s, the median over the requests.
    """
    times = iteration_times(run)
    if is_watched(run):
        read = run.program_iterations[["case", "iteration", "context"]].dropna()
        read = read[read["case"].isin([entry.case for entry in run.entries if entry.mode == "decode"])]
        rows = times.merge(read.astype({"iteration": "int64", "context": "int64"}), on=["case", "iteration"])
        rows["context"] -= 1
    else:
        sizes = {entry.case: (entry.input_size or 0, entry.output_size or 0) for entry in run.entries
                 if entry.mode == "decode"}
        times = times[times["case"].isin(list(sizes))]
        rows = times.assign(context=[
            sizes[case][0] + number % (sizes[case][1] - 1) for case, number in zip(
                times["case"], times["iteration"], strict=True)])
    grouped = rows.groupby(["case", "context"], sort=False)["wall_s"].median().reset_index()
    return grouped.rename(columns={"wall_s": "time_s"}).sort_values(["case", "context"], kind="stable")
