"""Speedups by workload and dataset, and their geometric means."""

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Any

import pandas as pd

from charact.analysis.compare.matching import Group, matched_cases
from charact.analysis.compare.ratios import metric_ratios
from charact.core.errors import UserError
from charact.core.statistics import student_factor

GROUPS = ("workload", "variant", "data", "mode", "input_size", "batch_size", "precision")
"""Columns by which geometric means can be grouped."""

_TIMES = ("total_time", "inference_time", "time")
"""Metrics for a speedup: the first that both groups have and that is comparable."""


def speedups(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the speedup of each group over the baseline in each matched case.

    Columns: case; its `GROUPS`, as in the manifest; side; metric of the times: total time of a training (time of an
    epoch if the number of epochs differs), load and inference time of an inference, else an iteration; base_s and
    time_s; speedup = base_s / time_s, with low to high, its 95 % interval; p_value, significant and reason as in
    `ratios`.
    """
    rows = metric_ratios(sides)
    rows = rows[rows["metric"].isin(_TIMES)]
    rows["rank"] = rows["metric"].map(_TIMES.index).astype("int64") + len(_TIMES) * rows["ratio"].isna()
    best = rows.loc[rows.groupby(["case", "side"], sort=False)["rank"].idxmin()]
    best = best.rename(columns={"base": "base_s", "value": "time_s"}).assign(
        speedup=1 / best["ratio"], low=1 / best["high"], high=1 / best["low"])
    cases = matched_cases(sides)
    cases = cases[cases["side"] == sides[0].label].drop_duplicates("case")
    entries = [sides[0].runs[run].entry(case) for run, case in zip(cases["run"], cases["run_case"], strict=True)]
    groups = pd.DataFrame([[getattr(entry, name) for name in GROUPS] for entry in entries], columns=GROUPS)
    groups["case"] = cases["case"].to_numpy()
    columns = ["case", *GROUPS, "side", "metric", "base_s", "time_s", "speedup", "low", "high", "p_value",
               "significant", "reason"]  # fmt: skip
    return best.merge(groups, on="case", how="left")[columns]


def geometric_means(sides: Sequence[Group], by: str | None = None) -> pd.DataFrame:
    """Return the geometric mean of the speedups of the cases, by a column of `GROUPS` or in total, per group of runs.

    Columns: one named as `by` (none without); side; num_cases with a speedup; speedup; low to high, its 95 % interval;
    reason, why there is none. The interval covers other cases of the same kind: it comes from the spread between cases
    (Student's t of logarithms), or from the uncertainty of each case if that is larger. For one case it is the case's
    own interval.
    """
    if by is not None and by not in GROUPS:
        raise UserError(f"cannot group by '{by}': choose from {', '.join(GROUPS)}")
    keys = [*([by] if by else []), "side"]
    rows = [[*key, *geometric_mean(cases.dropna(subset=["speedup"]))]
            for key, cases in speedups(sides).groupby(keys, sort=False, dropna=False)]
    means = pd.DataFrame(rows, columns=[*keys, "num_cases", "speedup", "low", "high", "reason"])
    return means.astype(dict.fromkeys(["speedup", "low", "high"], "float64") | {"num_cases": "int64", "reason": "str"})


def geometric_mean(cases: pd.DataFrame) -> list[Any]:
    """Return the number of speedups, their geometric mean, its interval, and why there is none.

    Reads the columns speedup, low, high and reason.
    """
    logs = [math.log(speedup) for speedup in cases["speedup"]]
    if not logs:
        return [0, None, None, None, "no case has a speedup"]
    if len(logs) == 1:
        only = cases.iloc[0]
        return [1, only["speedup"], only["low"], only["high"], only["reason"]]
    mean = fmean(logs)
    reach = student_factor(len(logs) - 1) * math.sqrt(variance(logs) / len(logs))
    known = [math.log(high / low) / 2 for low, high in zip(cases["low"], cases["high"], strict=True)]
    within = math.sqrt(sum(half**2 for half in known if half == half)) / len(logs)
    reach = max(reach, within)
    return [len(logs), math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), None]
